//! S12: a torn or half-copied state is never used: a rank that leaves holds what it last updated or took over, whole.

use crate::fact::{Fact, Invariant, LeftState, Life};
use crate::job::Oracle;
use dtrain_protocol::Digest;
use dtrain_types::Step;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct NoTornState(BTreeMap<Life, (Step, Digest)>);

impl Invariant for NoTornState {
    fn name(&self) -> &'static str {
        "S12"
    }

    fn see(&mut self, fact: &Fact<'_>, oracle: &Oracle) -> Result<(), String> {
        match fact {
            Fact::Updated { life, step, state_digest, .. } => {
                self.0.insert(*life, (*step, *state_digest));
            }
            Fact::Swapped { life, step, state_digest, .. } => {
                if oracle.at(*step).is_none_or(|expected| !expected.is(*state_digest)) {
                    return Err(format!("{life} took over a state of step {step} that no run has"));
                }
                self.0.insert(*life, (*step, *state_digest));
            }
            Fact::Left { life, state, .. } => {
                let (had, left) = (self.0.get(life), state);
                let same = match *left {
                    LeftState::None => had.is_none(),
                    LeftState::Own(step, digest) => had == Some(&(step, digest)),
                    // The last update may have been decided by others.
                    LeftState::Shared(step) => had.is_some_and(|(had, _)| step == *had || step == had.next()),
                };
                if !same {
                    return Err(format!("{life} left with another state than it had"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, life, oracle};
    use super::*;
    use dtrain_types::Generation;

    #[test]
    fn a_state_that_is_half_copied_is_found_when_it_is_taken_over_and_when_a_rank_leaves_with_it() {
        let oracle = oracle();
        let good = oracle.at(Step(1)).expect("three steps").state_digest;
        let swapped = |digest| Fact::Swapped {
            life: life(1, 1),
            generation: Generation(2),
            step: Step(1),
            state_digest: digest,
            copied: true,
        };
        let left = |digest| Fact::Left {
            life: life(1, 1),
            generation: Generation(3),
            state: LeftState::Own(Step(1), digest),
        };
        let torn = Digest([1; 32]);
        let first = |history: &[Fact<'_>]| first_bad(NoTornState::default(), &oracle, history);
        assert_eq!(first(&[swapped(good), left(good)]), None);
        assert_eq!(first(&[swapped(torn)]), Some(0));
        assert_eq!(first(&[swapped(good), left(torn)]), Some(1));
    }
}
