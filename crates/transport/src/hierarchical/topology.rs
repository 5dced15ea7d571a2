//! Which ranks live on which host. It does not know addresses.

use super::HierarchicalError;
use dtrain_types::{Rank, WorldSize};
use std::ops::Range;

/// The hosts of a generation: each has one contiguous range of ranks, the first of which leads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The first rank of each host, and the world size.
    starts: Vec<u32>,
}

impl Topology {
    /// Hosts with so many ranks each, in the order of their ranks.
    ///
    /// *Errors*: [`HierarchicalError::NoHosts`], [`HierarchicalError::EmptyHost`], [`HierarchicalError::TooManyRanks`].
    pub fn new(ranks: &[u32]) -> Result<Self, HierarchicalError> {
        if ranks.is_empty() {
            return Err(HierarchicalError::NoHosts);
        }
        let mut starts = vec![0u32];
        for (host, count) in ranks.iter().enumerate() {
            if *count == 0 {
                return Err(HierarchicalError::EmptyHost { host });
            }
            let next = starts[host].checked_add(*count).ok_or(HierarchicalError::TooManyRanks { host })?;
            starts.push(next);
        }
        Ok(Self { starts })
    }

    /// How many hosts there are.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.starts.len() - 1
    }

    /// The ranks of all hosts.
    #[must_use]
    pub fn world(&self) -> WorldSize {
        WorldSize(self.starts[self.hosts()])
    }

    /// The ranks of one host. *Panics* if there is no such host.
    #[must_use]
    pub fn ranks(&self, host: usize) -> Range<usize> {
        self.starts[host] as usize..self.starts[host + 1] as usize
    }

    /// The rank that speaks for a host. *Panics* if there is no such host.
    #[must_use]
    pub fn leader(&self, host: usize) -> Rank {
        Rank(self.starts[..self.hosts()][host])
    }

    /// The host of a rank. *Panics* if the rank is outside the world.
    #[must_use]
    pub fn host_of(&self, rank: Rank) -> usize {
        assert!(rank.0 < self.world().0, "rank {rank} of {}", self.world());
        self.starts.partition_point(|start| *start <= rank.0) - 1
    }

    /// The place of a rank on its host, which is its index in the host's arena. *Panics* as `host_of`.
    #[must_use]
    pub fn local_of(&self, rank: Rank) -> Rank {
        Rank(rank.0 - self.leader(self.host_of(rank)).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_on_one_host_and_the_first_of_each_leads() {
        let topology = Topology::new(&[1, 4, 2]).expect("three hosts");
        assert_eq!((topology.hosts(), topology.world()), (3, WorldSize(7)));
        let places: Vec<_> =
            (0..7).map(|rank| (topology.host_of(Rank(rank)), topology.local_of(Rank(rank)).0)).collect();
        assert_eq!(places, [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]);
        assert_eq!((topology.leader(1), topology.ranks(1)), (Rank(1), 1..5));
    }

    #[test]
    fn a_world_without_hosts_or_a_host_without_ranks_is_refused() {
        assert_eq!(Topology::new(&[]), Err(HierarchicalError::NoHosts));
        assert_eq!(Topology::new(&[2, 0]), Err(HierarchicalError::EmptyHost { host: 1 }));
        assert_eq!(Topology::new(&[1, u32::MAX]), Err(HierarchicalError::TooManyRanks { host: 1 }));
    }
}
