//! Ranks that share one GPU: algorithm x world x length x cut, against the plain tree, as every backend between threads.

use crate::conformance::{self, COUNTS, WORLDS, cuts, membership, on_ranks, on_threads, steps};
use crate::plain::{bits, compute, gradient, reference, reference_trailer, trailer, tree};
use crate::support::{Fake, gpu};
use dtrain_collective::{Arena, Backend, Chunks, CollectiveError, Geometry, HostArena, Mode, Op, Sequence};
use dtrain_cuda::collectives::{GpuArena, SameDeviceBackend, SameDeviceError};
use dtrain_cuda::driver::{Gpu, Part, Stream};
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::OwnMemory;
use dtrain_engine::device::Device;
use dtrain_types::{Generation, Merger, MicroRange, Rank, Trailer, WorldSize, cut_evenly};
use std::sync::Arc;

fn arena(gpu: &Arc<Gpu>, world: usize, geometry: Geometry) -> Arc<GpuArena> {
    let stream = Stream::new(gpu).expect("a stream");
    GpuArena::new(&stream, WorldSize(world as u32), geometry).expect("memory")
}

/// One backend for each rank, each with a stream of its own, all of them lazy: whoever forgets to wait gets wrong numbers.
fn backends(
    gpu: &Arc<Gpu>,
    ranges: &[MicroRange],
    counts: &[u32],
    len: usize,
    mode: Mode,
) -> Vec<SameDeviceBackend> {
    let arena = arena(gpu, ranges.len(), Geometry::plan(len, ranges, counts, mode));
    let fake = Fake::new();
    let _lazy = fake.lazy();
    let backend = |rank| {
        let stream = Arc::new(Stream::new(gpu).expect("a stream"));
        SameDeviceBackend::new(&arena, &stream, membership(1, rank, ranges), mode, counts).expect("it fits")
    };
    (0..ranges.len()).map(backend).collect()
}

/// The same, whatever they are.
fn made(gpu: &Arc<Gpu>) -> impl Fn(&[MicroRange], &[u32], usize, Mode) -> Vec<Box<dyn Backend>> {
    let gpu = Arc::clone(gpu);
    move |ranges, counts, len, mode| {
        let all = backends(&gpu, ranges, counts, len, mode).into_iter();
        all.map(|backend| Box::new(backend) as Box<dyn Backend>).collect()
    }
}

#[test]
fn exact_steps_have_the_bits_of_the_plain_tree() {
    let Some(gpu) = gpu() else { return };
    conformance::exact_steps_have_the_bits_of_the_plain_tree(&WORLDS, &made(&gpu));
    assert_eq!(Fake::new().wrong(), "");
}

/// The sum around the ring, written as its definition: chunk `c` from rank `c + 1` round to rank `c`.
fn around(ranges: &[MicroRange], count: u32, len: usize) -> Vec<u32> {
    let world = ranges.len();
    let roots: Vec<Option<Vec<f32>>> = ranges
        .iter()
        .map(|range| {
            let geometry = Geometry::plan(len, ranges, &[count], Mode::Ring);
            let mut arena = HostArena::new(geometry);
            let trailers = compute(&mut arena, *range, count, Mode::Ring);
            (!trailers.is_empty()).then(|| arena.lease(0).to_vec())
        })
        .collect();
    let mut sum = vec![0; len];
    for owner in 0..world {
        for i in Chunks::even(len, world).chunk(owner) {
            let values =
                (1..=world).filter_map(|step| roots[(owner + step) % world].as_ref().map(|root| root[i]));
            sum[i] = values.reduce(|sum, value| sum + value).expect("some rank has a micro-batch").to_bits();
        }
    }
    sum
}

#[test]
fn ring_steps_have_the_bits_of_the_ring() {
    let Some(gpu) = gpu() else { return };
    for world in WORLDS {
        for ranges in cuts(16, world) {
            for len in [1, 1_000, 16 * world as usize + 1] {
                let got = on_ranks(made(&gpu)(&ranges, &COUNTS, len, Mode::Ring), |rank, mut backend| {
                    steps(&mut *backend, ranges[rank], &COUNTS, Mode::Ring)
                });
                for (step, count) in COUNTS.iter().enumerate() {
                    let want = around(&ranges, *count, len);
                    assert!(got.iter().all(|got| got[step].0 == want), "{world}, {len} floats, {ranges:?}");
                    assert!(got.iter().all(|one| one[step].1 == got[0][step].1), "trailers differ");
                }
            }
        }
    }
}

