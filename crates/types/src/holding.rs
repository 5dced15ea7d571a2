//! Who holds which part of a state that no rank holds alone: shards that follow from the state's length, and the ranks of a world.
//!
//! A state of any length has the same number of shards. A rank *owns* a run of them; some of the next ranks *mirror* it, on other hosts
//! where there are some. This file does not know what lies in a shard.

use crate::{NodeId, Rank, joined};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// How many shards a state has, whatever its length: some are empty where it is short.
pub const SHARDS: u32 = 1024;

/// A shard of a flat buffer begins at a multiple of so many elements: a cache line.
const UNIT: usize = 16;

/// The elements of a flat buffer of `len` that lie in these shards.
///
/// *Order*: a pure function of its arguments; neighbours touch.
#[must_use]
pub fn shard_elements(shards: &Range<u32>, len: usize) -> Range<usize> {
    let units = len.div_ceil(UNIT);
    let cut = |shard: u32| (units * shard as usize / SHARDS as usize * UNIT).min(len);
    cut(shards.start)..cut(shards.end)
}

crate::words!(
    /// What ranks share out of a state and its gradients, each level with those before it.
    #[derive(PartialOrd, Ord)]
    ShardLevel {
        /// The moments of the optimizer, and the sum of the gradients that an update needs.
        Optimizer = "optimizer",
        /// The gradients: each is summed by those who hold its shard as soon as it is computed, window by window, and nobody has all of it.
        Gradients = "gradients",
        /// The parameters: each rank has those of other shards while a pass needs them.
        Parameters = "parameters",
    }
);

crate::words!(
    /// When a shard has as many holders again of which one was lost.
    #[derive(Serialize, Deserialize)]
    Remirror {
        /// Before the next step.
        Now = "now",
        /// When the rank is there that takes the place of the lost one: until then the shard has one holder less, and fewer ranks may be lost.
        Lazy = "lazy",
    }
);

/// Shards that somebody holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Rising, none empty, none touches the next.
    runs: Vec<Range<u32>>,
}

impl Holding {
    /// All shards.
    #[must_use]
    pub fn whole() -> Self {
        Self::of(std::iter::once(0..SHARDS))
    }

    /// These shards, in whatever order. *Panics* if there is no such shard.
    #[must_use]
    pub fn of(runs: impl IntoIterator<Item = Range<u32>>) -> Self {
        let runs = joined(runs);
        assert!(runs.last().is_none_or(|run| run.end <= SHARDS), "a state has {SHARDS} shards");
        Self { runs }
    }

    /// The shards, as runs that rise.
    #[must_use]
    pub fn runs(&self) -> &[Range<u32>] {
        &self.runs
    }

    /// What is in it or in another one.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self { runs: joined(self.runs.iter().chain(&other.runs).cloned()) }
    }

    /// Whether it is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether a shard is among them.
    #[must_use]
    pub fn has(&self, shard: u32) -> bool {
        let after = self.runs.partition_point(|run| run.end <= shard);
        self.runs.get(after).is_some_and(|run| run.contains(&shard))
    }

    /// Whether it is what [`Holding::of`] could have made: for what came over a wire.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let ends = self.runs.iter().all(|run| run.start < run.end && run.end <= SHARDS);
        ends && self.runs.windows(2).all(|pair| pair[0].end < pair[1].start)
    }

    /// Its elements of a flat buffer of `len`, as runs that rise; none is empty.
    #[must_use]
    pub fn elements(&self, len: usize) -> Vec<Range<usize>> {
        self.runs.iter().map(|run| shard_elements(run, len)).filter(|run| !run.is_empty()).collect()
    }

    /// Whether every shard is in one of these.
    #[must_use]
    pub fn cover<'a>(holdings: impl IntoIterator<Item = &'a Self>) -> bool {
        Self::of(holdings.into_iter().flat_map(|holding| holding.runs.iter().cloned())) == Self::whole()
    }
}

/// Who holds what in a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    world: u32,
    /// How many ranks hold each shard.
    redundancy: u32,
    /// From an owner to its next mirror.
    stride: u32,
}

