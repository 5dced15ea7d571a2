//! L4: a supervisor that takes over keeps everybody who is in the newest generation, lives and can be heard.
//!
//! It orders the end of none of them before it names a generation, and all of them are in that one. Whoever it holds to be lost is the
//! business of L2.

use crate::fact::{Fact, Invariant, Life};
use crate::job::Oracle;
use dtrain_types::{Generation, MemberId};
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct KeepsTheFound {
    /// The newest generation that was named.
    generation: Generation,
    /// Its members, but for those that were held to be lost, or ended, since.
    members: BTreeSet<Life>,
    /// A supervisor died, and none after it has named a generation.
    takes_over: bool,
    /// Who can be heard now.
    heard: Vec<Life>,
}

impl Invariant for KeepsTheFound {
    fn name(&self) -> &'static str {
        "L4"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        match fact {
            Fact::SupervisorDied => self.takes_over = true,
            Fact::Lost(member, ..) => self.forget(*member),
            Fact::Ends { life, heard } => {
                let (of, found) = (self.generation, self.members.remove(life));
                return match found && self.takes_over && *heard {
                    true => Err(format!("whoever takes over ends {life}, which is in generation {of}")),
                    false => Ok(()),
                };
            }
            Fact::CanBeHeard(lives) => self.heard = lives.to_vec(),
            Fact::Named(generation, membership) if *generation > self.generation => {
                let lives = membership.participants.iter();
                let lives = lives.map(|p| Life { member: p.member, incarnation: p.incarnation }).collect();
                let before = std::mem::replace(&mut self.members, lives);
                let missing = |life: &&Life| before.contains(*life) && !self.members.contains(*life);
                let missing = self.heard.iter().find(missing).filter(|_| self.takes_over);
                let of = std::mem::replace(&mut self.generation, *generation);
                self.takes_over = false;
                if let Some(life) = missing {
                    return Err(format!(
                        "{life} of generation {of} is not in {generation} of whoever takes over"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl KeepsTheFound {
    fn forget(&mut self, member: MemberId) {
        self.members.retain(|life| life.member != member);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, life, oracle};
    use super::*;
    use dtrain_protocol::{Membership, Participant};
    use dtrain_types::{MicroRange, NodeId};

    fn of(members: &[u32]) -> Membership {
        let participant = |member: &u32| Participant {
            member: MemberId(*member),
            incarnation: life(*member, 1).incarnation,
            node: NodeId(0),
            address: None,
            sees_run_folder: true,
            range: MicroRange { lo: 0, hi: 1 },
        };
        Membership { participants: members.iter().map(participant).collect(), unmirrored: 0 }
    }

    fn first(history: &[Fact<'_>]) -> Option<usize> {
        first_bad(KeepsTheFound::default(), &oracle(), history)
    }

    #[test]
    fn whoever_takes_over_and_ends_a_member_of_the_newest_generation_is_found() {
        let (both, one) = (of(&[0, 1]), of(&[0]));
        let named = |generation, membership| Fact::Named(Generation(generation), membership);
        let ends = |member, heard| Fact::Ends { life: life(member, 1), heard };
        assert_eq!(first(&[named(1, &both), Fact::SupervisorDied, ends(1, true)]), Some(2));
        assert_eq!(first(&[named(1, &both), Fact::SupervisorDied, ends(1, false)]), None, "it stands still");
        assert_eq!(first(&[named(1, &both), ends(1, true), Fact::SupervisorDied]), None, "nobody takes over");
        let older = [named(1, &both), named(2, &one), Fact::SupervisorDied, ends(1, true)];
        assert_eq!(first(&older), None, "it is in an older generation");
        let lost = Fact::Lost(MemberId(1), true, "silent");
        assert_eq!(first(&[named(1, &both), Fact::SupervisorDied, lost, ends(1, true)]), None);
    }

    #[test]
    fn whoever_takes_over_without_a_member_of_the_newest_generation_is_found() {
        let (both, one) = (of(&[0, 1]), of(&[0]));
        let named = |generation, membership| Fact::Named(Generation(generation), membership);
        let lives = [life(0, 1), life(1, 1)];
        let heard = Fact::CanBeHeard(&lives);
        assert_eq!(first(&[named(1, &both), Fact::SupervisorDied, heard, named(5, &one)]), Some(3));
        assert_eq!(first(&[named(1, &both), Fact::SupervisorDied, heard, named(5, &both)]), None);
        let silent = Fact::CanBeHeard(&lives[..1]);
        assert_eq!(first(&[named(1, &both), Fact::SupervisorDied, silent, named(5, &one)]), None);
        assert_eq!(first(&[named(1, &both), heard, named(2, &one)]), None, "nobody takes over");
    }
}
