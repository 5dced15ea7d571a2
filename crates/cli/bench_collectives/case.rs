//! One operation at one size: what is measured, and what nccl-tests would call its bandwidth.

use dtrain_collective::{Op, OpKind, Reduce, Take};
use dtrain_types::{MicroRange, Rank, Trailer, Wire, cut_evenly};
use serde::{Deserialize, Serialize};

/// What bandwidth is multiplied with to be that of a link, whatever the number of ranks; `None` where nothing moves.
///
/// *Source*: nccl-tests, doc/PERFORMANCE.md. A copy has one target, so each byte crosses once, as in a broadcast.
pub fn bus_factor(operation: OpKind, ranks: u32) -> Option<f64> {
    let n = f64::from(ranks);
    match operation {
        OpKind::AllReduce => Some(2.0 * (n - 1.0) / n),
        OpKind::ReduceScatter | OpKind::AllGather => Some((n - 1.0) / n),
        OpKind::Broadcast | OpKind::Copy => Some(1.0),
        OpKind::Barrier => None,
    }
}

/// One measurement, as every rank of it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    pub operation: OpKind,
    /// Of each rank's buffer; 0 for a barrier.
    pub bytes: u64,
    pub ranks: u32,
    /// Sums along a ring, not along the tree.
    pub ring: bool,
    /// Values and sums are rounded to bf16.
    pub bf16: bool,
    pub samples: u32,
    /// Whether the memory itself is measured too.
    pub limit: bool,
    /// Whether each rank stays on a core of its own.
    pub pin: bool,
}

/// Operations before those that count: pages are touched and caches are as they will be.
const WARM_UP: u32 = 3;

impl Case {
    pub fn mode(&self) -> Reduce {
        if self.ring { Reduce::Ring } else { Reduce::Exact }
    }

    pub fn wire(&self) -> Wire {
        if self.bf16 { Wire::Bf16 } else { Wire::F32 }
    }

    /// Floats in a slot; a barrier has one that nobody uses.
    pub fn floats(&self) -> usize {
        (self.bytes as usize / 4).max(1)
    }

    /// One micro-batch a rank: one root of each is summed.
    pub fn ranges(&self) -> Vec<MicroRange> {
        cut_evenly(self.ranks, self.ranks)
    }

    pub fn warm_up(&self) -> u32 {
        WARM_UP.min(self.samples)
    }

    /// The ranks that have the state in a copy: all but the last, as after one was lost.
    pub fn sources(&self) -> Vec<Rank> {
        (0..(self.ranks - 1).max(1)).map(Rank).collect()
    }

    /// The rank that needs it.
    pub fn targets(&self) -> Vec<Rank> {
        (1..self.ranks).skip(self.sources().len() - 1).map(Rank).collect()
    }

    /// The operation as a backend takes it.
    pub fn op<'a>(&self, sources: &'a [Rank], targets: &'a [Rank]) -> Op<'a> {
        let (micro_batches, trailers) = (self.ranks, &[Trailer::EMPTY]);
        match self.operation {
            OpKind::AllReduce => Op::AllReduce { micro_batches, trailers },
            OpKind::ReduceScatter => Op::ReduceScatter { micro_batches, trailers },
            OpKind::AllGather => Op::AllGather { cuts: None, take: Take::All },
            OpKind::Broadcast => Op::Broadcast { from: Rank(0) },
            OpKind::Barrier => Op::Barrier,
            OpKind::Copy => Op::Copy { sources, targets, len: usize::MAX },
        }
    }
}

#[cfg(test)]
pub fn example(operation: OpKind, ranks: u32, floats: u64) -> Case {
    Case {
        operation,
        bytes: 4 * floats,
        ranks,
        ring: false,
        bf16: false,
        samples: 2,
        limit: true,
        pin: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_is_that_of_nccl_tests() {
        let factors = |ranks| OpKind::ALL.map(|operation| bus_factor(operation, ranks));
        assert_eq!(factors(2), [Some(1.0), Some(0.5), Some(0.5), Some(1.0), None, Some(1.0)]);
        assert_eq!(factors(4), [Some(1.5), Some(0.75), Some(0.75), Some(1.0), None, Some(1.0)]);
        assert_eq!(factors(1)[0], Some(0.0));
    }

    #[test]
    fn a_copy_goes_from_all_but_the_last_rank_to_the_last() {
        let lists = |ranks| {
            let case = example(OpKind::Copy, ranks, 64);
            (case.sources(), case.targets())
        };
        assert_eq!(lists(1), (vec![Rank(0)], vec![]));
        assert_eq!(lists(2), (vec![Rank(0)], vec![Rank(1)]));
        assert_eq!(lists(4), (vec![Rank(0), Rank(1), Rank(2)], vec![Rank(3)]));
    }
}
