//! Where a rank stands in its world, and how a frame is refused that no schedule of it contains.

use crate::{CollectiveError, Frame};

/// What an algorithm must know of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub rank: usize,
    pub world: usize,
    /// Floats in a segment.
    pub segment: usize,
}

/// The error for a frame that no schedule contains.
pub(crate) fn foreign(frame: &Frame<'_>, why: &'static str) -> CollectiveError {
    CollectiveError::Foreign { from: frame.from, tag: frame.header.tag, why }
}
