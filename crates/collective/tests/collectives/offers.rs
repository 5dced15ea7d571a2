//! Sums that are put in piece by piece, from the end of the buffer to its start, while the rest is not computed yet.

use crate::network::Network;
use dtrain_collective::{Op, Reduce, Sequence};
use dtrain_oracle::piecewise::Piecewise;
use dtrain_oracle::plain::{bits, reference, reference_trailer};
use dtrain_types::{MicroRange, Trailer, cut_evenly};
use proptest::prelude::*;

fn begin(network: &mut Network, rank: usize, count: u32) -> Piecewise {
    let range = network.machines[rank].membership().range();
    Piecewise::new(network.machines[rank].arena(), range, count)
}

fn ranges(world: u32, count: u32, skewed: bool) -> Vec<MicroRange> {
    let mut ranges = cut_evenly(count, world);
    if skewed && world > 1 {
        // The first rank has the work of the second one too, which is a spare.
        ranges[0].hi = ranges[1].hi;
        ranges[1].lo = ranges[1].hi;
    }
    ranges
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_offered_early_makes_the_same_sum_and_nothing_leaves_before_it_is_final(
        world in 2..7u32,
        full in 1..9u32,
        len in 0..700usize,
        segment in prop_oneof![Just(16usize), Just(48), Just(80)],
        skewed in any::<bool>(),
        turns in prop::collection::vec((0..7usize, 0.0..1.0f64, 0..6usize), 0..40),
    ) {
        let counts = [full, full.div_ceil(2)];
        let mut network = Network::new(&ranges(world, full, skewed), &counts, len, Reduce::Exact, segment);
        for (step, count) in counts.into_iter().enumerate() {
            let seq = Sequence(step as u64);
            let mut pending: Vec<Piecewise> =
                (0..world as usize).map(|rank| begin(&mut network, rank, count)).collect();
            for &(rank, part, frames) in turns.iter().filter(|(rank, ..)| *rank < world as usize) {
                if !pending[rank].is_spare() {
                    let from = (part * pending[rank].from as f64) as usize;
                    pending[rank].compute_to(network.machines[rank].arena(), from);
                    network.machines[rank].offer(seq, count, from);
                    network.send(rank);
                }
                for _ in 0..frames {
                    network.deliver_one().expect("a sound run");
                }
            }
            for (rank, pending) in pending.iter_mut().enumerate() {
                pending.compute_to(network.machines[rank].arena(), 0);
                let op = Op::AllReduce { micro_batches: count, trailers: &pending.trailers };
                network.machines[rank].start(seq, &op);
                network.send(rank);
            }
            network.settle().expect("a sound run");
            for machine in &mut network.machines {
                prop_assert!(machine.is_done());
                prop_assert_eq!(machine.finish(seq), reference_trailer(count));
                prop_assert_eq!(bits(machine.arena().slot(0)), reference(len, count));
            }
        }
    }
}

#[test]
fn what_everybody_has_offered_is_summed_everywhere_before_anybody_starts() {
    let len = 1_000;
    let mut network = Network::new(&cut_evenly(4, 2), &[4], len, Reduce::Exact, 48);
    let mut pending = [0, 1].map(|rank| begin(&mut network, rank, 4));
    for (rank, pending) in pending.iter_mut().enumerate() {
        pending.compute_to(network.machines[rank].arena(), 300);
        network.machines[rank].offer(Sequence(1), 4, 300);
        network.send(rank);
    }
    network.settle().expect("a sound run");
    let want = reference(len, 4);
    for machine in &mut network.machines {
        assert!(!machine.is_done());
        // Stripes that lie across the edge wait.
        let summed =
            bits(machine.arena().slot(0)).iter().zip(&want).rev().take_while(|(a, b)| a == b).count();
        assert!((600..=700).contains(&summed), "{summed} of the 700 that are final");
    }
}

#[test]
#[should_panic(expected = "part of another sum was offered")]
fn a_sum_that_was_offered_as_another_is_a_bug() {
    let mut network = Network::new(&cut_evenly(2, 2), &[2, 1], 8, Reduce::Exact, 16);
    network.machines[0].offer(Sequence(1), 2, 4);
    let trailers = [Trailer::EMPTY];
    network.machines[0].start(Sequence(1), &Op::AllReduce { micro_batches: 1, trailers: &trailers });
}
