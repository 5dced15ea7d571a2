//! Every algorithm, world, length and cut, against plain sums, over a network that delivers in any order.

use crate::network::Network;
use crate::ring_sum::around_the_ring;
use dtrain_collective::{Arena, Chunks, Op, OpKind, RankMachine, Reduce, Sequence, Take};
use dtrain_oracle::plain::{before_copy, bits, compute, copies, is_copied, reference, reference_trailer};
use dtrain_types::{MicroRange, Rank, Trailer, WorldSize, cut_evenly};
use std::collections::BTreeSet;

const WORLDS: [u32; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16];

/// The lengths of the house matrix for a world of `n`: also 1 000 and an odd one.
fn lengths(n: u32) -> Vec<usize> {
    let n = n as usize;
    vec![0, 1, n - 1, n, n + 1, 16 * n + 1, 1_000, 1_237]
}

/// Cuts of `count` for a world: even, and skewed with spares in the middle and all work at one end.
fn cuts(count: u32, world: u32) -> Vec<Vec<MicroRange>> {
    let skewed = (0..world).map(|rank| match rank {
        0 => MicroRange { lo: 0, hi: count / 3 },
        _ if rank + 1 == world => MicroRange { lo: count / 3, hi: count },
        _ => MicroRange { lo: count / 3, hi: count / 3 },
    });
    let skewed: Vec<MicroRange> = if world == 1 { cut_evenly(count, 1) } else { skewed.collect() };
    vec![cut_evenly(count, world), skewed]
}

