//! Communicators made from others: split, shrink and grow.
//!
//! The ranks that take part say on the parent's board what they want, wait until all have, and find the same answer each
//! for itself; the first of the new ranks makes the memory in which they meet and puts its name on the board. It does not
//! know what communicators are for.

use crate::communicator::{Busy, Communicator};
use crate::last_error::Failure;
use crate::segment::{Entry, make_id};
use nccl_sys::{ncclComm_t, ncclResult_t, ncclUniqueId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What one rank wants to become.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    /// Those of one color together, by key; `None` joins nothing.
    Split { color: Option<u32>, key: u32 },
    /// All but these, in their order.
    Shrink { without: Vec<usize> },
    /// The same ranks first, then new ones; the coordinator has the id that the new ones know.
    Grow { world: usize, id: Option<Box<ncclUniqueId>> },
}

/// The rank, the world and the meeting place of a new communicator.
type Place = Option<(usize, usize, ncclUniqueId)>;

/// Where a new handle is to be written; the caller keeps it valid until the parent's work is done.
struct Target(*mut ncclComm_t);

// SAFETY: an address that is written once, by the thread that makes the communicator.
unsafe impl Send for Target {}

/// Makes a communicator from `parent`; its handle appears in `target` before the parent is idle again.
///
/// # Safety
/// `target` can be written until then.
pub(crate) unsafe fn make(
    parent: &Arc<Communicator>,
    wish: Wish,
    target: *mut ncclComm_t,
    blocking: Option<bool>,
) -> Result<ncclResult_t, Failure> {
    parent.segment()?;
    parent.take_up(Busy::Multiplying)?;
    let (target, turn) = (Target(target), parent.next_turn());
    parent.perform(move |parent| {
        let target = target;
        let result = agree(parent, turn, &wish).and_then(|place| {
            let Some((rank, world, id)) = place else { return Ok(()) };
            let (handle, child) = Communicator::make(rank, world, blocking.unwrap_or(parent.blocking))?;
            // SAFETY: the caller of this function vouches for the address.
            unsafe { target.0.write(handle) };
            child.join(&id, || parent.has_ended())
        });
        match &result {
            Ok(()) => parent.rest(Busy::Multiplying),
            Err(failure) => parent.fail(failure),
        }
        result
    })
}

/// Finds this rank's place in the new communicator. *Blocks* until all who take part have said what they want.
fn agree(parent: &Communicator, turn: u64, wish: &Wish) -> Result<Place, Failure> {
    let (segment, own) = (parent.segment()?, parent.rank);
    let others: Vec<usize> = match wish {
        Wish::Shrink { without } => (0..parent.world).filter(|rank| !without.contains(rank)).collect(),
        Wish::Split { .. } | Wish::Grow { .. } => (0..parent.world).collect(),
    };
    let entry = segment.entry(own, turn);
    let (color, key) = match wish {
        Wish::Split { color, key } => (color.unwrap_or(u32::MAX), *key),
        Wish::Shrink { .. } | Wish::Grow { .. } => (0, 0),
    };
    entry.color.store(color, Ordering::SeqCst);
    entry.key.store(key, Ordering::SeqCst);
    if let Wish::Grow { id: Some(id), .. } = wish {
        put_id(entry, turn, id);
    }
    entry.turn.store(turn, Ordering::SeqCst);
    others.iter().for_each(|rank| segment.ring(*rank));
    let said = |rank: &usize| segment.entry(*rank, turn).turn.load(Ordering::SeqCst) == turn;
    // A parent that was revoked has stopped, and its ranks still meet; only its end ends this wait.
    segment.wait(own, || others.iter().all(said) || parent.has_ended());
    if !others.iter().all(said) {
        return Err(Failure::usage("the communicator ended while another was made from it"));
    }
    if color == u32::MAX {
        return Ok(None);
    }
    let mut members: Vec<(u32, usize)> = Vec::new();
    for rank in others {
        let entry = segment.entry(rank, turn);
        if entry.color.load(Ordering::SeqCst) == color {
            members.push((entry.key.load(Ordering::SeqCst), rank));
        }
    }
    members.sort_unstable();
    let ranks: Vec<usize> = members.into_iter().map(|(_, rank)| rank).collect();
    let place = ranks.iter().position(|rank| *rank == own).expect("it has its own color");
    let world = match wish {
        Wish::Grow { world, .. } => *world,
        Wish::Split { .. } | Wish::Shrink { .. } => ranks.len(),
    };
    if place == 0 && !matches!(wish, Wish::Grow { .. }) {
        put_id(entry, turn, &make_id()?);
        ranks.iter().for_each(|rank| segment.ring(*rank));
    }
    Ok(Some((place, world, await_id(parent, turn, &ranks)?)))
}

fn put_id(entry: &Entry, turn: u64, id: &ncclUniqueId) {
    let bytes = id.internal.map(|byte| byte as u8);
    for (cell, word) in entry.id.iter().zip(bytes.chunks_exact(8)) {
        cell.store(u64::from_ne_bytes(word.try_into().expect("eight bytes")), Ordering::SeqCst);
    }
    entry.id_turn.store(turn, Ordering::SeqCst);
}

/// *Blocks* until one of `ranks` has named the meeting place, or the parent ends.
fn await_id(parent: &Communicator, turn: u64, ranks: &[usize]) -> Result<ncclUniqueId, Failure> {
    let (segment, mut found) = (parent.segment()?, None);
    segment.wait(parent.rank, || {
        let entries = ranks.iter().map(|rank| segment.entry(*rank, turn));
        found = entries.into_iter().find(|entry| entry.id_turn.load(Ordering::SeqCst) == turn);
        found.is_some() || parent.has_ended()
    });
    let ended = || Failure::usage("the communicator ended while another was made from it");
    let entry = found.ok_or_else(ended)?;
    let mut id = ncclUniqueId { internal: [0; 128] };
    for (at, cell) in entry.id.iter().enumerate() {
        for (offset, byte) in cell.load(Ordering::SeqCst).to_ne_bytes().into_iter().enumerate() {
            id.internal[at * 8 + offset] = byte as _;
        }
    }
    Ok(id)
}
