//! What one call of the add kernel works on.

use dtrain_types::Wire;

/// One chunk's work. Offsets count floats from `base`.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    /// The start of the arena.
    pub base: *mut f32,
    /// Where each leaf starts.
    pub leaves: &'a [usize],
    /// Where each destination starts.
    pub outs: &'a [usize],
    /// Elements of the chunk: the first, and how many.
    pub at: usize,
    /// How many elements.
    pub len: usize,
    /// What every sum is rounded to.
    pub wire: Wire,
}

impl Pass<'_> {
    /// Whether sums may stay in registers. Rounded ones save bytes between hosts; in memory there is nothing to win.
    pub fn is_plain(&self) -> bool {
        self.wire == Wire::F32
    }
}
