//! Who writes what: a contiguous run of whole tensors for each rank.
//!
//! Which rank wrote a tensor is of no consequence to a reader; a checkpoint loads at any world size.

use crate::TensorSpec;
use dtrain_types::{Rank, WorldSize};
use std::ops::Range;

/// The tensors, as a range of indices into `specs`, that `rank` of `world` writes.
///
/// The ranges of all ranks are contiguous, in rank order, and cover every tensor once. A rank's share is at most
/// the even share and one tensor. With more ranks than tensors some ranges are empty; those ranks write no shard.
///
/// *Order*: a pure function of its arguments. *Panics* if `rank` is not below `world`.
#[must_use]
pub fn slice_for(rank: Rank, world: WorldSize, specs: &[TensorSpec]) -> Range<usize> {
    assert!(rank.0 < world.0, "rank {rank} in a world of {world}");
    let total: u128 = specs.iter().map(weight).sum();
    let cut = |rank: u32| {
        // A tensor belongs to the rank in whose even share its middle lies; middles only rise, so runs are contiguous.
        let mut before = 0;
        let goes_before = |spec: &&TensorSpec| {
            let middle = 2 * before + weight(spec);
            before += weight(spec);
            middle * u128::from(world.0) < 2 * total * u128::from(rank)
        };
        specs.iter().take_while(goes_before).count()
    };
    cut(rank.0)..cut(rank.0 + 1)
}

/// An empty tensor still has a name and an entry in the header, so it weighs something.
fn weight(spec: &TensorSpec) -> u128 {
    spec.len.max(1) as u128
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PARAMETERS;
    use proptest::prelude::*;

    fn specs(lengths: &[usize]) -> Vec<TensorSpec> {
        let spec = |(i, len): (usize, &usize)| TensorSpec::new(format!("t{i}"), &[*len], PARAMETERS, 0);
        lengths.iter().enumerate().map(spec).collect()
    }

    proptest! {
        #[test]
        fn the_slices_of_any_world_are_a_partition_near_the_even_share(
            lengths in prop::collection::vec(0usize..5000, 0..40), world in 1u32..60,
        ) {
            let specs = specs(&lengths);
            let total: u128 = specs.iter().map(weight).sum();
            let largest = specs.iter().map(weight).max().unwrap_or(0);
            let mut next = 0;
            for rank in 0..world {
                let slice = slice_for(Rank(rank), WorldSize(world), &specs);
                prop_assert_eq!(slice.start, next);
                next = slice.end;
                let share: u128 = specs[slice].iter().map(weight).sum();
                prop_assert!(share <= total.div_ceil(u128::from(world)) + largest);
            }
            prop_assert_eq!(next, specs.len());
        }
    }

    #[test]
    fn equal_tensors_are_dealt_evenly() {
        let specs = specs(&[100; 12]);
        for (world, each) in [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)] {
            for rank in 0..world {
                assert_eq!(slice_for(Rank(rank), WorldSize(world), &specs).len(), each);
            }
        }
    }

    #[test]
    fn with_more_ranks_than_tensors_some_write_nothing_and_nobody_writes_two() {
        let specs = specs(&[7, 7, 7]);
        let lengths: Vec<_> = (0..8).map(|r| slice_for(Rank(r), WorldSize(8), &specs).len()).collect();
        assert_eq!(lengths.iter().sum::<usize>(), 3);
        assert_eq!(lengths.iter().max(), Some(&1));
    }
}
