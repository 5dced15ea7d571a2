//! How many gradient buffers a rank needs, and which is which.
//!
//! The i-th root of a rank ends in slot `i`. While a root is being merged, its pending subtree `k >= 1` lies in slot
//! `root_slots + k - 1`. The reduced gradient appears in slot 0 of every rank. All ranks of a generation have one
//! geometry, because on one host each of them finds its way in the buffers of the others.

use crate::Mode;
use dtrain_types::{Merger, MicroRange, roots};

/// The gradient buffers of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length of a gradient buffer. *Units*: `f32` elements.
    pub len: usize,
    /// Slots for finished roots, at least 1: the result needs one even on a spare.
    pub root_slots: usize,
    /// Slots for the pending subtrees of the root that is being merged.
    pub scratch_slots: usize,
}

impl Geometry {
    /// The least geometry with which every rank can do every step of `counts` micro-batches.
    ///
    /// In ring mode a rank's whole range is one root.
    #[must_use]
    pub fn plan(len: usize, ranges: &[MicroRange], counts: &[u32], mode: Mode) -> Self {
        let (mut root_slots, mut scratch_slots) = (1, 0);
        for &count in counts {
            for range in ranges {
                let roots = rank_roots(*range, count, mode);
                root_slots = root_slots.max(roots.len());
                let merging = roots.iter().map(|root| Merger::buffers(root.len())).max().unwrap_or(0);
                scratch_slots = scratch_slots.max(merging.saturating_sub(1));
            }
        }
        Self { len, root_slots, scratch_slots }
    }

    /// All slots of a rank.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.root_slots + self.scratch_slots
    }

    /// The slot of the pending subtree `pending` (as `Merger` numbers them) of the root with index `root`.
    #[must_use]
    pub fn slot(&self, root: usize, pending: usize) -> usize {
        if pending == 0 { root } else { self.root_slots + pending - 1 }
    }
}

/// What a rank with `range` contributes to a step of `count` micro-batches, left to right.
///
/// *Order*: in exact mode the largest subtrees of the step's tree inside the range; in ring mode the part of the
/// range that exists in this step, as one.
#[must_use]
pub fn rank_roots(range: MicroRange, count: u32, mode: Mode) -> Vec<MicroRange> {
    match mode {
        Mode::Exact => roots(range, count),
        Mode::Ring => {
            let whole = MicroRange { lo: range.lo.min(count), hi: range.hi.min(count) };
            if whole.is_empty() { Vec::new() } else { vec![whole] }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::cut_evenly;

    #[test]
    fn an_aligned_range_needs_one_root_and_a_skewed_one_more() {
        let aligned = Geometry::plan(8, &cut_evenly(8, 2), &[8], Mode::Exact);
        assert_eq!((aligned.root_slots, aligned.scratch_slots), (1, 2));
        let ranges = [MicroRange { lo: 0, hi: 3 }, MicroRange { lo: 3, hi: 8 }];
        let skewed = Geometry::plan(8, &ranges, &[8], Mode::Exact);
        assert_eq!((skewed.root_slots, skewed.scratch_slots), (2, 2));
        assert_eq!(Geometry::plan(8, &ranges, &[8], Mode::Ring).root_slots, 1);
    }

    #[test]
    fn a_merger_never_leaves_the_slots_of_the_geometry() {
        for world in 1..=9 {
            for count in 1..=40 {
                let ranges = cut_evenly(count, world);
                for short in 1..=count {
                    for mode in [Mode::Exact, Mode::Ring] {
                        let geometry = Geometry::plan(1, &ranges, &[count, short], mode);
                        for range in &ranges {
                            for (index, root) in rank_roots(*range, short, mode).iter().enumerate() {
                                let mut merger = Merger::default();
                                for _ in 0..root.len() {
                                    assert!(geometry.slot(index, merger.next_buffer()) < geometry.slots());
                                    merger.push(|_, _| ());
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
