//! Everything about a step's sums that follows from the membership and the count of micro-batches alone.
//!
//! Made by `prepare`, before the first step of a generation, so that a step only looks it up.

use crate::{Assignment, Reduce, SumOrder, rank_roots};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The contributions to a step of one count, and the orders in which this rank adds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountPlan {
    leaves: Vec<Range<usize>>,
    data: SumOrder,
    trailers: SumOrder,
}

impl CountPlan {
    /// Plans a step of `count` micro-batches for `membership`.
    ///
    /// *Order*: exact: the reduction tree for data and trailers. Ring: chunk `c` is summed around the ring from rank
    /// `c + 1` to rank `c`, the trailers by rank. *Panics* if `count` is 0 or the ranges do not cover it.
    #[must_use]
    pub fn new(membership: &Assignment, mode: Reduce, count: u32) -> Self {
        let covered = membership.ranges.last().map_or(0, |range| range.hi);
        assert!((1..=covered).contains(&count), "a step has 1 to {covered} micro-batches, not {count}");
        let (mut leaves, mut all) = (Vec::new(), Vec::new());
        for range in &membership.ranges {
            let first = all.len();
            all.extend(rank_roots(*range, count, mode));
            leaves.push(first..all.len());
        }
        let (data, trailers) = match mode {
            Reduce::Exact => (SumOrder::tree(&all, count), SumOrder::tree(&all, count)),
            Reduce::Ring => {
                let (world, own) = (leaves.len(), membership.rank.index());
                let around = (1..=world).flat_map(|step| leaves[(own + step) % world].clone());
                (SumOrder::in_turn(around), SumOrder::in_turn(0..all.len()))
            }
        };
        Self { leaves, data, trailers }
    }

    /// The leaves that a rank contributes; empty for a rank with no micro-batch in such a step.
    #[must_use]
    #[inline]
    pub fn leaves_of(&self, rank: usize) -> Range<usize> {
        self.leaves[rank].clone()
    }

    /// The place of a peer's leaf among the leaves that `rank` must be sent: all but its own, in order. `None` for its own.
    #[must_use]
    pub fn staged(&self, leaf: usize, rank: usize) -> Option<usize> {
        let own = self.leaves_of(rank);
        match leaf {
            before if before < own.start => Some(before),
            inside if inside < own.end => None,
            behind => Some(behind - own.len()),
        }
    }

    /// All leaves of the step.
    #[must_use]
    pub fn leaf_count(&self) -> usize {
        self.leaves.last().map_or(0, |last| last.end)
    }

    /// The order of the sum in the chunk that this rank owns.
    #[must_use]
    #[inline]
    pub fn data_order(&self) -> &SumOrder {
        &self.data
    }

    /// The order of the trailers.
    #[must_use]
    #[inline]
    pub fn trailer_order(&self) -> &SumOrder {
        &self.trailers
    }
}

/// The plans of all counts that a generation's steps have.
#[derive(Clone, Debug)]
pub struct Plans {
    membership: Assignment,
    mode: Reduce,
    by_count: BTreeMap<u32, Arc<CountPlan>>,
}

impl Plans {
    /// No plan yet.
    #[must_use]
    pub fn new(membership: Assignment, mode: Reduce) -> Self {
        Self { membership, mode, by_count: BTreeMap::new() }
    }

    /// Adds the plans for `counts`. *Panics* as [`CountPlan::new`].
    pub fn prepare(&mut self, counts: &[u32]) {
        for &count in counts {
            let plan = || Arc::new(CountPlan::new(&self.membership, self.mode, count));
            self.by_count.entry(count).or_insert_with(plan);
        }
    }

    /// The plan for a step of `count` micro-batches. *Panics* if it was not prepared: planning in a step would
    /// allocate there, unseen.
    #[must_use]
    #[inline]
    pub fn get(&self, count: u32) -> &Arc<CountPlan> {
        self.by_count
            .get(&count)
            .unwrap_or_else(|| panic!("steps of {count} micro-batches were not prepared"))
    }

    /// All plans, by count.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CountPlan>> {
        self.by_count.values()
    }

    /// All plans with their counts.
    pub fn by_count(&self) -> impl Iterator<Item = (u32, &Arc<CountPlan>)> {
        self.by_count.iter().map(|(count, plan)| (*count, plan))
    }

    /// For whom they are.
    #[must_use]
    pub fn membership(&self) -> &Assignment {
        &self.membership
    }

    /// The order of the sums.
    #[must_use]
    pub fn mode(&self) -> Reduce {
        self.mode
    }
}
