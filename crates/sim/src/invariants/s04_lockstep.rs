//! S4: `applied` differs by at most one within a generation.

use crate::fact::{Fact, Invariant, Life};
use crate::job::Oracle;
use dtrain_types::{Generation, Step};
use std::collections::BTreeMap;

/// How far each life has come in each generation by its updates.
#[derive(Default)]
pub(super) struct Lockstep(BTreeMap<Generation, BTreeMap<Life, Step>>);

impl Invariant for Lockstep {
    fn name(&self) -> &'static str {
        "S4"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        let (life, generation, step) = match fact {
            Fact::Updated { life, generation, step, .. } | Fact::Swapped { life, generation, step, .. } => {
                (life, generation, step)
            }
            _ => return Ok(()),
        };
        let all = self.0.entry(*generation).or_default();
        all.insert(*life, *step);
        let (least, most) = (all.values().min(), all.values().max());
        match (least, most) {
            (Some(least), Some(most)) if least.next() < *most => Err(format!(
                "{life} is at step {step}; in generation {generation} they are at {least} to {most}"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, life, oracle};
    use super::*;
    use dtrain_protocol::Digest;

    #[test]
    fn a_rank_that_is_two_steps_ahead_is_found() {
        let updated = |member, step| Fact::Updated {
            life: life(member, 1),
            generation: Generation(1),
            member_in: Generation(1),
            step: Step(step),
            gradient: &[],
            needed: None,
            state_digest: Digest([0; 32]),
        };
        let history = [updated(1, 1), updated(2, 1), updated(1, 2), updated(1, 3)];
        assert_eq!(first_bad(Lockstep::default(), &oracle(), &history), Some(3));
    }
}
