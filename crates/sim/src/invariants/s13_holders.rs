//! S13: what ranks hold of a state is what a plain run has there; no generation makes steps before every shard has a holder at its step, and two where
//! there are two ranks; one, while others are to come back that there were before. And none is formed without somebody who alone has a shard, lives, can be
//! heard and was not held to be lost: a host that leaves takes nothing with it.

use crate::fact::{Fact, Invariant, Life};
use crate::job::Oracle;
use dtrain_types::{Generation, Holding, MemberId, SHARDS, Step};
use std::collections::{BTreeMap, BTreeSet};

/// What each life of the newest generations holds.
#[derive(Default)]
pub(super) struct HoldersAgree {
    held: BTreeMap<Generation, BTreeMap<Life, (Step, Holding)>>,
    /// Who ever was in a generation.
    known: BTreeSet<MemberId>,
    /// The newest generation that was named, and the newest that made steps.
    newest: Generation,
    begun: Generation,
    /// Who can be heard now, and who was held to be lost since a generation began.
    heard: Vec<Life>,
    lost: BTreeSet<MemberId>,
}

impl Invariant for HoldersAgree {
    fn name(&self) -> &'static str {
        "S13"
    }

    fn see(&mut self, fact: &Fact<'_>, oracle: &Oracle) -> Result<(), String> {
        match fact {
            Fact::Held { life, generation, step, holding, held } => {
                let Some(expected) = oracle.at(*step) else {
                    return Err(format!("{life} holds a state of step {step}, beyond the last"));
                };
                for (section, from, values) in *held {
                    let plain = &expected.state.section(*section)[*from..from + values.len()];
                    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
                    if let Some(at) = values.iter().zip(plain).position(differs) {
                        let (name, at) = (section.name(), from + at);
                        return Err(format!(
                            "{life}: element {at} of {name} of step {step} is not a plain run's"
                        ));
                    }
                }
                self.held.entry(*generation).or_default().insert(*life, (*step, (*holding).clone()));
                while self.held.len() > 4 {
                    self.held.pop_first();
                }
                Ok(())
            }
            Fact::Named(generation, membership) => {
                self.known.extend(membership.participants.iter().map(|participant| participant.member));
                if *generation <= self.newest {
                    return Ok(());
                }
                self.newest = *generation;
                let (lost, heard) = (&self.lost, &self.heard);
                let Some(held) = self.held.get(&self.begun) else { return Ok(()) };
                let of = |life: &Life| held.get(life).map(|(_, holding)| holding);
                let lives: Vec<Life> = membership
                    .participants
                    .iter()
                    .map(|p| Life { member: p.member, incarnation: p.incarnation })
                    .collect();
                // Of whoever died in this moment nobody has heard.
                let knows = lives.iter().all(|life| heard.contains(life));
                let there = heard.iter().filter(|life| !lost.contains(&life.member));
                let held_by_all = Holding::cover(there.filter_map(of));
                match knows && held_by_all && !Holding::cover(lives.iter().filter_map(of)) {
                    true => Err(format!(
                        "generation {generation} is formed without somebody who alone holds a shard"
                    )),
                    false => Ok(()),
                }
            }
            Fact::CanBeHeard(lives) => {
                self.heard = lives.to_vec();
                Ok(())
            }
            Fact::Lost(member, ..) => {
                self.lost.insert(*member);
                Ok(())
            }
            Fact::Begins(generation, step, unmirrored) => {
                self.begun = *generation;
                self.lost.clear();
                let Some(lives) = self.held.get(generation) else { return Ok(()) };
                let here = || lives.values().filter(|(at, _)| at == step).map(|(_, holding)| holding);
                let lost = self.known.len().saturating_sub(here().count());
                let least = match *unmirrored as usize {
                    0 => here().count().min(2),
                    less if less <= lost => 1,
                    _ => return Err(format!("nobody is lost, and generation {generation} mirrors less")),
                };
                let held = |shard: &u32| here().filter(|holding| holding.has(*shard)).count();
                match (0..SHARDS).find(|shard| held(shard) < least) {
                    Some(shard) => Err(format!(
                        "generation {generation} begins behind step {step}, and {} rank holds shard {shard}",
                        held(&shard)
                    )),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{first_bad, life, oracle};
    use super::*;
    use dtrain_engine::Section;
    use dtrain_protocol::{Membership, Participant};
    use dtrain_types::{Incarnation, MicroRange, NodeId};

    #[test]
    fn a_shard_that_is_not_a_plain_runs_or_has_one_holder_is_found() {
        let oracle = oracle();
        let plain = oracle.at(Step(2)).expect("three steps").state.section(Section::First)[3..9].to_vec();
        let mut other = plain.clone();
        other[4] += 1.0;
        let (good, bad) = ([(Section::First, 3, plain)], [(Section::First, 3, other)]);
        let (all, some) = (Holding::whole(), Holding::of([0..9, 10..1000]));
        let held = |member, holding, held| Fact::Held {
            life: life(member, 1),
            generation: Generation(3),
            step: Step(2),
            holding,
            held,
        };
        let known = |history: &[Fact<'_>]| {
            let mut seen = HoldersAgree::default();
            history.iter().for_each(|fact| drop(seen.see(fact, &oracle)));
            seen
        };
        let begins = Fact::Begins(Generation(3), Step(2), 0);
        let lazily = Fact::Begins(Generation(3), Step(2), 1);
        let first = |history: &[Fact<'_>]| first_bad(HoldersAgree::default(), &oracle, history);
        assert_eq!(first(&[held(1, &all, &good), held(2, &all, &good), begins]), None);
        assert_eq!(first(&[held(1, &all, &bad)]), Some(0));
        assert_eq!(first(&[held(1, &all, &good), held(2, &some, &good), begins]), Some(2));
        assert_eq!(first(&[held(1, &some, &good), begins]), Some(1));
        // Where there were two, one may wait for the other: but not for nobody, nor without a shard.
        let participant = |member| Participant {
            member: MemberId(member),
            incarnation: Incarnation(1),
            node: NodeId(0),
            address: None,
            sees_run_folder: true,
            range: MicroRange { lo: 0, hi: 4 },
        };
        let members = Membership { participants: vec![participant(1), participant(2)], unmirrored: 0 };
        let two = [Fact::Named(Generation(3), &members), held(1, &all, &good), held(2, &all, &good)];
        assert_eq!(first(&[&two[..], &[begins]].concat()), None);
        assert_eq!(first(&[&two[..], &[lazily]].concat()), Some(3));
        let one = |holding| Fact::Held {
            life: life(1, 1),
            generation: Generation(4),
            step: Step(2),
            holding,
            held: &good,
        };
        // Nobody who alone has a shard is left behind, but for one that is held to be lost.
        let (part, rest) = (Holding::of([0..3, 3..5]), Holding::of([5..9, 9..SHARDS]));
        let parts = [held(1, &part, &[]), held(2, &rest, &[]), Fact::Begins(Generation(3), Step(2), 0)];
        let both = [life(1, 1), life(2, 1)];
        let alone = Membership { participants: vec![participant(1)], unmirrored: 0 };
        let next = [Fact::CanBeHeard(&both), Fact::Named(Generation(4), &alone)];
        let left = |history: &[Fact<'_>]| {
            first_bad(HoldersAgree { begun: Generation(3), ..known(history) }, &oracle, &next)
        };
        assert_eq!(
            (left(&parts), left(&[&parts[..], &[Fact::Lost(MemberId(2), true, "")]].concat())),
            (Some(1), None)
        );
        let lazily = Fact::Begins(Generation(4), Step(2), 1);
        assert_eq!(first(&[&two[..], &[one(&all), lazily]].concat()), None);
        assert_eq!(first(&[&two[..], &[one(&some), lazily]].concat()), Some(4));
    }
}
