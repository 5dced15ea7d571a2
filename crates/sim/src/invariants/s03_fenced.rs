//! S3: nothing of generation g changes state in another.

use crate::fact::{Fact, Invariant, Life};
use crate::job::Oracle;
use dtrain_protocol::Bootstrap;
use dtrain_types::Generation;
use std::collections::BTreeMap;

/// What is fenced by a generation's number.
#[derive(Default)]
pub(super) struct Fenced {
    /// What a life has left: it promised to commit nothing more there.
    left: BTreeMap<Life, Generation>,
    /// What each rank 0 made for its generation to meet.
    made: BTreeMap<(Generation, Life), Bootstrap>,
}

impl Invariant for Fenced {
    fn name(&self) -> &'static str {
        "S3"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        match fact {
            Fact::Left { life, generation, .. } => {
                self.left.insert(*life, *generation);
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
            Fact::Made(life, generation, bootstrap) => {
                self.made.insert((*generation, *life), **bootstrap);
            }
            Fact::Meets { life, generation, first, by } => {
                let made = self.made.get(&(*generation, *first));
                if by.is_none() || made != *by {
                    return Err(format!(
                        "{life} meets the others of generation {generation} by something that {first} did not make there"
                    ));
                }
            }
            Fact::Foreign(life, text) => return Err(format!("{life}: {text}")),
            _ => {}
        }
        Ok(())
    }
}

impl Fenced {
    fn check(&self, life: &Life, generation: Generation) -> Result<(), String> {
        match self.left.get(life) {
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
    use crate::fact::LeftState;
    use dtrain_protocol::{BOOTSTRAP_BYTES, Digest};
    use dtrain_types::Step;

    fn updated(generation: u64, member_in: u64) -> Fact<'static> {
        Fact::Updated {
            life: life(1, 1),
            generation: Generation(generation),
            member_in: Generation(member_in),
            step: Step(1),
            gradient: &[],
            needed: None,
            state_digest: Digest([0; 32]),
        }
    }

    #[test]
    fn an_update_in_a_generation_that_was_left_is_found() {
        let left = Fact::Left { life: life(1, 1), generation: Generation(2), state: LeftState::None };
        let history = [updated(1, 1), left, updated(2, 2), updated(1, 1)];
        assert_eq!(first_bad(Fenced::default(), &oracle(), &history), Some(3));
    }

    #[test]
    fn a_meeting_by_what_rank_zero_did_not_make_in_this_generation_is_found() {
        let (one, two) = (Bootstrap([1; BOOTSTRAP_BYTES]), Bootstrap([2; BOOTSTRAP_BYTES]));
        let made = |generation, by| Fact::Made(life(0, 1), Generation(generation), by);
        let meets = |generation, by| {
            let generation = Generation(generation);
            Fact::Meets { life: life(1, 1), generation, first: life(0, 1), by }
        };
        let older = [made(1, &one), meets(1, Some(&one)), made(2, &two), meets(2, Some(&one))];
        assert_eq!(first_bad(Fenced::default(), &oracle(), &older), Some(3));
        assert_eq!(first_bad(Fenced::default(), &oracle(), &[made(1, &one), meets(1, None)]), Some(1));
        let another = Fact::Made(life(1, 1), Generation(1), &one);
        assert_eq!(first_bad(Fenced::default(), &oracle(), &[another, meets(1, Some(&one))]), Some(1));
    }

    #[test]
    fn an_update_of_another_generation_than_the_members_is_found() {
        assert_eq!(first_bad(Fenced::default(), &oracle(), &[updated(1, 1), updated(1, 2)]), Some(1));
    }
}
