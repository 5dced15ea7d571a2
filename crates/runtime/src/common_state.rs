//! A state that the ranks of a host have in common: how a rank comes by it, and how all turn to the next one together.
//!
//! No copy travels: a rank that comes later finds the state in memory, and the ranks that lived on never lost it. The all-reduce is the
//! moment from which an update can begin, a barrier the one at which it is done. This file does not know where that memory is.

use crate::broke::{Broke, engine, off, told_to_leave};
use crate::data_plane::DataPlane;
use dtrain_collective::Op;
use dtrain_engine::{EngineError, Replica, Share, Sharing, UpdateInfo};
use dtrain_protocol::{Failure, Source, StartFrom, Truth};
use dtrain_types::{Rank, Step, Trailer};
use std::time::{Duration, Instant};

/// Gives this rank the state of all: one of them lays it out where the run starts, and completes it where it goes on.
///
/// *Blocks* until all ranks are there.
pub fn meet(plane: &mut DataPlane, replica: &mut dyn Replica, truth: &Truth) -> Result<(), Broke> {
    let rank = plane.membership.rank;
    match &truth.source {
        Source::Start(StartFrom::Fresh) if rank == Rank(0) => sharing(replica).publish(),
        Source::Start(StartFrom::Checkpoint(_)) if plane.writers.first() == Some(&rank) => {
            sharing(replica).publish();
        }
        // Nobody has written into a slot since the sum was there: if an update is not done to its end, no rank has gone on.
        Source::Ranks(_) if rank == Rank(0) => {
            sharing(replica).complete(plane.backend.reduced()).map_err(engine)?;
        }
        Source::Start(_) | Source::Ranks(_) => {}
    }
    all_are_here(plane)?;
    match sharing(replica).adopt(truth.step) {
        true => Ok(()),
        false => {
            let step = truth.step;
            Err(Failure::Setup(format!("the state of step {step} is not in the memory of this host")).into())
        }
    }
}

/// Looks at this rank's share of the sum, with all others; tells how long it waited for them. Nothing is changed yet. *Blocks* until
/// all know what the update comes to (`Sharing::settle`).
pub fn measure(
    plane: &mut DataPlane,
    replica: &mut dyn Replica,
    step: Step,
    trailer: &Trailer,
) -> Result<Duration, Broke> {
    let share = Share { index: plane.membership.rank.index(), of: plane.membership.world().0 as usize };
    sharing(replica).measure(step, plane.backend.reduced(), trailer.weight, trailer.samples, share);
    all_are_here(plane)
}

/// Says what the update comes to that all have measured; also when others have decided it by now, and this rank is to leave.
///
/// *Errors*: as `Replica::update`, all ranks alike.
pub fn settle(replica: &mut dyn Replica) -> Result<UpdateInfo, EngineError> {
    sharing(replica).settle()
}

/// Makes the update that was settled, with all others; tells how long it waited for them. *Blocks* until it is done.
pub fn together(plane: &mut DataPlane, replica: &mut dyn Replica, step: Step) -> Result<Duration, Broke> {
    if !sharing(replica).update_share(plane.backend.reduced()) {
        return Err(told_to_leave());
    }
    let waited = all_are_here(plane)?;
    sharing(replica).commit(step);
    Ok(waited)
}

/// Leaves it to others to begin another update: after this, what the replica says of its state does not change any more.
pub fn close(replica: &mut dyn Replica) {
    if let Some(sharing) = replica.sharing() {
        sharing.close();
    }
}

fn all_are_here(plane: &mut DataPlane) -> Result<Duration, Broke> {
    let begun = Instant::now();
    plane.sequence.0 += 1;
    plane.backend.start(plane.sequence, &Op::Barrier).map_err(off)?;
    plane.backend.finish(plane.sequence).map_err(off)?;
    Ok(begun.elapsed())
}

fn sharing(replica: &mut dyn Replica) -> &mut dyn Sharing {
    replica.sharing().expect("whoever asks has seen that it can share a state")
}
