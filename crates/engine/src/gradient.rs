//! What a pass computes, and where it writes the gradient.
//!
//! It does not know what a replica is, nor what becomes of a gradient.

use dtrain_types::{DeviceMemory, MicroBatch, MicroRange, Step, Wire};
use std::ops::Range;

/// Micro-batches of a step that follow one another, whose gradients a replica computes as one sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBatchGroup {
    /// The step.
    pub step: Step,
    /// At least one, at most [`About::group`](crate::About::group).
    pub micro_batches: MicroRange,
    /// What every node of the sum is rounded to.
    pub wire: Wire,
}

impl MicroBatchGroup {
    /// One micro-batch alone, whose gradient is not rounded.
    #[must_use]
    pub fn of_one(step: Step, micro_batch: MicroBatch) -> Self {
        let micro_batches = MicroRange { lo: micro_batch.0, hi: micro_batch.0 + 1 };
        Self { step, micro_batches, wire: Wire::F32 }
    }

    /// The first micro-batch.
    #[must_use]
    pub fn first(&self) -> MicroBatch {
        MicroBatch(self.micro_batches.lo)
    }
}

/// Where a replica writes a gradient: memory of the host that is lent part by part, and given away as soon as it is final. Another program may tell
/// that on a thread of its own.
pub trait Gradient: Send {
    /// Elements.
    fn elements(&self) -> usize;

    /// A part of it, to write: none of what was settled. *Panics* if there is no such part.
    fn part(&mut self, part: Range<usize>) -> &mut [f32];

    /// Memory of the replica's device in which a part is to be written, and where in it, if that is where it goes; the work that writes it there is
    /// given before the part is settled. *Panics* as [`Gradient::part`].
    fn part_there(&mut self, part: Range<usize>) -> Option<(DeviceMemory, Range<usize>)> {
        let _ = part;
        None
    }

    /// Notes that everything from element `from` on is final. It is told so from the end to the start, as the backward pass
    /// goes, and in any number of pieces.
    fn settle(&mut self, from: usize) {
        let _ = from;
    }

    /// Notes that the loss is there, and the gradient of the outputs; what follows is the backward pass. A replica that computes
    /// elsewhere need not tell.
    fn backward_begins(&mut self) {}
}

/// Memory of the caller's own waits for the whole.
impl<T: AsRef<[f32]> + AsMut<[f32]> + Send> Gradient for T {
    fn elements(&self) -> usize {
        self.as_ref().len()
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        &mut self.as_mut()[part]
    }
}
