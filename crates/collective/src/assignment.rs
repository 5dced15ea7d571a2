//! Who takes part in a generation, and who computes what.
//!
//! Assignment and ranges are one value: a rank that knows one of them knows both, and any change makes a new
//! generation. This file does not know how a membership was agreed on.

use crate::CollectiveError;
use dtrain_types::{Generation, MicroRange, Rank, WorldSize};

/// One rank's view of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The generation that every frame and every barrier is stamped with.
    pub generation: Generation,
    /// This rank.
    pub rank: Rank,
    /// The micro-batches of each rank, by rank; a hot spare has an empty range.
    pub ranges: Vec<MicroRange>,
}

impl Assignment {
    /// How many ranks take part.
    #[must_use]
    pub fn world(&self) -> WorldSize {
        WorldSize(self.ranges.len() as u32)
    }

    /// The micro-batches of this rank.
    ///
    /// *Panics* if the rank is outside the world, which [`Assignment::check`] refuses.
    #[must_use]
    pub fn range(&self) -> MicroRange {
        self.ranges[self.rank.index()]
    }

    /// Tells whether this is a membership at all: the rank is in the world and the ranges follow on one another.
    ///
    /// *Errors*: [`CollectiveError::Assignment`] with the first rank at which it is not.
    pub fn check(&self) -> Result<(), CollectiveError> {
        let world = self.world();
        let wrong = |rank: usize, what| CollectiveError::Assignment { rank: Rank(rank as u32), world, what };
        if self.rank.index() >= self.ranges.len() {
            return Err(wrong(self.rank.index(), "is outside the world"));
        }
        let mut next = 0;
        for (rank, range) in self.ranges.iter().enumerate() {
            if range.lo != next || range.hi < range.lo {
                return Err(wrong(rank, "has a range that does not start where the one before it ends"));
            }
            next = range.hi;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::cut_evenly;

    #[test]
    fn a_membership_with_a_gap_or_a_foreign_rank_is_refused() {
        let good = Assignment { generation: Generation(3), rank: Rank(1), ranges: cut_evenly(5, 3) };
        assert_eq!(good.check(), Ok(()));
        let outside = Assignment { rank: Rank(3), ..good.clone() };
        assert!(matches!(outside.check(), Err(CollectiveError::Assignment { rank: Rank(3), .. })));
        let mut gap = good;
        gap.ranges[1].lo += 1;
        assert!(matches!(gap.check(), Err(CollectiveError::Assignment { rank: Rank(1), .. })));
    }
}
