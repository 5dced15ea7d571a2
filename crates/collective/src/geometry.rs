//! How many gradient buffers a rank needs, and which is which.
//!
//! The i-th root of a rank ends in slot `i`. While a root is being merged, its pending subtree `k >= 1` lies in slot
//! `root_slots + k - 1`. The reduced gradient appears in slot 0 of every rank. All ranks of a generation have one
//! geometry, because on one host each of them finds its way in the buffers of the others.

use crate::Reduce;
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
    pub fn plan(len: usize, ranges: &[MicroRange], counts: &[u32], mode: Reduce) -> Self {
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

    /// The geometry of ranks that have no sum made: a slot by which they exchange floats.
    #[must_use]
    pub fn without_sums(len: usize) -> Self {
        Self { len, root_slots: 1, scratch_slots: 0 }
    }

    /// A geometry with which a rank can take any contiguous range of steps of up to `micro_batches`, in a world of any
    /// size, cut evenly or not: for memory that outlives a generation, because the next one cuts anew.
    ///
    /// It has more slots than most generations use. In a shared arena (a memfd) and in zeroed memory of this process an
    /// unused slot costs address space only: no page of it is ever touched.
    ///
    /// *Source*: at most `2 ceil(log2 n)` subtrees make up a range of a binary tree over `n` leaves; this counts them
    /// exactly. A shorter step never needs more, because its tree is the same one without the absent leaves.
    #[must_use]
    pub fn bound(len: usize, micro_batches: u32, mode: Reduce) -> Self {
        let root_slots = match mode {
            Reduce::Exact => Most::roots_over(micro_batches).range,
            Reduce::Ring => 1,
        };
        let scratch_slots = Merger::buffers(micro_batches).saturating_sub(1);
        Self { len, root_slots: root_slots.max(1), scratch_slots }
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

/// The most roots that a part of one tree can have, by kind of part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Most {
    /// Any range.
    range: usize,
    /// A range that ends where the tree ends and is not all of it; 0 if there is none.
    suffix: usize,
    /// A range that begins where the tree begins and is not all of it; 0 if there is none.
    prefix: usize,
}

impl Most {
    /// For the tree over `leaves` leaves.
    fn roots_over(leaves: u32) -> Self {
        if leaves < 2 {
            return Self { range: leaves as usize, suffix: 0, prefix: 0 };
        }
        let half = leaves.next_power_of_two() / 2;
        let left = Self::roots_over(half);
        let right = if leaves == 2 * half { left } else { Self::roots_over(leaves - half) };
        // A range across the middle is a suffix of the left subtree and a prefix of the right one, either of which may
        // be whole (one root), but not both: that would be one root in all.
        let across = (left.suffix.max(1) + right.prefix).max(left.suffix + right.prefix.max(1));
        Self {
            range: across.max(left.range).max(right.range),
            suffix: (left.suffix + 1).max(right.suffix),
            prefix: (right.prefix + 1).max(left.prefix),
        }
    }
}

/// What a rank with `range` contributes to a step of `count` micro-batches, left to right.
///
/// *Order*: in exact mode the largest subtrees of the step's tree inside the range; in ring mode the part of the
/// range that exists in this step, as one.
#[must_use]
pub fn rank_roots(range: MicroRange, count: u32, mode: Reduce) -> Vec<MicroRange> {
    match mode {
        Reduce::Exact => roots(range, count),
        Reduce::Ring => {
            let whole = range.within(count);
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
        let aligned = Geometry::plan(8, &cut_evenly(8, 2), &[8], Reduce::Exact);
        assert_eq!((aligned.root_slots, aligned.scratch_slots), (1, 2));
        let ranges = [MicroRange { lo: 0, hi: 3 }, MicroRange { lo: 3, hi: 8 }];
        let skewed = Geometry::plan(8, &ranges, &[8], Reduce::Exact);
        assert_eq!((skewed.root_slots, skewed.scratch_slots), (2, 2));
        assert_eq!(Geometry::plan(8, &ranges, &[8], Reduce::Ring).root_slots, 1);
    }

    #[test]
    fn a_merger_never_leaves_the_slots_of_the_geometry() {
        for world in 1..=9 {
            for count in 1..=40 {
                let ranges = cut_evenly(count, world);
                for short in 1..=count {
                    for mode in [Reduce::Exact, Reduce::Ring] {
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

    #[test]
    fn the_bound_is_what_the_worst_range_of_any_step_needs() {
        for full in 1..=40u32 {
            for mode in [Reduce::Exact, Reduce::Ring] {
                let bound = Geometry::bound(7, full, mode);
                let mut worst = Geometry { len: 7, root_slots: 1, scratch_slots: 0 };
                for (lo, hi) in (0..=full).flat_map(|lo| (lo..=full).map(move |hi| (lo, hi))) {
                    for count in 1..=full {
                        let needed = Geometry::plan(7, &[MicroRange { lo, hi }], &[count], mode);
                        worst.root_slots = worst.root_slots.max(needed.root_slots);
                        worst.scratch_slots = worst.scratch_slots.max(needed.scratch_slots);
                    }
                }
                assert_eq!(bound, worst, "{full} micro-batches, {mode:?}");
                assert!(bound.root_slots <= 2 * full.next_power_of_two().ilog2().max(1) as usize);
            }
        }
    }

    #[test]
    fn the_bound_of_a_step_of_four_thousand_micro_batches_is_small() {
        let bound = Geometry::bound(1, 4_096, Reduce::Exact);
        assert_eq!((bound.root_slots, bound.scratch_slots), (22, 12));
    }
}
