//! S3: nothing of generation g changes state in another.

use crate::fact::{Fact, Invariant, Life};
use crate::job::Oracle;
use dtrain_types::Generation;
use std::collections::BTreeMap;

/// What a life has left: it promised to commit nothing more there.
#[derive(Default)]
pub(super) struct Fenced(BTreeMap<Life, Generation>);

impl Invariant for Fenced {
    fn name(&self) -> &'static str {
        "S3"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        match fact {
            Fact::Left { life, generation, .. } => {
                self.0.insert(*life, *generation);
            }
            Fact::Updated { life, generation, member_in, step, .. } => {
                if generation != member_in {
                    return Err(format!(
                        "{life} is in generation {member_in}, its step {step} was made in {generation}"
                    ));
                }
                self.check(life, *generation)?;
            }
            Fact::Swapped { life, generation, .. } => self.check(life, *generation)?,
            Fact::Foreign(life, text) => return Err(format!("{life}: {text}")),
            _ => {}
        }
        Ok(())
    }
}

impl Fenced {
    fn check(&self, life: &Life, generation: Generation) -> Result<(), String> {
        match self.0.get(life) {
            Some(left) if *left > generation => {
                Err(format!("{life} changed its state in generation {generation} and had left it for {left}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, life, oracle};
    use super::*;
    use dtrain_protocol::Digest;
    use dtrain_types::Step;

    fn updated(generation: u64, member_in: u64) -> Fact<'static> {
        Fact::Updated {
            life: life(1, 1),
            generation: Generation(generation),
            member_in: Generation(member_in),
            step: Step(1),
            gradient: &[],
            state_digest: Digest([0; 32]),
        }
    }

    #[test]
    fn an_update_in_a_generation_that_was_left_is_found() {
        let left = Fact::Left { life: life(1, 1), generation: Generation(2), state: None };
        let history = [updated(1, 1), left, updated(2, 2), updated(1, 1)];
        assert_eq!(first_bad(Fenced::default(), &oracle(), &history), Some(3));
    }

    #[test]
    fn an_update_of_another_generation_than_the_members_is_found() {
        assert_eq!(first_bad(Fenced::default(), &oracle(), &[updated(1, 1), updated(1, 2)]), Some(1));
    }
}
