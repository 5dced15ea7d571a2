//! Every collective between threads: algorithm x world x length x cut, against the plain tree.

use crate::support::{backend, backends, boxed, communicators};
use dtrain_collective::{Backend, Geometry, HostArena, Op, Reduce, Sequence};
use dtrain_oracle::conformance::{self, COUNTS, WORLDS, cuts, lengths, membership, on_threads, steps};
use dtrain_oracle::plain::{bits, compute, reference, reference_trailer};
use dtrain_types::{MicroRange, Trailer, cut_evenly};

fn made(ranges: &[MicroRange], counts: &[u32], len: usize, mode: Reduce) -> Vec<Box<dyn Backend>> {
    boxed(backends(ranges, counts, len, mode))
}

#[test]
fn exact_steps_have_the_bits_of_the_plain_tree() {
    conformance::exact_steps_have_the_bits_of_the_plain_tree(&WORLDS, &made);
}

/// What a ring gives whose sums are taken by rank, as the fake library takes them; ranks without a micro-batch are left out.
pub fn by_rank(ranges: &[MicroRange], len: usize, count: u32) -> (Vec<u32>, Trailer) {
    let mut sum: Option<(Vec<f32>, Trailer)> = None;
    for range in ranges {
        let mut arena = HostArena::new(Geometry::plan(len, ranges, &[count], Reduce::Ring));
        let trailers = compute(&mut arena, *range, count, Reduce::Ring);
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
                let got = on_threads(backends(&ranges, &COUNTS, len, Reduce::Ring), |rank, mut backend| {
                    steps(&mut backend, ranges[rank], &COUNTS, Reduce::Ring)
                });
                assert!(got.iter().all(|rank| *rank == want), "world {world}, {len} floats, {ranges:?}");
            }
        }
    }
}

#[test]
fn gather_broadcast_and_barrier_do_what_they_do_on_every_backend() {
    conformance::gathers_broadcasts_and_barriers_do_what_their_names_say(&WORLDS, &made);
    conformance::what_ranks_need_is_there_where_they_have_said_what_that_is(&WORLDS, &made);
}

#[test]
fn a_copy_gives_the_targets_the_bits_of_the_sources() {
    conformance::a_copy_gives_the_targets_the_bits_of_the_sources(&WORLDS[..9], &made);
}

#[test]
fn a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        conformance::a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum(&WORLDS, mode, &made);
    }
}

#[test]
fn many_steps_in_a_row_stay_right_while_ranks_overtake_one_another() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        conformance::many_steps_in_a_row_stay_right(3, 20_000, mode, &made);
    }
}

#[test]
#[should_panic(expected = "between collectives")]
fn slots_are_not_lent_inside_a_collective() {
    let mut backends = backends(&cut_evenly(2, 2), &[2], 8, Reduce::Exact);
    backends[0].start(Sequence(1), &Op::Barrier).expect("a sound start");
    backends[0].arena();
}

#[test]
fn slots_start_on_cache_lines_and_a_backend_says_what_it_is() {
    let mut backends = backends(&cut_evenly(5, 3), &[5], 1_001, Reduce::Exact);
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
    for mode in [Reduce::Exact, Reduce::Ring] {
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
    let least = Geometry::plan(len, &ranges, &counts, Reduce::Exact);
    let most = Geometry::bound(len, 16, Reduce::Exact);
    assert_ne!(least.root_slots, most.root_slots);
    let got = on_threads(communicators(3), |rank, it| {
        let geometry = if rank == 1 { most } else { least };
        let mut backend = backend(it, membership(1, rank, &ranges), &counts, geometry, Reduce::Exact);
        steps(&mut backend, ranges[rank], &counts, Reduce::Exact)
    });
    let want = counts.map(|count| (reference(len, count), reference_trailer(count)));
    assert!(got.iter().all(|rank| *rank == want));
}