#[test]
fn gather_broadcast_and_barrier_do_what_they_do_everywhere() {
    let Some(gpu) = gpu() else { return };
    conformance::gathers_broadcasts_and_barriers_do_what_their_names_say(&WORLDS, &made(&gpu));
}

#[test]
fn a_copy_gives_the_targets_the_bits_of_the_sources() {
    let Some(gpu) = gpu() else { return };
    conformance::a_copy_gives_the_targets_the_bits_of_the_sources(&WORLDS[..9], &made(&gpu));
}

#[test]
fn a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum() {
    let Some(gpu) = gpu() else { return };
    conformance::a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum(&WORLDS, Mode::Exact, &made(&gpu));
}

#[test]
fn many_steps_in_a_row_stay_right_while_ranks_overtake_one_another() {
    let Some(gpu) = gpu() else { return };
    for mode in [Mode::Exact, Mode::Ring] {
        conformance::many_steps_in_a_row_stay_right(3, 200, mode, &made(&gpu));
    }
}

#[test]
fn a_step_asks_the_driver_for_no_memory() {
    if crate::stand_in::build::compiler().is_some() {
        let said = crate::support::child("same_device::count_memory_calls", &[]);
        assert!(said.contains("none"), "{said}");
    }
}

/// What the child of the test above does: alone in its process, because calls are counted.
#[test]
fn count_memory_calls() {
    if crate::support::is_child()
        && let Some(gpu) = gpu()
    {
        let (fake, ranges) = (Fake::new(), cut_evenly(6, 3));
        let made = backends(&gpu, &ranges, &[6], 200, Mode::Exact);
        let barrier = std::sync::Barrier::new(3);
        on_threads(made, |rank, mut backend| {
            steps(&mut backend, ranges[rank], &[6], Mode::Exact);
            barrier.wait();
            let before = fake.memory_calls();
            barrier.wait();
            for seq in 1..5 {
                let trailers = compute(backend.arena(), ranges[rank], 6, Mode::Exact);
                let op = Op::AllReduce { micro_batches: 6, trailers: &trailers };
                backend.start(Sequence(seq), &op).expect("a sound start");
                backend.finish(Sequence(seq)).expect("a sound finish");
            }
            barrier.wait();
            assert_eq!(fake.memory_calls(), before);
            // Nobody gives anything back before all have counted.
            barrier.wait();
        });
        println!("\nnone");
    }
}

fn step(backend: &mut dyn Backend, range: MicroRange, seq: u64) -> Result<(), CollectiveError> {
    let trailers = compute(backend.arena(), range, 6, Mode::Exact);
    backend.start(Sequence(seq), &Op::AllReduce { micro_batches: 6, trailers: &trailers })?;
    backend.finish(Sequence(seq)).map(drop)
}

#[test]
fn an_abort_ends_every_wait_and_every_later_call_says_so() {
    let Some(gpu) = gpu() else { return };
    let ranges = cut_evenly(6, 3);
    let mut made = backends(&gpu, &ranges, &[6], 1_000, Mode::Exact);
    let missing = made.pop().expect("three ranks");
    let aborter = missing.aborter();
    // The third rank never comes, so nothing but the abort can end these waits, whether it comes before or after.
    std::thread::scope(|scope| {
        let ranges = &ranges;
        let waiting = scope.spawn(move || {
            on_threads(made, |rank, mut backend| {
                let first = step(&mut backend, ranges[rank], 1);
                [first, backend.start(Sequence(2), &Op::Barrier), backend.finish(Sequence(2)).map(drop)]
            })
        });
        aborter.abort("rank 2 was lost");
        for result in waiting.join().expect("no panic").into_iter().flatten() {
            let reason = "rank 2 was lost".to_owned();
            assert_eq!(result, Err(CollectiveError::Aborted { reason }));
        }
    });
    drop(missing);
}

