//! Room for a picture while it is varied: one for each thread that reads, so that nothing is allocated for each sample.

use super::resample::Resampler;
use std::cell::RefCell;

/// What was in it before is of no use.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub resampler: Resampler,
    pub plane: Vec<f32>,
}

impl Scratch {
    /// Makes room for pictures from some sides to others, whatever part of them is drawn.
    pub fn make_room(&mut self, from: [usize; 2], to: [usize; 2]) {
        self.resampler.make_room(from, to);
        self.plane.clear();
        self.plane.reserve(to[0] * to[1]);
    }
}

/// Lends this thread's.
pub(super) fn with<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());
    SCRATCH.with_borrow_mut(work)
}
