//! What must hold of every history, judged from outside of the machines. Each checker is itself tested on bad histories.

use dtrain_protocol::CheckpointId;
use dtrain_types::{Epoch, MemberId, Step};
use std::collections::{BTreeMap, BTreeSet};

/// One thing that happened, in the order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A rank applied an update.
    Applied { member: MemberId, step: Step },
    /// The supervisor committed a step.
    Committed(Step),
    /// The supervisor recorded a validation.
    Validated(Epoch),
    /// A rank's shard is on disk.
    Durable { id: CheckpointId, member: MemberId },
    /// The supervisor ordered a manifest.
    Ordered { id: CheckpointId, shards: u32, world: u32 },
    /// The manifest is in place.
    Manifest(CheckpointId),
    /// The supervisor had a process killed.
    Killed(MemberId),
}

/// Each step is committed once, in order, and only after a rank applied it.
pub fn steps_are_committed_once_and_in_order(history: &[Fact], start: Step) -> Result<Step, String> {
    let (mut committed, mut applied) = (start, start);
    for fact in history {
        match fact {
            Fact::Applied { step, .. } => applied = applied.max(*step),
            Fact::Committed(step) if *step != committed.next() => {
                return Err(format!("step {step} committed after {committed}"));
            }
            Fact::Committed(step) if *step > applied => {
                return Err(format!("step {step} committed, not applied"));
            }
            Fact::Committed(step) => committed = *step,
            _ => {}
        }
    }
    Ok(committed)
}

/// S4: at no moment does `applied` differ by more than one.
pub fn applied_differs_by_at_most_one(
    history: &[Fact],
    members: &[MemberId],
    start: Step,
) -> Result<(), String> {
    let mut applied: BTreeMap<MemberId, Step> = members.iter().map(|m| (*m, start)).collect();
    for fact in history {
        let Fact::Applied { member, step } = fact else { continue };
        applied.insert(*member, *step);
        let (least, most) = (applied.values().min(), applied.values().max());
        if most.map(|s| s.0) > least.map(|s| s.0 + 1) {
            return Err(format!("applied is {applied:?}"));
        }
    }
    Ok(())
}

/// S6: a manifest is ordered once, with the durable shards of all ranks, after its step was committed.
pub fn manifests_have_all_shards(history: &[Fact], start: Step) -> Result<u32, String> {
    let mut durable: BTreeMap<CheckpointId, BTreeSet<MemberId>> = BTreeMap::new();
    let (mut ordered, mut committed) = (BTreeSet::new(), start);
    for fact in history {
        match fact {
            Fact::Committed(step) => committed = *step,
            Fact::Durable { id, member } => {
                durable.entry(*id).or_default().insert(*member);
            }
            Fact::Ordered { id, shards, world } => {
                let there = durable.get(id).map_or(0, BTreeSet::len) as u32;
                if shards != world || there != *world || id.step > committed || !ordered.insert(*id) {
                    return Err(format!(
                        "{id}: {shards} named, {there} durable, of {world}; committed {committed}"
                    ));
                }
            }
            Fact::Manifest(id) if !ordered.contains(id) => return Err(format!("{id} was not ordered")),
            _ => {}
        }
    }
    Ok(ordered.len() as u32)
}

/// Each epoch is recorded once, in order.
pub fn validations_are_recorded_once(history: &[Fact]) -> Result<u32, String> {
    let epochs: Vec<u32> =
        history.iter().filter_map(|f| if let Fact::Validated(e) = f { Some(e.0) } else { None }).collect();
    match epochs.windows(2).find(|pair| pair[1] != pair[0] + 1) {
        Some(pair) => Err(format!("epoch {} after {}", pair[1], pair[0])),
        None => Ok(epochs.len() as u32),
    }
}
