//! A state that the ranks of a host share: how a rank comes by it, and the parts of an update that all of them make together.
//!
//! No copy travels: a rank that comes later finds the state in memory, and the ranks that lived on never lost it. The order of the parts,
//! with a barrier between them, is the agenda's. This file does not know where that memory is.

use crate::broke::{Broke, engine, told_to_leave};
use crate::data_plane::DataPlane;
use crate::exchange::move_floats;
use dtrain_collective::Op;
use dtrain_engine::{EngineError, Replica, Sharing, UpdateInfo, UpdateShare};
use dtrain_protocol::{Agenda, Failure, Opening, ResumePoint};
use dtrain_types::{Step, Trailer};
use std::time::Duration;

/// Gives this rank the state of all.
///
/// *Blocks* until all ranks are there.
pub fn open(
    plane: &mut DataPlane,
    replica: &mut dyn Replica,
    resume_point: &ResumePoint,
) -> Result<(), Broke> {
    match Agenda::opening(resume_point, plane.membership.rank, &plane.writers) {
        Opening::Publish => sharing(replica).publish(),
        Opening::Complete => sharing(replica).complete(plane.backend.reduced()).map_err(engine)?,
        Opening::Wait => {}
    }
    meet(plane)?;
    match sharing(replica).adopt(resume_point.step) {
        true => Ok(()),
        false => {
            let step = resume_point.step;
            Err(Failure::Setup(format!("the state of step {step} is not in the memory of this host")).into())
        }
    }
}

/// Looks at this rank's share of the sum. Nothing is changed yet.
pub fn measure(plane: &mut DataPlane, replica: &mut dyn Replica, step: Step, trailer: &Trailer) {
    let share = UpdateShare { index: plane.membership.rank.index(), of: plane.membership.world().0 as usize };
    sharing(replica).measure(step, plane.backend.reduced(), trailer.weight, trailer.samples, share);
}

/// Says what the update comes to that all have measured; also when others have decided it by now, and this rank is to leave.
///
/// *Errors*: as `Replica::update`, all ranks alike.
pub fn settle(replica: &mut dyn Replica) -> Result<UpdateInfo, EngineError> {
    sharing(replica).settle()
}

/// Does this rank's share of the update that was settled. *Errors*: it was not decided before the state was closed.
pub fn update_share(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<(), Broke> {
    match sharing(replica).update_share(plane.backend.reduced()) {
        true => Ok(()),
        false => Err(told_to_leave()),
    }
}

/// Turns to the state after this update, which all have made.
pub fn commit(replica: &mut dyn Replica, step: Step) {
    sharing(replica).commit(step);
}

/// Leaves it to others to begin another update: after this, what the replica says of its state does not change any more.
pub fn close(replica: &mut dyn Replica) {
    if let Some(sharing) = replica.sharing() {
        sharing.close();
    }
}

/// *Blocks* until all ranks are here; tells how long that took.
pub fn meet(plane: &mut DataPlane) -> Result<Duration, Broke> {
    move_floats(plane.backend.as_mut(), &mut plane.sequence, &Op::Barrier)
}

fn sharing(replica: &mut dyn Replica) -> &mut dyn Sharing {
    replica.sharing().expect("whoever asks has seen that it can share a state")
}
