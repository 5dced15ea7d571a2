//! Sums whose every node is rounded to bf16: the bits of the rounded tree for every world, around the ring likewise, and a node
//! that was not rounded is seen.

use crate::network::Network;
use crate::ring_sum::around_the_ring;
use dtrain_collective::{Arena, CollectiveError, Op, OpKind, RankMachine, Reduce, Sequence, Take};
use dtrain_oracle::halves::{node, reference, rounded};
use dtrain_oracle::plain::{bits, compute_rounded, reference as unrounded, reference_trailer, tree};
use dtrain_types::{MicroRange, Wire, cut_evenly};
use proptest::prelude::*;

/// Every node of the tree over `lo..hi`, leaves too.
fn nodes(lo: u32, hi: u32) -> Vec<(u32, u32)> {
    let mut all = tree(lo, hi, &|m| vec![(m, m + 1)], &|mut left: Vec<_>, right| {
        let whole = (left[0].0, right.iter().map(|(_, hi)| *hi).max().expect("a node"));
        left.insert(0, whole);
        left.extend(right);
        left
    });
    all.sort_unstable();
    all
}

/// Runs a step of `count` and gives what each rank has then.
fn step(network: &mut Network, seq: u64, count: u32) -> Vec<Vec<u32>> {
    (0..network.machines.len()).for_each(|rank| network.start_step(rank, Sequence(seq), count));
    network.settle().expect("a sound run");
    let finish = |machine: &mut RankMachine| {
        assert_eq!(machine.finish(Sequence(seq)), reference_trailer(count), "trailers are never rounded");
        bits(machine.arena().slot(0))
    };
    network.machines.iter_mut().map(finish).collect()
}

#[test]
fn rounded_sums_have_the_bits_of_the_rounded_tree_for_every_world_and_cut() {
    for world in [1, 2, 3, 5, 8, 9] {
        for (full, ranges) in [(7u32, cut_evenly(7, world)), (16, cut_evenly(16, world))] {
            for len in [0, 1, 17, 1_237] {
                let counts = [full, full.div_ceil(2), 1];
                let mut network = Network::new(&ranges, &counts, len, Reduce::Exact, 112).rounded();
                for (seq, count) in counts.into_iter().enumerate() {
                    let want = reference(len, count);
                    for got in step(&mut network, seq as u64, count) {
                        assert!(got == want, "world {world}, {len} floats, {count} micro-batches");
                    }
                    assert!(len < 100 || want != unrounded(len, count), "rounding shows");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_cut_of_any_step_has_the_bits_of_the_rounded_tree(
        count in 1u32..=24, mut cuts in prop::collection::vec(0u32..=24, 0..7), len in 0usize..200,
    ) {
        cuts.iter_mut().for_each(|cut| *cut = (*cut).min(count));
        cuts.sort_unstable();
        let mut lo = 0;
        let mut ranges = Vec::new();
        for hi in cuts.into_iter().chain([count]) {
            ranges.push(MicroRange { lo, hi });
            lo = hi;
        }
        let mut network = Network::new(&ranges, &[count], len, Reduce::Exact, 48).rounded();
        let want = reference(len, count);
        prop_assert!(step(&mut network, 1, count).iter().all(|got| *got == want));
    }
}

#[test]
fn a_node_that_was_not_rounded_is_seen_whichever_it_is() {
    // The sums above are held against this reference, bit for bit: one that lacks a rounding would differ from it.
    const LEN: usize = 1_000;
    for count in 1..=16 {
        let want = reference(LEN, count);
        for spared in nodes(0, count) {
            let spoilt = (0..LEN).map(|i| node(0, count, i, Some(spared)).to_bits());
            assert!(spoilt.zip(&want).any(|(spoilt, want)| spoilt != *want), "{spared:?} of {count}");
        }
    }
}

#[test]
fn a_rank_that_does_not_round_its_own_nodes_gives_other_bits() {
    let (count, len) = (8, 1_000);
    for (forgets, round) in [(true, (|x| x) as fn(f32) -> f32), (false, rounded)] {
        let mut network = Network::new(&cut_evenly(count, 2), &[count], len, Reduce::Exact, 64).rounded();
        let range = network.machines[0].membership().range();
        let trailers = compute_rounded(network.machines[0].arena(), range, count, Reduce::Exact, round);
        network.machines[0].start(Sequence(1), &Op::AllReduce { micro_batches: count, trailers: &trailers });
        network.send(0);
        network.start_step(1, Sequence(1), count);
        network.settle().expect("a sound run");
        network.machines[0].finish(Sequence(1));
        assert_eq!(bits(network.machines[0].arena().slot(0)) != reference(len, count), forgets);
    }
}

#[test]
fn around_the_ring_every_partial_sum_is_rounded() {
    for world in [1, 2, 3, 5, 9] {
        for (len, count) in [(0, 7), (17, 7), (1_237, 16)] {
            let ranges = cut_evenly(count, world);
            let mut network = Network::new(&ranges, &[count], len, Reduce::Ring, 48).rounded();
            let mut own = Vec::new();
            for machine in &mut network.machines {
                let range = machine.membership().range();
                let mine = compute_rounded(machine.arena(), range, count, Reduce::Ring, rounded);
                own.push((!mine.is_empty()).then(|| machine.arena().slot(0).to_vec()));
            }
            let want = around_the_ring(&own, len, |a, b| rounded(a + b));
            (0..world as usize).for_each(|rank| network.start_step(rank, Sequence(1), count));
            network.settle().expect("a sound run");
            for machine in &mut network.machines {
                machine.finish(Sequence(1));
                assert!(bits(machine.arena().slot(0)) == want, "world {world}, {len} floats");
            }
        }
    }
}

#[test]
fn frames_of_sums_say_that_they_are_rounded_and_those_that_only_move_that_they_are_not() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        let mut network = Network::new(&cut_evenly(6, 3), &[6], 500, mode, 64).rounded();
        (0..3).for_each(|rank| network.start_step(rank, Sequence(1), 6));
        let halves = |x: &f32| x.to_bits() & 0xffff == 0;
        while !network.flying.is_empty() {
            let sound = network
                .flying
                .iter()
                .all(|flying| flying.header.wire == Wire::Bf16 && flying.payload.iter().all(halves));
            assert!(sound, "{mode:?}");
            network.deliver_one().expect("a sound run");
        }
        for machine in &mut network.machines {
            machine.finish(Sequence(1));
            machine.arena().lease(0).fill(0.1);
            machine.start(Sequence(2), &Op::AllGather { cuts: None, take: Take::All });
        }
        (0..3).for_each(|rank| network.send(rank));
        let moved = network.flying.iter().filter(|flying| flying.header.tag.op == OpKind::AllGather);
        assert!(moved.clone().count() > 0 && moved.into_iter().all(|flying| flying.header.wire == Wire::F32));
        network.settle().expect("a sound run");
        for machine in &mut network.machines {
            machine.finish(Sequence(2));
            assert!(machine.arena().slot(0).iter().all(|x| *x == 0.1), "moved as it was");
        }
    }
}

#[test]
fn a_peer_that_rounds_otherwise_is_found_out() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        let mut network = Network::new(&cut_evenly(4, 2), &[4], 100, mode, 64).rounded();
        network.machines[1].set_wire(Wire::F32);
        (0..2).for_each(|rank| network.start_step(rank, Sequence(1), 4));
        let error = network.settle().expect_err("they do not agree");
        assert!(
            matches!(error, CollectiveError::Foreign { why, .. } if why.contains("rounded")),
            "{error:?}"
        );
    }
}