impl Holders {
    /// The holders in a world whose ranks are on these nodes, each shard with `redundancy` of them: all ranks, where there are fewer.
    ///
    /// *Order*: a pure function of its arguments. *Panics* if there is no rank or no redundancy.
    #[must_use]
    pub fn new(nodes: &[NodeId], redundancy: u32) -> Self {
        let world = nodes.len() as u32;
        assert!(world > 0 && redundancy > 0, "{redundancy} holders among {world} ranks");
        let redundancy = redundancy.min(world);
        // Ranks of a node follow one another: from one node to the next is as far as the largest one is long.
        let largest = nodes.chunk_by(|a, b| a == b).map(<[NodeId]>::len).max().unwrap_or(1) as u32;
        // The step must not come back to the owner before all mirrors are named.
        let apart = |stride: u32| (1..redundancy).all(|n| !(stride * n).is_multiple_of(world));
        let stride = if apart(largest) { largest } else { 1 };
        Self { world, redundancy, stride }
    }

    /// How many ranks hold each shard.
    #[must_use]
    pub fn redundancy(&self) -> u32 {
        self.redundancy
    }

    /// Whether every rank holds every shard: there are no more of them than each shard has holders.
    #[must_use]
    pub fn hold_all(&self) -> bool {
        self.redundancy == self.world
    }

    /// The shards that a rank owns. *Panics* if there is no such rank.
    #[must_use]
    pub fn owned(&self, rank: Rank) -> Range<u32> {
        assert!(rank.0 < self.world, "rank {rank} in a world of {}", self.world);
        let cut = |rank: u32| SHARDS * rank / self.world;
        cut(rank.0)..cut(rank.0 + 1)
    }

    /// Where what each rank owns of a flat buffer of `len` begins, and where that of the last one ends.
    #[must_use]
    pub fn cuts(&self, len: usize) -> Vec<usize> {
        let end = |rank| shard_elements(&self.owned(Rank(rank)), len).end;
        [0].into_iter().chain((0..self.world).map(end)).collect()
    }

    /// What has to travel so that all ranks, which hold these shards now, hold what they are to hold: shard by shard, in runs that rise.
    /// None if nobody has one of the shards, or there are more or fewer ranks.
    ///
    /// *Order*: a pure function of its arguments, the same on every rank.
    #[must_use]
    pub fn transfers(&self, held: &[Holding]) -> Option<Vec<Transfer>> {
        let sound = held.len() == self.world as usize && held.iter().all(Holding::is_sound);
        if !sound || !Holding::cover(held) {
            return None;
        }
        let ranks = || (0..self.world).map(Rank);
        let wanted: Vec<Holding> = ranks().map(|rank| self.holding(rank)).collect();
        // Between two of these nobody's holding changes.
        let ends = held.iter().chain(&wanted).flat_map(Holding::runs).flat_map(|run| [run.start, run.end]);
        let ends: BTreeSet<u32> = ends.collect();
        let runs = ends.iter().zip(ends.iter().skip(1)).map(|(start, end)| *start..*end);
        let transfer = |shards: Range<u32>| {
            let has = |rank: &Rank| held[rank.index()].has(shards.start);
            // Its owner to be, if that has it: then all lend, each another part.
            let owner = ranks().find(|rank| self.owned(*rank).contains(&shards.start)).filter(has);
            let source = owner.or_else(|| ranks().find(has)).expect("they hold all");
            let parameters: Vec<Rank> = ranks().filter(|rank| !has(rank)).collect();
            let keeps = |rank: &&Rank| wanted[rank.index()].has(shards.start);
            let moments = parameters.iter().filter(keeps).copied().collect();
            Transfer { shards: shards.clone(), source, parameters, moments }
        };
        Some(runs.map(transfer).collect())
    }

    /// The shards that a rank owns or mirrors. *Panics* if there is no such rank.
    #[must_use]
    pub fn holding(&self, rank: Rank) -> Holding {
        let mirrored = |n: u32| Rank((rank.0 + self.world - self.stride * n % self.world) % self.world);
        Holding::of((0..self.redundancy).map(|n| self.owned(mirrored(n))))
    }
}