#[test]
fn an_exact_all_reduce_gives_every_rank_the_bits_of_the_plain_tree() {
    for world in WORLDS {
        for full in [1, 7, 16] {
            for ranges in cuts(full, world) {
                for len in lengths(world) {
                    let counts = [full, full.div_ceil(2), 1];
                    let mut network = Network::new(&ranges, &counts, len, Reduce::Exact, 112);
                    for (step, count) in counts.into_iter().enumerate() {
                        let seq = Sequence(10 + step as u64);
                        (0..world as usize).for_each(|rank| network.start_step(rank, seq, count));
                        network.settle().expect("a sound run");
                        let want = reference(len, count);
                        for machine in &mut network.machines {
                            assert!(machine.is_done(), "world {world} len {len} count {count} {ranges:?}");
                            assert_eq!(machine.finish(seq), reference_trailer(count));
                            assert_eq!(
                                bits(machine.arena().slot(0)),
                                want,
                                "world {world} len {len} {ranges:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_ring_all_reduce_gives_every_rank_the_bits_of_the_ring_order() {
    for world in WORLDS {
        for full in [1, 7, 16] {
            for ranges in cuts(full, world) {
                for len in lengths(world) {
                    let counts = [full, full.div_ceil(2)];
                    let mut network = Network::new(&ranges, &counts, len, Reduce::Ring, 48);
                    for (step, count) in counts.into_iter().enumerate() {
                        let seq = Sequence(step as u64);
                        let (mut own, mut trailers) = (Vec::new(), Vec::new());
                        for machine in &mut network.machines {
                            let range = machine.membership().range();
                            let mine = compute(machine.arena(), range, count, Reduce::Ring);
                            own.push((!mine.is_empty()).then(|| machine.arena().slot(0).to_vec()));
                            trailers.extend_from_slice(&mine);
                        }
                        let want = around_the_ring(&own, len, |a, b| a + b);
                        let trailer =
                            trailers.iter().copied().reduce(|a, b| a.merge(&b)).expect("not all are spares");
                        (0..world as usize).for_each(|rank| network.start_step(rank, seq, count));
                        network.settle().expect("a sound run");
                        for machine in &mut network.machines {
                            assert!(machine.is_done(), "world {world} len {len} count {count} {ranges:?}");
                            assert_eq!(machine.finish(seq), trailer);
                            assert_eq!(
                                bits(machine.arena().slot(0)),
                                want,
                                "world {world} len {len} {ranges:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

fn all(network: &mut Network, seq: Sequence, op: Op<'_>) -> Vec<Trailer> {
    for rank in 0..network.machines.len() {
        network.machines[rank].start(seq, &op);
        network.send(rank);
    }
    network.settle().expect("a sound run");
    network.machines.iter_mut().map(|machine| machine.finish(seq)).collect()
}

/// Element `i` that rank `rank` starts with.
fn mark(rank: usize, i: usize) -> f32 {
    (rank * 10_000 + i) as f32
}

fn fill(machine: &mut RankMachine, rank: usize) {
    machine.arena().lease(0).iter_mut().enumerate().for_each(|(i, x)| *x = mark(rank, i));
}

#[test]
fn gather_broadcast_and_barrier_move_what_they_should_and_nothing_else() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        for world in WORLDS {
            let n = world as usize;
            for len in lengths(world) {
                let mut network = Network::new(&cut_evenly(4, world), &[4], len, mode, 48);
                let fill_all = |network: &mut Network| {
                    network.machines.iter_mut().enumerate().for_each(|(rank, machine)| fill(machine, rank));
                };
                fill_all(&mut network);
                assert_eq!(all(&mut network, Sequence(1), Op::Barrier), vec![Trailer::EMPTY; n]);
                for (rank, machine) in network.machines.iter_mut().enumerate() {
                    assert!(machine.arena().slot(0).iter().enumerate().all(|(i, x)| *x == mark(rank, i)));
                }
                all(&mut network, Sequence(2), Op::AllGather { cuts: None, take: Take::All });
                let chunks = Chunks::even(len, n);
                for machine in &mut network.machines {
                    for owner in 0..n {
                        assert!(chunks.chunk(owner).all(|i| machine.arena().slot(0)[i] == mark(owner, i)));
                    }
                }
                fill_all(&mut network);
                let from = n / 2;
                all(&mut network, Sequence(3), Op::Broadcast { from: Rank(from as u32) });
                for machine in &mut network.machines {
                    assert!(machine.arena().slot(0).iter().enumerate().all(|(i, x)| *x == mark(from, i)));
                }
            }
        }
    }
}

#[test]
fn a_copy_gives_the_targets_the_bits_of_the_sources_and_leaves_the_others_alone() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        for world in WORLDS {
            for [sources, targets] in copies(world) {
                for len in lengths(world) {
                    let mut network = Network::new(&cut_evenly(4, world), &[4], len, mode, 48);
                    let fill = |(rank, machine): (usize, &mut RankMachine)| {
                        before_copy(machine.arena().lease(0), rank, &sources);
                        bits(machine.arena().slot(0))
                    };
                    let before: Vec<_> = network.machines.iter_mut().enumerate().map(fill).collect();
                    let op = Op::Copy { sources: &sources, targets: &targets, len: usize::MAX };
                    assert_eq!(all(&mut network, Sequence(1), op), vec![Trailer::EMPTY; world as usize]);
                    for (rank, machine) in network.machines.iter_mut().enumerate() {
                        let slot = machine.arena().slot(0);
                        let right = is_copied(slot, rank, &sources, &targets);
                        assert!(right, "rank {rank} of {world}, {len} floats, {sources:?} to {targets:?}");
                        assert!(
                            targets.contains(&Rank(rank as u32)) || bits(slot) == before[rank],
                            "rank {rank} was none of the targets"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn only_frames_from_sources_to_targets_travel_in_a_copy() {
    let mut network = Network::new(&cut_evenly(4, 5), &[4], 1_000, Reduce::Exact, 48);
    let op = Op::Copy { sources: &[Rank(1), Rank(4)], targets: &[Rank(0), Rank(2)], len: usize::MAX };
    for rank in 0..5 {
        network.machines[rank].start(Sequence(1), &op);
        network.send(rank);
        assert_eq!(network.machines[rank].is_done(), ![0, 2].contains(&rank), "rank {rank}");
    }
    let pairs: BTreeSet<(u32, usize)> = network.flying.iter().map(|frame| (frame.from.0, frame.to)).collect();
    assert_eq!(pairs, BTreeSet::from([(1, 0), (1, 2), (4, 0), (4, 2)]));
    let floats: usize = network.flying.iter().map(|frame| frame.payload.len()).sum();
    assert_eq!(floats, 2 * 1_000, "each target gets each float once");
}

#[test]
fn a_copy_that_makes_no_sense_is_a_bug_and_two_different_ones_have_two_operands() {
    let world = WorldSize(3);
    let ranks = |list: &[u32]| -> Vec<Rank> { list.iter().copied().map(Rank).collect() };
    for (sources, targets) in [
        (vec![], vec![1]),
        (vec![0, 1], vec![1]),
        (vec![1, 0], vec![2]),
        (vec![0, 0], vec![]),
        (vec![3], vec![]),
        (vec![0], vec![3]),
        (vec![0], vec![2, 1]),
    ] {
        let (sources, targets) = (ranks(&sources), ranks(&targets));
        let op = Op::Copy { sources: &sources, targets: &targets, len: usize::MAX };
        let checked = std::panic::catch_unwind(|| op.assert_fits(world));
        assert!(checked.is_err(), "{sources:?} to {targets:?}");
    }
    let mut operands = BTreeSet::new();
    for [sources, targets] in copies(3) {
        let op = Op::Copy { sources: &sources, targets: &targets, len: usize::MAX };
        op.assert_fits(world);
        assert!(operands.insert(op.operand()), "{sources:?} to {targets:?} looks like another copy");
    }
}

#[test]
fn a_reduce_scatter_gives_each_rank_its_chunk_of_the_all_reduce() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        for world in WORLDS {
            for len in lengths(world) {
                let ranges = cut_evenly(7, world);
                let mut whole = Network::new(&ranges, &[7], len, mode, 48);
                let mut parts = Network::new(&ranges, &[7], len, mode, 48);
                for (rank, range) in ranges.iter().enumerate() {
                    whole.start_step(rank, Sequence(1), 7);
                    let trailers = compute(parts.machines[rank].arena(), *range, 7, mode);
                    let op = Op::ReduceScatter { micro_batches: 7, trailers: &trailers };
                    parts.machines[rank].start(Sequence(1), &op);
                    parts.send(rank);
                }
                whole.settle().expect("a sound run");
                parts.settle().expect("a sound run");
                for rank in 0..world as usize {
                    let (a, b) = (&mut whole.machines[rank], &mut parts.machines[rank]);
                    assert_eq!(a.finish(Sequence(1)), b.finish(Sequence(1)));
                    let chunk = Chunks::even(len, world as usize).chunk(rank);
                    assert_eq!(bits(&a.arena().slot(0)[chunk.clone()]), bits(&b.arena().slot(0)[chunk]));
                }
            }
        }
    }
}

#[test]
fn nobody_finishes_an_all_reduce_before_every_rank_has_put_in_its_part() {
    // The lockstep lemma, for spares and empty buffers too: the rank that is missing is missed by all.
    for mode in [Reduce::Exact, Reduce::Ring] {
        for world in [2u32, 3, 5, 8] {
            for len in [0, 1, 1_000] {
                for ranges in cuts(3, world) {
                    for late in 0..world as usize {
                        let mut network = Network::new(&ranges, &[3], len, mode, 48);
                        for rank in (0..world as usize).filter(|rank| *rank != late) {
                            network.start_step(rank, Sequence(1), 3);
                        }
                        network.settle().expect("a sound run");
                        for (rank, machine) in
                            network.machines.iter().enumerate().filter(|(rank, _)| *rank != late)
                        {
                            assert!(
                                !machine.is_done(),
                                "{rank} did without {late}: {mode:?} {world} {len} {ranges:?}"
                            );
                        }
                        network.start_step(late, Sequence(1), 3);
                        network.settle().expect("a sound run");
                        assert!(network.machines.iter().all(RankMachine::is_done));
                    }
                }
            }
        }
    }
}

#[test]
fn an_operation_says_what_it_is() {
    let op = Op::Broadcast { from: Rank(3) };
    assert_eq!((op.kind(), op.operand(), op.reduction()), (OpKind::Broadcast, 3, None));
    let op = Op::Copy { sources: &[Rank(0)], targets: &[Rank(1)], len: usize::MAX };
    assert_eq!((op.kind(), op.reduction()), (OpKind::Copy, None));
}
