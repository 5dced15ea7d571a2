//! Sums in bf16 on every backend: the bits of the rounded tree, whatever carries the floats and however many ranks there are.

use crate::hierarchical::hierarchical_in;
use crate::threads::{host_in, shm_in};
use dtrain_collective::{Backend, Op, Reduce, Sequence};
use dtrain_oracle::conformance::{COUNTS, cuts, on_ranks};
use dtrain_oracle::halves::{reference, rounded};
use dtrain_oracle::plain::{bits, compute_rounded, reference_trailer};
use dtrain_types::{MicroRange, Trailer, Wire, cut_evenly};

const WORLDS: [u32; 6] = [1, 2, 3, 4, 5, 9];
const LENGTHS: [usize; 4] = [0, 17, 1_000, 5_237];

/// Steps of these counts; gives the bits and the trailer of each.
fn steps(backend: &mut dyn Backend, range: MicroRange, mode: Reduce) -> Vec<(Vec<u32>, Trailer)> {
    let step = |(seq, count): (usize, &u32)| {
        let trailers = compute_rounded(backend.arena(), range, *count, mode, rounded);
        let op = Op::AllReduce { micro_batches: *count, trailers: &trailers };
        backend.start(Sequence(seq as u64), &op).expect("a sound start");
        let trailer = backend.finish(Sequence(seq as u64)).expect("a sound finish");
        (bits(backend.arena().lease(0)), trailer)
    };
    COUNTS.iter().enumerate().map(step).collect()
}

type Backends = Vec<Box<dyn Backend>>;

fn all_steps(backends: Backends, ranges: &[MicroRange], mode: Reduce) -> Vec<Vec<(Vec<u32>, Trailer)>> {
    on_ranks(backends, |rank, mut backend| steps(&mut *backend, ranges[rank], mode))
}

#[test]
fn rounded_sums_have_the_bits_of_the_rounded_tree_in_shared_memory_over_queues_and_across_hosts() {
    for world in WORLDS {
        for ranges in cuts(COUNTS[0], world) {
            for len in LENGTHS {
                let want: Vec<_> =
                    COUNTS.map(|count| (reference(len, count), reference_trailer(count))).to_vec();
                let mut all = vec![
                    shm_in(Wire::Bf16, (&ranges, &COUNTS, len, Reduce::Exact)),
                    host_in(Wire::Bf16, (&ranges, &COUNTS, len, Reduce::Exact)),
                ];
                let (one, others) = (world / 2, world - world / 2);
                let hosts = if one == 0 { vec![others] } else { vec![one, others] };
                let (backends, _arenas) =
                    hierarchical_in(Wire::Bf16, &hosts, &ranges, &COUNTS, len, Reduce::Exact);
                all.push(backends);
                for (way, backends) in all.into_iter().enumerate() {
                    assert!(backends.iter().all(|backend| backend.describe().contains("exact in bf16")));
                    for got in all_steps(backends, &ranges, Reduce::Exact) {
                        assert!(got == want, "way {way}, world {world}, {len} floats, {ranges:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn rounded_rings_have_the_same_bits_in_shared_memory_and_over_frames() {
    for world in WORLDS {
        for ranges in cuts(COUNTS[0], world) {
            for len in LENGTHS {
                let shared = all_steps(
                    shm_in(Wire::Bf16, (&ranges, &COUNTS, len, Reduce::Ring)),
                    &ranges,
                    Reduce::Ring,
                );
                let frames = all_steps(
                    host_in(Wire::Bf16, (&ranges, &COUNTS, len, Reduce::Ring)),
                    &ranges,
                    Reduce::Ring,
                );
                assert!(shared == frames && shared.iter().all(|rank| *rank == shared[0]), "{world} {len}");
            }
        }
    }
}

#[test]
fn sums_that_nobody_rounds_have_other_bits_than_the_rounded_tree() {
    let ranges = cut_evenly(COUNTS[0], 2);
    let want = reference(1_000, COUNTS[0]);
    for (wire, right) in [(Wire::Bf16, true), (Wire::F32, false)] {
        // The roots are rounded either way; what one of the two lacks is the rounding of the last node alone.
        let backends = shm_in(wire, (&ranges, &COUNTS, 1_000, Reduce::Exact));
        for got in all_steps(backends, &ranges, Reduce::Exact) {
            assert_eq!(got[0].0 == want, right, "{wire:?}");
        }
    }
}
