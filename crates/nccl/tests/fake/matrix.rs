//! Every collective between threads: algorithm x world x length x cut, against the plain tree.

use crate::plain::{before_copy, bits, compute, copies, is_copied, reference, reference_trailer};
use crate::support::{backend, backends, boxed, communicators, membership, on_threads};
use dtrain_collective::{Backend, Chunks, Geometry, HostArena, Mode, Op, Sequence};
use dtrain_types::{MicroRange, Rank, Trailer, cut_evenly};

const WORLDS: [u32; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16];
const COUNTS: [u32; 3] = [16, 9, 1];

fn lengths(n: u32) -> [usize; 8] {
    let n = n as usize;
    [0, 1, n - 1, n, n + 1, 1_000, 16 * n + 1, 5_237]
}

/// Cut evenly, and so that only the ends have micro-batches.
fn cuts(count: u32, world: u32) -> Vec<Vec<MicroRange>> {
    let third = count / 3;
    let skewed = (0..world).map(|rank| match rank {
        0 => MicroRange { lo: 0, hi: third },
        _ if rank + 1 == world => MicroRange { lo: third, hi: count },
        _ => MicroRange { lo: third, hi: third },
    });
    if world == 1 { vec![cut_evenly(count, 1)] } else { vec![cut_evenly(count, world), skewed.collect()] }
}

/// Steps of these counts; gives the bits and the trailer of each.
pub fn steps(
    backend: &mut dyn Backend,
    range: MicroRange,
    counts: &[u32],
    mode: Mode,
) -> Vec<(Vec<u32>, Trailer)> {
    let step = |(seq, count): (usize, &u32)| {
        let seq = Sequence(seq as u64);
        let trailers = compute(backend.arena(), range, *count, mode);
        let op = Op::AllReduce { micro_batches: *count, trailers: &trailers };
        backend.start(seq, &op).expect("a sound start");
        let trailer = backend.finish(seq).expect("a sound finish");
        (bits(backend.arena().lease(0)), trailer)
    };
    counts.iter().enumerate().map(step).collect()
}

#[test]
fn exact_steps_have_the_bits_of_the_plain_tree() {
    for world in WORLDS {
        for ranges in cuts(16, world) {
            for len in lengths(world) {
                let want: Vec<_> =
                    COUNTS.iter().map(|count| (reference(len, *count), reference_trailer(*count))).collect();
                let got = on_threads(backends(&ranges, &COUNTS, len, Mode::Exact), |rank, mut backend| {
                    steps(&mut backend, ranges[rank], &COUNTS, Mode::Exact)
                });
                for (rank, got) in got.iter().enumerate() {
                    assert!(*got == want, "rank {rank} of {world}, {len} floats, {ranges:?}");
                }
            }
        }
    }
}

/// What a ring gives whose sums are taken by rank, as the fake library takes them; ranks without a micro-batch are left out.
pub fn by_rank(ranges: &[MicroRange], len: usize, count: u32) -> (Vec<u32>, Trailer) {
    let mut sum: Option<(Vec<f32>, Trailer)> = None;
    for range in ranges {
        let mut arena = HostArena::new(Geometry::plan(len, ranges, &[count], Mode::Ring));
        let trailers = compute(&mut arena, *range, count, Mode::Ring);
        let Some(trailer) = trailers.first() else { continue };
        let mine = arena.slot(0);
        sum = Some(match sum {
            None => (mine.to_vec(), *trailer),
            Some((floats, sum)) => {
                (floats.iter().zip(mine).map(|(a, b)| a + b).collect(), sum.merge(trailer))
            }
        });
    }
    let (floats, trailer) = sum.expect("somebody has a micro-batch");
    (bits(&floats), trailer)
}

#[test]
fn ring_steps_are_the_sum_of_the_library_and_skip_ranks_without_a_micro_batch() {
    for world in WORLDS {
        for ranges in cuts(16, world) {
            for len in lengths(world) {
                let want: Vec<_> = COUNTS.iter().map(|count| by_rank(&ranges, len, *count)).collect();
                let got = on_threads(backends(&ranges, &COUNTS, len, Mode::Ring), |rank, mut backend| {
                    steps(&mut backend, ranges[rank], &COUNTS, Mode::Ring)
                });
                assert!(got.iter().all(|rank| *rank == want), "world {world}, {len} floats, {ranges:?}");
            }
        }
    }
}

fn mark(rank: usize, i: usize) -> f32 {
    (rank * 10_000 + i) as f32
}

fn fill(backend: &mut dyn Backend, rank: usize) {
    backend.arena().lease(0).iter_mut().enumerate().for_each(|(i, x)| *x = mark(rank, i));
}

fn run(backend: &mut dyn Backend, seq: u64, op: Op<'_>) {
    backend.start(Sequence(seq), &op).expect("a sound start");
    assert_eq!(backend.finish(Sequence(seq)), Ok(Trailer::EMPTY));
}

#[test]
fn gather_broadcast_and_barrier_do_what_they_do_on_every_backend() {
    for world in WORLDS {
        for len in lengths(world) {
            let ranges = cut_evenly(4, world);
            let from = world as usize / 2;
            on_threads(backends(&ranges, &[4], len, Mode::Exact), |rank, mut backend| {
                fill(&mut backend, rank);
                run(&mut backend, 1, Op::Barrier);
                run(&mut backend, 2, Op::AllGather);
                let gathered = backend.arena().lease(0);
                for owner in 0..world as usize {
                    let mut chunk = Chunks::even(len, world as usize).chunk(owner);
                    assert!(chunk.all(|i| gathered[i] == mark(owner, i)));
                }
                fill(&mut backend, rank);
                run(&mut backend, 3, Op::Broadcast { from: Rank(from as u32) });
                assert!(backend.arena().lease(0).iter().enumerate().all(|(i, x)| *x == mark(from, i)));
            });
        }
    }
}

