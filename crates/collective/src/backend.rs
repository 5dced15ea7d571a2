//! The seam for whole collectives: what a rank asks for, and how it is stopped.
//!
//! This file does not know how a collective is done; shared memory, frames and device libraries each implement it.

use crate::{Arena, CollectiveError, DeviceSlot, Narrow, Op, Sequence};
use dtrain_types::Trailer;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Runs the collectives of one rank in one generation.
///
/// One that rounds sums (`Wire`) rounds those of a reduction, each where it is made, and expects roots whose every node was
/// rounded as well, a root of one micro-batch too. What only moves keeps its bits.
///
/// Use it in this order: `prepare` once; then, for each collective, fill leased slots, `start`, `finish`, read leased
/// slots. After any error it is dead.
pub trait Backend: Send {
    /// Plans steps of these counts, so that no step allocates. *Panics* if a count is 0 or not covered by the ranges.
    fn prepare(&mut self, counts: &[u32]);

    /// The gradient buffers; what was offered of them must not be touched. *Panics* between `start` and `finish` and on a
    /// dead backend: peers may be writing there.
    fn arena(&mut self) -> &mut dyn Arena;

    /// What the last all-reduce came to. *Shape* (`[geometry.len]`).
    ///
    /// It lies in slot 0 of this rank, unless the ranks of a host have it in common: then nobody leases slot 0 before all have read
    /// what they need of it, which they tell one another by a later barrier. *Panics* as [`Backend::arena`].
    fn reduced(&mut self) -> &[f32] {
        self.arena().lease(0)
    }

    /// The same after a collective broke off, for whoever knows that this rank has begun none since that sum which writes to slot 0, but such that ended;
    /// and nobody else writes there. None where slots are memory of a device. *Shape* and order as there.
    fn reduced_before(&mut self) -> Option<&[f32]> {
        None
    }

    /// Slot 0, where it is memory of a device and whoever has it may work on it there.
    fn device_slot(&mut self) -> Option<&mut dyn DeviceSlot> {
        None
    }

    /// Says what ranks need of sums and of what is gathered ([`Take::Needed`](crate::Take::Needed)), and what they have in an all-gather of the
    /// rest ([`Take::Rest`](crate::Take::Rest)): from now on the rest of slot 0 is undefined after a sum, and need not travel. The same on all
    /// ranks, between collectives; for sums before the first one. It may be ignored.
    fn narrow(&mut self, narrow: &Narrow) {
        let _ = narrow;
    }

    /// Whether it does anything with what it is offered. The same on all ranks.
    fn takes_offers(&self) -> bool {
        false
    }

    /// Puts in a part of the next all-reduce ahead of its start: the roots of this rank are final from element `from` on, so
    /// that part may be sent while the rest is computed. It belongs to the collective from now on; the part before it is
    /// still to be leased. Later calls offer more; `start` gives the rest. A rank need not offer what others do.
    ///
    /// What goes wrong is told by `start`: until then the part before `from` can still be leased, by a pass that is not over.
    ///
    /// *Order*: none of the sums depends on it. *Panics* if another sum was begun, if `seq` does not rise, or if the count was not
    /// prepared.
    fn offer(&mut self, seq: Sequence, micro_batches: u32, from: usize) {
        let _ = (seq, micro_batches, from);
    }

    /// Begins a collective; the slots belong to it until `finish`.
    ///
    /// *Errors*: as `finish`. *Panics* if one is in progress, if `seq` does not rise, if the count was not prepared
    /// or if the trailers are not one per root: all of these are bugs.
    fn start(&mut self, seq: Sequence, op: &Op<'_>) -> Result<(), CollectiveError>;

    /// Completes the collective; gives the reduced trailer, or [`Trailer::EMPTY`] where nothing is reduced.
    ///
    /// *Blocks* until every rank has put in its part, or the backend is aborted. *Errors*: whatever a peer can cause.
    fn finish(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError>;

    /// A handle that ends every present and later wait of this backend.
    fn aborter(&self) -> Aborter;

    /// What it is, for the log: `shared memory, exact, rank 1 of 4`.
    fn describe(&self) -> String;
}

/// What an [`Aborter`] does at its backend.
pub trait Abort: Send + Sync {
    /// Makes every waiting and later call return `Aborted`. The first reason stays.
    fn abort(&self, reason: &str);
}

/// Stops a backend from any thread. It does not keep the backend alive.
#[derive(Clone)]
pub struct Aborter(Arc<dyn Abort>);

impl Aborter {
    /// Wraps a backend's own way to stop.
    #[must_use]
    pub fn new(target: Arc<dyn Abort>) -> Self {
        Self(target)
    }

    /// Ends every wait of the backend; later calls return [`CollectiveError::Aborted`]. The first reason stays.
    pub fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }
}

impl fmt::Debug for Aborter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Aborter")
    }
}

/// The part of an abort that all backends share: set once, with its reason.
#[derive(Debug, Default)]
pub struct AbortFlag(OnceLock<String>);

impl AbortFlag {
    /// Sets it; the first reason stays.
    pub fn set(&self, reason: &str) {
        let _already_set = self.0.set(reason.to_owned());
    }

    /// *Errors*: [`CollectiveError::Aborted`] once it is set.
    #[inline]
    pub fn check(&self) -> Result<(), CollectiveError> {
        match self.0.get() {
            None => Ok(()),
            Some(reason) => Err(CollectiveError::Aborted { reason: reason.clone() }),
        }
    }
}
