//! Sums that are put on the stream part by part, while the rest of the gradient is computed.

use crate::matrix::by_rank;
use crate::support::backends_cut_at;
use dtrain_collective::{Backend, Op, Reduce, Sequence};
use dtrain_oracle::conformance::{cuts, lengths, on_threads};
use dtrain_oracle::offered::offered_steps;
use dtrain_oracle::piecewise::Piecewise;
use dtrain_oracle::plain::{bits, reference, reference_trailer};
use dtrain_types::{MicroRange, Trailer, cut_evenly};
use std::time::{Duration, Instant};

const COUNTS: [u32; 3] = [16, 9, 1];

/// Cuts of a slot: none, one, and some that leave short parts.
fn cuts_of(len: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![], vec![len / 2], vec![len - 1, len * 3 / 4, len / 4, 1]];
    all.iter_mut().for_each(|cuts| cuts.dedup());
    all.into_iter().filter(|cuts| cuts.iter().all(|at| (1..len).contains(at))).collect()
}

fn made(
    ranges: &[MicroRange],
    counts: &[u32],
    len: usize,
    mode: Reduce,
    at: &[usize],
) -> Vec<impl Backend + use<>> {
    let all = backends_cut_at(ranges, counts, len, mode, at);
    assert!(all.iter().all(|backend| backend.takes_offers() != at.is_empty()), "parts are what is offered");
    all
}

#[test]
fn parts_that_are_offered_by_some_and_not_by_others_make_the_bits_of_the_whole() {
    for world in [1, 2, 3, 5] {
        for ranges in cuts(16, world) {
            for len in lengths(world).into_iter().filter(|len| *len > 4) {
                for at in cuts_of(len) {
                    let got =
                        on_threads(made(&ranges, &COUNTS, len, Reduce::Exact, &at), |rank, mut backend| {
                            offered_steps(&mut backend, rank, ranges[rank], &COUNTS)
                        });
                    let want = COUNTS.map(|count| (reference(len, count), reference_trailer(count)));
                    assert!(
                        got.iter().all(|rank| *rank == want),
                        "{world} ranks, {len} floats, {ranges:?}, {at:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_library_s_own_sums_may_be_cut_too() {
    for ranges in cuts(16, 3) {
        let len = 1_000;
        let want: Vec<_> = COUNTS.iter().map(|count| by_rank(&ranges, len, *count)).collect();
        let got = on_threads(made(&ranges, &COUNTS, len, Reduce::Ring, &[700, 100]), |rank, mut backend| {
            dtrain_oracle::conformance::steps(&mut backend, ranges[rank], &COUNTS, Reduce::Ring)
        });
        assert!(got.iter().all(|rank| *rank == want), "{ranges:?}");
    }
}

#[test]
fn other_collectives_know_nothing_of_parts() {
    dtrain_oracle::conformance::a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum(
        &[2, 3],
        Reduce::Exact,
        &|ranges, counts, len, mode| {
            let middle = [len / 2];
            let cuts = if len > 2 { &middle[..] } else { &[] };
            crate::support::boxed(backends_cut_at(ranges, counts, len, mode, cuts))
        },
    );
}

#[test]
fn what_all_have_offered_is_summed_before_anybody_starts() {
    let (len, count, ranges) = (1_000, 4, cut_evenly(4, 2));
    let want = reference(len, count);
    let got = on_threads(made(&ranges, &[count], len, Reduce::Exact, &[600, 300]), |rank, mut backend| {
        let mut pending = Piecewise::new(backend.arena(), ranges[rank], count);
        pending.compute_to(backend.arena(), 300);
        backend.offer(Sequence(1), count, 300);
        let patience = Instant::now() + Duration::from_secs(60);
        // What is offered is looked at and not touched.
        while bits(&backend.arena().lease(0)[300..]) != want[300..] {
            assert!(Instant::now() < patience, "nothing moved before the start");
            std::thread::yield_now();
        }
        pending.compute_to(backend.arena(), 0);
        let op = Op::AllReduce { micro_batches: count, trailers: &pending.trailers };
        backend.start(Sequence(1), &op).expect("a sound start");
        let trailer = backend.finish(Sequence(1)).expect("a sound finish");
        (bits(backend.arena().lease(0)), trailer)
    });
    assert!(got.iter().all(|rank| *rank == (want.clone(), reference_trailer(count))));
}

#[test]
#[should_panic(expected = "part of another sum was offered")]
fn a_sum_that_was_offered_as_another_is_a_bug() {
    let ranges = cut_evenly(1, 1);
    let mut all = backends_cut_at(&ranges, &[1], 1_000, Reduce::Exact, &[500]);
    all[0].offer(Sequence(1), 1, 500);
    let _refused =
        all[0].start(Sequence(2), &Op::AllReduce { micro_batches: 1, trailers: &[Trailer::EMPTY] });
}