#[test]
fn a_generation_after_an_abort_works_in_the_same_arena() {
    let Some(gpu) = gpu() else { return };
    let ranges = cut_evenly(6, 3);
    let arena = arena(&gpu, 3, Geometry::plan(500, &ranges, &[6], Mode::Exact));
    let streams = [(); 3].map(|()| Arc::new(Stream::new(&gpu).expect("a stream")));
    let join = |generation, rank: usize| {
        SameDeviceBackend::new(
            &arena,
            &streams[rank],
            membership(generation, rank, &ranges),
            Mode::Exact,
            &[6],
        )
    };
    let old: Vec<_> = (0..3).map(|rank| join(1, rank).expect("free")).collect();
    assert!(matches!(join(1, 1), Err(SameDeviceError::RankTaken { rank: Rank(1) })));
    let aborter = old[0].aborter();
    let results = on_threads(old, |rank, mut backend| match rank {
        2 => {
            aborter.abort("a hang");
            Ok(())
        }
        _ => step(&mut backend, ranges[rank], 1),
    });
    assert!(results[..2].iter().all(|result| matches!(result, Err(CollectiveError::Aborted { .. }))));
    let new: Vec<_> = (0..3).map(|rank| join(2, rank).expect("free")).collect();
    aborter.abort("an aborter that comes late");
    let got = on_threads(new, |rank, mut backend| steps(&mut backend, ranges[rank], &[6], Mode::Exact));
    assert!(got.iter().all(|got| got[0].0 == reference(500, 6)));
}

#[test]
fn a_rank_left_behind_in_an_old_generation_learns_it() {
    let Some(gpu) = gpu() else { return };
    let ranges = cut_evenly(2, 2);
    let arena = arena(&gpu, 2, Geometry::plan(10, &ranges, &[2], Mode::Exact));
    let stream = Arc::new(Stream::new(&gpu).expect("a stream"));
    let join = |generation, rank| {
        SameDeviceBackend::new(&arena, &stream, membership(generation, rank, &ranges), Mode::Exact, &[2])
    };
    let mut behind = join(1, 0).expect("free");
    behind.start(Sequence(1), &Op::Barrier).expect("a sound start");
    let _ahead = join(2, 1).expect("free");
    let over = CollectiveError::Superseded { from: Rank(1), generation: Generation(1) };
    assert_eq!(behind.finish(Sequence(1)), Err(over));
    drop(behind);
    let mut late = join(1, 0).expect("free");
    assert!(matches!(late.start(Sequence(1), &Op::Barrier), Err(CollectiveError::Superseded { .. })));
}

#[test]
fn ranks_in_different_collectives_find_out() {
    let Some(gpu) = gpu() else { return };
    let ranges = cut_evenly(2, 2);
    let results = on_threads(backends(&gpu, &ranges, &[2], 10, Mode::Exact), |rank, mut backend| {
        let op = if rank == 0 { Op::Barrier } else { Op::AllGather };
        backend.start(Sequence(1), &op)?;
        backend.finish(Sequence(1)).map(drop)
    });
    let mismatch = |result: &Result<(), _>| matches!(result, Err(CollectiveError::Mismatch { .. }));
    assert!(results.iter().all(mismatch), "{results:?}");
}

#[test]
fn an_arena_that_is_too_small_is_refused_in_numbers() {
    let Some(gpu) = gpu() else { return };
    let arena = arena(&gpu, 2, Geometry { len: 10, root_slots: 1, scratch_slots: 0 });
    let stream = Arc::new(Stream::new(&gpu).expect("a stream"));
    let three = membership(4, 0, &cut_evenly(3, 3));
    let error = SameDeviceBackend::new(&arena, &stream, three, Mode::Exact, &[3]).expect_err("three ranks");
    assert!(error.to_string().contains("generation 4 needs 3 with"), "{error}");
    let slots = membership(4, 0, &cut_evenly(8, 1));
    let error = SameDeviceBackend::new(&arena, &stream, slots, Mode::Exact, &[8]).expect_err("more slots");
    assert!(matches!(error, SameDeviceError::TooSmall { .. }), "{error}");
}

#[test]
#[should_panic(expected = "between collectives")]
fn slots_are_not_lent_inside_a_collective() {
    let Some(gpu) = gpu() else { panic!("between collectives: skipped") };
    let mut made = backends(&gpu, &cut_evenly(2, 2), &[2], 8, Mode::Exact);
    made[0].start(Sequence(1), &Op::Barrier).expect("a sound start");
    made[0].arena();
}

