//! What tiles read: sixteen rows of `A`, or columns of `B`, by the thirty-two terms of a step.
//!
//! Two terms that follow one another are one word, the earlier one below. A unit of `A` has a row's words side by side, a unit of `B` the
//! words of all its columns for one pair of terms. Units of the same rows or columns lie one step behind the other. What is missing to a
//! whole unit is zero.
//!
//! This file does not know where the numbers come from.

/// Rows or columns of a unit, and its pairs of terms.
pub(in crate::cpu) const SIDE: usize = 16;
/// Terms of a step.
pub(in crate::cpu) const STEP: usize = 2 * SIDE;
/// Words of a unit.
pub(in crate::cpu) const UNIT: usize = SIDE * SIDE;

/// Words of units for so many rows or columns and terms.
pub(in crate::cpu) fn units_len(lanes: usize, terms: usize) -> usize {
    lanes.div_ceil(SIDE) * terms.div_ceil(STEP) * UNIT
}

/// Which words of a unit are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Those of a row, as `A` has it.
    OfLane,
    /// Those of a pair of terms, as `B` has it.
    OfPair,
}

/// The words of memory that is kept as floats.
pub(super) fn as_words(floats: &[f32]) -> &[u32] {
    // SAFETY: both have four bytes, and any of them are a word.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len()) }
}

/// The same to write.
pub(super) fn as_words_mut(floats: &mut [f32]) -> &mut [u32] {
    // SAFETY: as above, and any word is a float.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), floats.len()) }
}
