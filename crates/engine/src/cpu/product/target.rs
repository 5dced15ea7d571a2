//! Where the elements of a product go, and what is done to them there.

use crate::device::{Activation, Write};

/// What is added to a product once its sums are whole.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Finish<'a> {
    /// One for each column; empty for none.
    pub(in crate::cpu) bias: &'a [f32],
    /// Applied last.
    pub(in crate::cpu) activation: Activation,
}

impl Finish<'_> {
    /// Nothing is added.
    pub(in crate::cpu) const NONE: Self = Self { bias: &[], activation: Activation::None };
}

/// Where the elements of a result lie: `(r, c)` at `r * row + c * column`.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Target {
    /// The first element.
    pub(in crate::cpu) c: *mut f32,
    /// Elements from one row to the next.
    pub(in crate::cpu) row: usize,
    /// Elements from one column to the next.
    pub(in crate::cpu) column: usize,
    /// Overwrite or add.
    pub(in crate::cpu) write: Write,
}

// SAFETY: it is a pointer with strides; whoever writes through it vouches that no other task writes there.
unsafe impl Send for Target {}

// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    /// The same, starting `by` elements later.
    pub(in crate::cpu) fn shifted(self, by: usize) -> Self {
        Self { c: self.c.wrapping_add(by), ..self }
    }
}
