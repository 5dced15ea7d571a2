//! S2: one membership per generation.

use crate::fact::{Fact, Invariant};
use crate::job::Oracle;
use dtrain_protocol::Membership;
use dtrain_types::Generation;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct OneMembership(BTreeMap<Generation, Membership>);

impl Invariant for OneMembership {
    fn name(&self) -> &'static str {
        "S2"
    }

    fn see(&mut self, fact: &Fact<'_>, _: &Oracle) -> Result<(), String> {
        let Fact::Named(generation, membership) = fact else { return Ok(()) };
        match self.0.get(generation) {
            Some(known) if known == *membership => Ok(()),
            Some(_) => Err(format!("generation {generation} has two memberships")),
            None => {
                self.0.insert(*generation, (*membership).clone());
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, oracle};
    use super::*;
    use dtrain_protocol::Participant;
    use dtrain_types::{Incarnation, MemberId, MicroRange, NodeId};

    #[test]
    fn two_memberships_of_one_generation_are_found() {
        let world = |member: u32| Membership {
            unmirrored: 0,
            participants: vec![Participant {
                member: MemberId(member),
                incarnation: Incarnation(1),
                node: NodeId(0),
                address: None,
                sees_run_folder: true,
                range: MicroRange { lo: 0, hi: 4 },
            }],
        };
        let (one, other) = (world(1), world(2));
        let named = |g, m| Fact::Named(Generation(g), m);
        let history = [named(1, &one), named(1, &one), named(2, &other), named(1, &other)];
        assert_eq!(first_bad(OneMembership::default(), &oracle(), &history), Some(3));
    }
}