#[test]
fn a_copy_gives_the_targets_the_bits_of_the_sources() {
    for world in 1..=9 {
        for len in lengths(world) {
            let lists = copies(world);
            on_threads(backends(&cut_evenly(4, world), &[4], len, Mode::Exact), |rank, mut backend| {
                for (seq, [sources, targets]) in lists.iter().enumerate() {
                    before_copy(backend.arena().lease(0), rank, sources);
                    run(&mut backend, seq as u64, Op::Copy { sources, targets });
                    let right = is_copied(backend.arena().lease(0), rank, sources, targets);
                    assert!(right, "rank {rank} of {world}, {len} floats, {sources:?} to {targets:?}");
                }
            });
        }
    }
}

#[test]
fn a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum() {
    for mode in [Mode::Exact, Mode::Ring] {
        for world in WORLDS {
            let ranges = cut_evenly(7, world);
            let whole = on_threads(backends(&ranges, &[7], 1_000, mode), |rank, mut backend| {
                steps(&mut backend, ranges[rank], &[7], mode).remove(0)
            });
            on_threads(boxed(backends(&ranges, &[7], 1_000, mode)), |rank, mut backend| {
                let trailers = compute(backend.arena(), ranges[rank], 7, mode);
                let op = Op::ReduceScatter { micro_batches: 7, trailers: &trailers };
                backend.start(Sequence(9), &op).expect("a sound start");
                assert_eq!(backend.finish(Sequence(9)), Ok(whole[rank].1));
                let chunk = Chunks::even(1_000, world as usize).chunk(rank);
                assert_eq!(bits(&backend.arena().lease(0)[chunk.clone()]), whole[rank].0[chunk]);
            });
        }
    }
}

#[test]
fn many_steps_in_a_row_stay_right_while_ranks_overtake_one_another() {
    for mode in [Mode::Exact, Mode::Ring] {
        let ranges = cut_evenly(6, 3);
        let counts: Vec<u32> = (0..200).map(|step| [6, 5, 6, 1][step % 4]).collect();
        let got = on_threads(backends(&ranges, &[6, 5, 1], 20_000, mode), |rank, mut backend| {
            steps(&mut backend, ranges[rank], &counts, mode)
        });
        assert!(got[0] == got[1] && got[1] == got[2], "{mode:?}");
        for (step, (sum, _)) in got[0].iter().enumerate() {
            assert!(*sum == got[0][step % 4].0, "step {step} differs from the first of its count");
        }
    }
}

#[test]
#[should_panic(expected = "between collectives")]
fn slots_are_not_lent_inside_a_collective() {
    let mut backends = backends(&cut_evenly(2, 2), &[2], 8, Mode::Exact);
    backends[0].start(Sequence(1), &Op::Barrier).expect("a sound start");
    backends[0].arena();
}

#[test]
fn slots_start_on_cache_lines_and_a_backend_says_what_it_is() {
    let mut backends = backends(&cut_evenly(5, 3), &[5], 1_001, Mode::Exact);
    for backend in &mut backends {
        for slot in 0..backend.arena().geometry().slots() {
            assert_eq!(backend.arena().lease(slot).as_ptr().align_offset(64), 0);
        }
        let (left, right) = backend.arena().lease_pair(1, 0);
        assert!(!std::ptr::eq(left.as_ptr(), right.as_ptr()));
    }
    assert_eq!(backends[2].describe(), "NCCL 2.32.3 on host memory, exact, rank 2 of 3");
}

#[test]
fn a_rank_without_a_micro_batch_does_not_turn_minus_zero_into_zero() {
    for mode in [Mode::Exact, Mode::Ring] {
        let ranges = cuts(6, 3).pop().expect("the skewed one: rank 1 has nothing");
        let counts = [2];
        let got = on_threads(backends(&ranges, &counts, 40, mode), |_, mut backend| {
            backend.arena().lease(0).fill(-0.0);
            // Rank 0 has all micro-batches of this step, as one root.
            let own: &[Trailer] = if backend.describe().contains("rank 0") { &[Trailer::EMPTY] } else { &[] };
            backend.start(Sequence(1), &Op::AllReduce { micro_batches: 2, trailers: own }).expect("sound");
            assert_eq!(backend.finish(Sequence(1)), Ok(Trailer::EMPTY));
            bits(backend.arena().lease(0))
        });
        assert!(got.iter().flatten().all(|bits| *bits == (-0.0f32).to_bits()), "{mode:?}: {got:?}");
    }
}

#[test]
fn ranks_with_arenas_of_different_sizes_understand_each_other() {
    let (ranges, counts, len) = (cut_evenly(16, 3), [16, 9], 777);
    let least = Geometry::plan(len, &ranges, &counts, Mode::Exact);
    let most = Geometry::bound(len, 16, Mode::Exact);
    assert_ne!(least.root_slots, most.root_slots);
    let got = on_threads(communicators(3), |rank, it| {
        let geometry = if rank == 1 { most } else { least };
        let mut backend = backend(it, membership(1, rank, &ranges), &counts, geometry, Mode::Exact);
        steps(&mut backend, ranges[rank], &counts, Mode::Exact)
    });
    let want = counts.map(|count| (reference(len, count), reference_trailer(count)));
    assert!(got.iter().all(|rank| *rank == want));
}
