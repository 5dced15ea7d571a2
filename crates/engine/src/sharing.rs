//! The seam for replicas of one host that share a state: each updates its part of it, in place.
//!
//! Parameters and moments are there once. Each replica measures its share of the reduced gradient, and all of them know from that
//! what the update comes to; then it may begin. How it goes on, and what becomes of it when a replica is lost, is `shared_update.rs`;
//! what lies where, `shared_memory.rs`. This file does not know memory.

use crate::error::EngineError;
use crate::update_info::UpdateInfo;
use dtrain_types::Step;
use std::ops::Range;

/// Floats that carry an f64, what one replica tells others of its share: half of its bits each.
pub(crate) const WORDS: usize = 2;

/// Which share of a gradient and of its update a replica does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateShare {
    /// Its place among the replicas.
    pub index: usize,
    /// How many they are.
    pub of: usize,
}

impl UpdateShare {
    /// Its part of so many elements: even but for one block of `block` elements. All shares make the whole, and none overlap.
    #[must_use]
    pub fn part(&self, len: usize, block: usize) -> Range<usize> {
        let blocks = len.div_ceil(block);
        let cut = |index: usize| (blocks * index / self.of * block).min(len);
        cut(self.index)..cut(self.index + 1)
    }
}

/// A replica whose state is, or will be, in memory that it shares with others.
pub trait Sharing {
    /// Lays out the state that it has for all others. One of them does so, while none goes on with another one.
    fn publish(&mut self);

    /// Has the state of so many updates from now on, and tells whether it is there. What it had of its own is given up.
    fn adopt(&mut self, applied: Step) -> bool;

    /// Looks at its share of the gradient of update number `step`, and changes nothing of the state.
    ///
    /// *Panics* as `Replica::update`.
    fn measure(&mut self, step: Step, gradient: &[f32], weight: f64, samples: u64, share: UpdateShare);

    /// Says what the update comes to that was measured, and changes nothing. Every replica must have measured its share; then all say
    /// the same, whenever they are asked until the next update is measured.
    ///
    /// *Errors*: as `Replica::update`.
    fn settle(&mut self) -> Result<UpdateInfo, EngineError>;

    /// Does its share of the update that was settled, with the same gradient, and tells whether it did: not if the state was closed
    /// before any share of it began. Every replica must have measured its share.
    ///
    /// *Order*: the bits are those of one replica that does all of it.
    fn update_share(&mut self, gradient: &[f32]) -> bool;

    /// Turns to the state after this update. *Panics* if it is not the next one. Every replica must have done its share.
    fn commit(&mut self, step: Step);

    /// Sees to it that no update begins any more. `Replica::applied` then tells how many are decided.
    fn close(&mut self);

    /// Does what was left of the last update that was decided, whose gradient this is, and opens the state again. One replica does
    /// so, while no other one reads or writes it.
    ///
    /// *Errors*: as `Replica::update`; what was decided has none.
    fn complete(&mut self, gradient: &[f32]) -> Result<(), EngineError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_make_the_whole_whatever_their_number() {
        for of in [1, 2, 3, 5, 8, 100] {
            for len in [0, 1, 4_095, 4_096, 4_097, 10_000, 1_000_003] {
                for block in [8, 256, 4_096] {
                    let mut next = 0;
                    for index in 0..of {
                        let part = UpdateShare { index, of }.part(len, block);
                        assert!(part.start == next && part.end >= part.start, "{part:?} of {len}");
                        assert!(part.len() <= len.div_ceil(of) + 2 * block);
                        next = part.end;
                    }
                    assert_eq!(next, len, "{of} shares");
                }
            }
        }
    }
}
