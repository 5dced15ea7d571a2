//! How this rank keeps the state: all of it by itself, all of it together with the other ranks of its host, or some shards of it. What each of them does is
//! in the files beside this one; here alone one is chosen.
//!
//! It does not know what comes when: the agenda does.

use crate::broke::{Broke, engine};
use crate::data_plane::DataPlane;
use crate::saver::ShardDraft;
use crate::{sharded_state, sharded_whole, shared_state};
use dtrain_checkpoint::{TensorSpec, slice_for};
use dtrain_engine::{EngineError, Replica, Section, UpdateInfo};
use dtrain_protocol::{Digest, StateHolder};
use dtrain_types::{Rank, Step, Trailer, WorldSize};

/// Who holds the state of this rank.
pub fn holder(replica: &mut dyn Replica) -> StateHolder {
    match (replica.sharing().is_some(), replica.sharding().is_some()) {
        (true, _) => StateHolder::Host,
        (_, true) => StateHolder::Shards,
        _ => StateHolder::Rank,
    }
}

fn in_shards(replica: &mut dyn Replica) -> bool {
    replica.sharding().is_some()
}

/// Looks at this rank's share of a sum. Nothing is changed yet.
///
/// *Errors*: of the device.
pub fn measure(
    plane: &mut DataPlane,
    replica: &mut dyn Replica,
    step: Step,
    trailer: &Trailer,
) -> Result<(), EngineError> {
    match in_shards(replica) {
        true => sharded_state::measure(plane, replica, step, trailer),
        false => {
            shared_state::measure(plane, replica, step, trailer);
            Ok(())
        }
    }
}

/// What the update comes to that this rank measured.
///
/// *Errors*: as `Replica::update`, all ranks alike.
pub fn settle(replica: &mut dyn Replica) -> Result<UpdateInfo, EngineError> {
    match in_shards(replica) {
        true => sharded_state::settle(replica),
        false => shared_state::settle(replica),
    }
}

/// Makes this rank's share of the update that was settled.
///
/// *Errors*: of the device; the update was not decided before a shared state was closed.
pub fn update_share(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<(), Broke> {
    match in_shards(replica) {
        true => Ok(sharded_state::update(plane, replica).map_err(engine)?),
        false => shared_state::update_share(plane, replica),
    }
}

/// The generation is left: what its memory has of an update that others may have made is kept.
pub fn keep_sum(plane: &mut DataPlane, replica: &mut dyn Replica) {
    if in_shards(replica) {
        sharded_state::keep_sum(plane, replica);
    }
}

/// Turns to the state after this update.
pub fn commit(replica: &mut dyn Replica, step: Step) {
    match in_shards(replica) {
        true => sharded_state::commit(replica, step),
        false => shared_state::commit(replica, step),
    }
}

/// The tensors that this rank writes of a checkpoint, if it writes.
pub fn tensors(plane: &DataPlane, replica: &mut dyn Replica, specs: &[TensorSpec]) -> Option<Vec<usize>> {
    if in_shards(replica) {
        return sharded_whole::tensors(plane, specs);
    }
    let writers = &plane.writers;
    let place = writers.iter().position(|writer| *writer == plane.membership.rank)?;
    Some(slice_for(Rank(place as u32), WorldSize(writers.len() as u32), specs).collect())
}

/// Whether a rank that writes nothing of a checkpoint gives others what they write.
pub fn gives_to_others(replica: &mut dyn Replica) -> bool {
    in_shards(replica)
}

/// Fills what this rank writes of a checkpoint, if it writes. Where ranks hold shards, all call it alike.
///
/// *Blocks* for the device, or until it has what others hold of it.
pub fn fill(
    plane: &mut DataPlane,
    replica: &mut dyn Replica,
    specs: &[TensorSpec],
    draft: Option<&mut ShardDraft>,
) -> Result<(), Broke> {
    if in_shards(replica) {
        return sharded_whole::fill(plane, replica, specs, draft);
    }
    let state = replica.bring_state().map_err(engine)?;
    if let Some(draft) = draft {
        Section::ALL.into_iter().for_each(|section| draft.add(section, 0, state.section(section)));
    }
    Ok(())
}

/// The digest of all of the state. Where ranks hold shards, all call it alike.
///
/// *Blocks* for the device, or until all have it. *Errors*: this rank holds something else than the owner does.
pub fn state_digest(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<Digest, Broke> {
    let digest = match in_shards(replica) {
        true => sharded_whole::state_digest(plane, replica)?,
        false => replica.bring_state().map_err(engine)?.state_digest(),
    };
    Ok(Digest(digest))
}

/// The digests of the state, for people and of all of it: as [`state_digest`].
pub fn digests(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<(Digest, Digest), Broke> {
    let digest = match replica.gathering().is_some() {
        true => sharded_whole::model_digest(plane, replica)?,
        false => replica.bring_state().map_err(engine)?.digest(),
    };
    Ok((Digest(digest), state_digest(plane, replica)?))
}