/// Shards that travel from one rank to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which.
    pub shards: Range<u32>,
    /// Who gives them.
    pub source: Rank,
    /// Who needs what all ranks have of them.
    pub parameters: Vec<Rank>,
    /// Who needs what holders alone have: some of those.
    pub moments: Vec<Rank>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(sizes: &[u32]) -> Vec<NodeId> {
        sizes.iter().zip(0..).flat_map(|(size, node)| (0..*size).map(move |_| NodeId(node))).collect()
    }

    #[test]
    fn shards_of_any_length_touch_and_make_the_whole() {
        for len in [0, 1, 255, 256, 257, 5_000, 1_000_003] {
            let mut next = 0;
            for shard in 0..SHARDS {
                let elements = shard_elements(&(shard..shard + 1), len);
                assert_eq!(elements.start, next);
                next = elements.end;
            }
            assert_eq!(next, len);
            assert_eq!(shard_elements(&(3..700), len).start, shard_elements(&(3..4), len).start);
        }
    }

    #[test]
    fn every_shard_has_as_many_holders_as_asked_and_any_loss_of_fewer_leaves_one() {
        for world in 1..=9 {
            for redundancy in 1..=4 {
                let holders = Holders::new(&nodes(&[world]), redundancy);
                let all: Vec<Holding> = (0..world).map(|rank| holders.holding(Rank(rank))).collect();
                for shard in 0..SHARDS {
                    let count = all.iter().filter(|holding| holding.has(shard)).count() as u32;
                    assert_eq!(count, redundancy.min(world), "{redundancy} of {world}, shard {shard}");
                }
                for lost in 0..world as usize {
                    let left = all.iter().enumerate().filter(|(rank, _)| *rank != lost).map(|(_, it)| it);
                    assert_eq!(Holding::cover(left), redundancy.min(world) > 1, "{redundancy} of {world}");
                }
            }
        }
    }

    #[test]
    fn mirrors_are_on_other_hosts_where_there_are_some() {
        for sizes in [&[2, 2][..], &[1, 1, 1], &[4, 4], &[2, 2, 2], &[3, 3, 2]] {
            let of = nodes(sizes);
            let holders = Holders::new(&of, 2);
            let all: Vec<Holding> = (0..of.len()).map(|rank| holders.holding(Rank(rank as u32))).collect();
            for lost in 0..sizes.len() as u32 {
                let left = all.iter().zip(&of).filter(|(_, node)| node.0 != lost).map(|(it, _)| it);
                assert!(Holding::cover(left), "{sizes:?} without host {lost}");
            }
        }
    }

    #[test]
    fn what_is_held_is_told_in_runs_whatever_the_order() {
        let holding = Holding::of([900..1024, 3..3, 0..10, 10..12, 40..50, 45..47]);
        assert_eq!(holding.runs(), [0..12, 40..50, 900..1024]);
        assert!(holding.has(11) && !holding.has(12) && holding.has(1023) && holding.is_sound());
        assert!(!Holding::cover([&holding]) && Holding::cover([&holding, &Holding::of([12..40, 50..900])]));
        assert_eq!(Holding::whole().elements(1000).len(), 1);
        assert_eq!(Holding::whole().elements(1000)[0], 0..1000);
        for (start, end) in [(5, 3), (4, 4), (0, 2000)] {
            assert!(!Holding { runs: vec![Range { start, end }] }.is_sound());
        }
    }

    #[test]
    fn whoever_is_to_hold_a_shard_gets_it_from_one_who_has_it() {
        for (before, lost) in [(3, 0), (4, 1), (4, 3), (5, 2), (8, 7)] {
            let old = Holders::new(&nodes(&[before]), 2);
            let mut held: Vec<Holding> = (0..before).map(|rank| old.holding(Rank(rank))).collect();
            held.remove(lost);
            // Somebody comes in its place, with nothing.
            held.push(Holding::default());
            let new = Holders::new(&nodes(&[before]), 2);
            let transfers = new.transfers(&held).expect("one rank was lost of two that hold each shard");
            let mut next = 0;
            for Transfer { shards, source, parameters, moments } in transfers {
                assert_eq!(shards.start, next);
                next = shards.end;
                for shard in shards {
                    assert!(held[source.index()].has(shard) && !parameters.contains(&source));
                    for rank in (0..before).map(Rank) {
                        let (has, keeps) = (held[rank.index()].has(shard), new.holding(rank).has(shard));
                        assert_eq!(parameters.contains(&rank), !has);
                        assert_eq!(moments.contains(&rank), keeps && !has);
                    }
                }
            }
            assert_eq!(next, SHARDS);
        }
        let two = Holders::new(&nodes(&[2]), 1);
        assert_eq!(two.transfers(&[Holding::of([0..5, 7..500]), Holding::of([5..7, 501..1024])]), None);
        assert_eq!(two.transfers(&[Holding::whole()]), None);
    }
}
