//! How the roots of a host's ranks become the roots of the host, for steps of one count.
//!
//! A *host root* is one of the largest subtrees of the step's tree inside the host's range, and so a sum of whole roots of
//! its ranks. Host root `j` is folded into slot `j` of the leader. That is safe in place when the host roots are folded
//! in order: the leader has the lowest ranks' micro-batches, each host root holds at least one root, so the leader's root
//! `j` belongs to a host root no later than `j` and has been read when slot `j` is written. It does not know what the
//! slots hold.

use crate::{Reduce, SumOrder, rank_roots};
use dtrain_types::MicroRange;
use std::ops::Range;

/// One host root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootFold {
    /// How its leaves are added; numbered from 0.
    pub order: SumOrder,
    /// Where its leaves start in the arena.
    pub starts: Vec<usize>,
    /// Which of the host's leaves they are.
    pub leaves: Range<usize>,
    /// Where the leader's slot for it starts.
    pub out: usize,
}

impl RootFold {
    /// Whether the only leaf lies where the host root belongs.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.starts == [self.out]
    }
}

/// The fold of one host for steps of one count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlan {
    /// The host roots, in the order in which they are folded.
    pub folds: Vec<RootFold>,
    /// The leaves of the host: local rank and root.
    pub leaves: Vec<(usize, usize)>,
}

/// The micro-batches of all ranks of a host. *Panics* if it has none.
#[must_use]
pub fn host_range(ranges: &[MicroRange]) -> MicroRange {
    let (first, last) = (ranges.first().expect("a host has ranks"), ranges.last().expect("a host has ranks"));
    MicroRange { lo: first.lo, hi: last.hi }
}

impl HostPlan {
    /// Plans for a host whose ranks have `ranges`; `slot` tells where a slot of a local rank starts in the arena.
    ///
    /// *Order*: exact: that of the tree inside each host root. Ring: by rank, as one host root.
    #[must_use]
    pub fn new(
        ranges: &[MicroRange],
        count: u32,
        mode: Reduce,
        slot: impl Fn(usize, usize) -> usize,
    ) -> Self {
        let (mut leaves, mut roots) = (Vec::new(), Vec::new());
        for (rank, range) in ranges.iter().enumerate() {
            for (index, root) in rank_roots(*range, count, mode).into_iter().enumerate() {
                leaves.push((rank, index));
                roots.push(root);
            }
        }
        let (mut folds, mut first) = (Vec::new(), 0);
        for (index, host_root) in rank_roots(host_range(ranges), count, mode).into_iter().enumerate() {
            let inside = roots[first..].iter().take_while(|root| root.hi <= host_root.hi).count();
            let mine = first..first + inside;
            // A subtree looks like the whole tree over as many leaves.
            let moved: Vec<MicroRange> = roots[mine.clone()]
                .iter()
                .map(|root| MicroRange { lo: root.lo - host_root.lo, hi: root.hi - host_root.lo })
                .collect();
            let order = match mode {
                Reduce::Exact => SumOrder::tree(&moved, host_root.len()),
                Reduce::Ring => SumOrder::in_turn(0..inside),
            };
            let starts = leaves[mine.clone()].iter().map(|(rank, root)| slot(*rank, *root)).collect();
            folds.push(RootFold { order, starts, leaves: mine, out: slot(0, index) });
            first += inside;
        }
        Self { folds, leaves }
    }

    /// How many roots a local rank has.
    #[must_use]
    pub fn roots_of(&self, rank: usize) -> usize {
        self.leaves.iter().filter(|(owner, _)| *owner == rank).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every cut of `0..count` into ranges for three ranks, any of which may be empty, beginning at `lo`.
    fn cuts(lo: u32, hi: u32) -> impl Iterator<Item = [MicroRange; 3]> {
        let pairs = (lo..=hi).flat_map(move |a| (a..=hi).map(move |b| (a, b)));
        pairs.map(move |(a, b)| [(lo, a), (a, b), (b, hi)].map(|(lo, hi)| MicroRange { lo, hi }))
    }

    #[test]
    fn folding_in_order_never_overwrites_a_leaf_that_is_still_to_be_read() {
        for count in 1..=12 {
            for lo in 0..=count {
                for ranges in (lo..=count + 1).flat_map(|hi| cuts(lo, hi)) {
                    let plan = HostPlan::new(&ranges, count, Reduce::Exact, |rank, slot| rank * 100 + slot);
                    for (at, fold) in plan.folds.iter().enumerate() {
                        let later = plan.folds[at + 1..].iter().flat_map(|fold| &fold.starts);
                        assert!(later.clone().all(|start| *start != fold.out), "{ranges:?} of {count}");
                    }
                    let read: usize = plan.folds.iter().map(|fold| fold.starts.len()).sum();
                    assert_eq!(
                        read,
                        plan.leaves.len(),
                        "{ranges:?} of {count}: every leaf is in one host root"
                    );
                }
            }
        }
    }

    #[test]
    fn a_host_whose_ranks_share_a_subtree_has_one_root() {
        let ranges = [(8, 10), (10, 13), (13, 16)].map(|(lo, hi)| MicroRange { lo, hi });
        let plan = HostPlan::new(&ranges, 16, Reduce::Exact, |rank, slot| rank * 10 + slot);
        assert_eq!(plan.folds.len(), 1);
        assert_eq!(plan.folds[0].starts, [0, 10, 11, 20, 21]);
        let alone = HostPlan::new(&ranges[..1], 16, Reduce::Exact, |rank, slot| rank * 10 + slot);
        assert!(alone.folds[0].is_in_place());
    }
}