/// A slot as a replica on the device takes it.
fn part(arena: &mut dyn Arena, slot: usize) -> Part<f32> {
    let memory = arena.on_device(slot).expect("it lies on the device");
    CudaDevice::slot(&memory).expect("an arena of a GPU")
}

#[test]
fn kernels_reach_a_slot_where_it_lies_and_see_what_was_leased() {
    let Some(gpu) = gpu() else { return };
    let stream = Arc::new(Stream::new(&gpu).expect("a stream"));
    let geometry = Geometry { len: 100, root_slots: 1, scratch_slots: 1 };
    let mut slots = dtrain_cuda::collectives::GpuSlots::new(&stream, geometry).expect("memory");
    assert!(slots.lease(0).iter().all(|x| x.to_bits() == 0));
    slots.lease(0).fill(1.5);
    slots.lease(1).fill(2.0);
    let other = part(&mut slots, 1);
    let other = other.read();
    let own = slots.slot(0).expect("a device that works");
    dtrain_cuda::operations::add_to(&*stream, other, own);
    let (sum, kept) = slots.lease_pair(0, 1);
    assert!(sum.iter().all(|x| *x == 3.5) && kept.iter().all(|x| *x == 2.0));
    assert!(HostArena::new(geometry).on_device(0).is_none());
}

/// Computes micro-batches as a step on a GPU does: nothing is leased, and roots are merged by kernels.
fn compute_there(
    backend: &mut dyn Backend,
    device: &CudaDevice,
    range: MicroRange,
    count: u32,
) -> Vec<Trailer> {
    let geometry = backend.arena().geometry();
    let mut at = |slot| part(backend.arena(), slot);
    let merge = |mut left: Part<f32>, right: Part<f32>| device.add_to(right.read(), left.write());
    let roots = dtrain_types::roots(range, count);
    for (index, root) in roots.iter().enumerate() {
        let mut merger = Merger::default();
        for m in root.lo..root.hi {
            let values: Vec<f32> = (0..geometry.len).map(|i| gradient(m, i)).collect();
            let mut slot = at(geometry.slot(index, merger.next_buffer()));
            device.upload(&values, slot.write()).expect("a device that works");
            merger.push(|left, right| merge(at(geometry.slot(index, left)), at(geometry.slot(index, right))));
        }
        merger.finish(|left, right| merge(at(geometry.slot(index, left)), at(geometry.slot(index, right))));
    }
    roots.iter().map(|root| tree(root.lo, root.hi, &trailer, &|a, b| a.merge(&b))).collect()
}

#[test]
fn steps_computed_by_kernels_have_the_bits_of_the_plain_tree() {
    let Some(gpu) = gpu() else { return };
    let (counts, len) = ([16, 9, 1], 777);
    for world in [1, 2, 3, 5] {
        for ranges in cuts(16, world) {
            let arena = arena(&gpu, ranges.len(), Geometry::plan(len, &ranges, &counts, Mode::Exact));
            let fake = Fake::new();
            let lazy = fake.lazy();
            let device = |_| CudaDevice::new(&gpu, Precision::F32).expect("a stream");
            let devices: Vec<CudaDevice> = ranges.iter().map(device).collect();
            drop(lazy);
            let backend = |(rank, device): (usize, &CudaDevice)| {
                let membership = membership(1, rank, &ranges);
                SameDeviceBackend::new(&arena, device.stream(), membership, Mode::Exact, &counts)
                    .expect("it fits")
            };
            let made = devices.iter().enumerate().map(backend).collect();
            on_threads(made, |rank, mut backend| {
                for (seq, &count) in counts.iter().enumerate() {
                    let trailers = compute_there(&mut backend, &devices[rank], ranges[rank], count);
                    let op = Op::AllReduce { micro_batches: count, trailers: &trailers };
                    backend.start(Sequence(seq as u64), &op).expect("a sound start");
                    assert_eq!(backend.finish(Sequence(seq as u64)), Ok(reference_trailer(count)));
                    let reduced = part(backend.arena(), 0);
                    let mut sum = vec![0.0; len];
                    devices[rank].download(reduced.read(), &mut sum).expect("a device that works");
                    assert!(bits(&sum) == reference(len, count), "rank {rank} of {world}, {count}");
                }
            });
        }
    }
}
