//! Every backend between threads: algorithm x world x length x cut, against the plain tree and against one another.

use crate::plain::{before_copy, bits, compute, copies, is_copied, reference, reference_trailer};
use dtrain_collective::{
    Arena, Backend, Chunks, Geometry, HostArena, HostBackend, Membership, Mode, Op, RankMachine, Sequence,
};
use dtrain_transport::shm::Isa;
use dtrain_transport::{ArenaFile, ShmBackend, memory_mesh};
use dtrain_types::{Generation, MicroRange, Rank, Trailer, WorldSize, cut_evenly};

const WORLDS: [u32; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16];

fn lengths(n: u32) -> [usize; 8] {
    let n = n as usize;
    [0, 1, n - 1, n, n + 1, 1_000, 16 * n + 1, 5_237]
}

pub fn membership(generation: u64, rank: usize, ranges: &[MicroRange]) -> Membership {
    Membership { generation: Generation(generation), rank: Rank(rank as u32), ranges: ranges.to_vec() }
}

/// One backend for each rank, in shared memory that all of them map once.
pub fn shm(ranges: &[MicroRange], counts: &[u32], len: usize, mode: Mode) -> Vec<Box<dyn Backend>> {
    let geometry = Geometry::plan(len, ranges, counts, mode);
    let file = ArenaFile::create(WorldSize(ranges.len() as u32), geometry).expect("a memfd");
    let mapping = file.map().expect("a mapping");
    let isas = [Isa::Baseline, Isa::detect()];
    let backend = |rank: usize| {
        let backend = ShmBackend::new(mapping.clone(), membership(1, rank, ranges), mode, counts);
        // Ranks with different instruction sets must agree on the bits.
        Box::new(backend.expect("a good arena").with_isa(isas[rank % 2])) as Box<dyn Backend>
    };
    (0..ranges.len()).map(backend).collect()
}

/// One backend for each rank, over queues, with short segments so that they get full.
pub fn host(ranges: &[MicroRange], counts: &[u32], len: usize, mode: Mode) -> Vec<Box<dyn Backend>> {
    let geometry = Geometry::plan(len, ranges, counts, mode);
    let backend = |(rank, transport)| {
        let machine =
            RankMachine::with_segment(membership(1, rank, ranges), mode, geometry, 64).expect("good");
        let mut backend = HostBackend::from_machine(transport, machine);
        backend.prepare(counts);
        Box::new(backend) as Box<dyn Backend>
    };
    memory_mesh(ranges.len()).into_iter().enumerate().map(backend).collect()
}

/// Runs `work` on a thread for each rank.
pub fn on_threads<R: Send>(
    backends: Vec<Box<dyn Backend>>,
    work: impl Fn(usize, Box<dyn Backend>) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let spawn = |(rank, backend)| scope.spawn(move || work(rank, backend));
        let threads: Vec<_> = backends.into_iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
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
        backend
            .start(seq, &Op::AllReduce { micro_batches: *count, trailers: &trailers })
            .expect("a sound start");
        let trailer = backend.finish(seq).expect("a sound finish");
        (bits(backend.arena().lease(0)), trailer)
    };
    counts.iter().enumerate().map(step).collect()
}

pub fn cuts(count: u32, world: u32) -> Vec<Vec<MicroRange>> {
    let third = count / 3;
    let skewed = (0..world).map(|rank| match rank {
        0 => MicroRange { lo: 0, hi: third },
        _ if rank + 1 == world => MicroRange { lo: third, hi: count },
        _ => MicroRange { lo: third, hi: third },
    });
    if world == 1 { vec![cut_evenly(count, 1)] } else { vec![cut_evenly(count, world), skewed.collect()] }
}

#[test]
fn exact_steps_have_the_bits_of_the_plain_tree_on_every_backend() {
    let counts = [16, 9, 1];
    for world in WORLDS {
        for ranges in cuts(16, world) {
            for len in lengths(world) {
                let want: Vec<_> =
                    counts.iter().map(|count| (reference(len, *count), reference_trailer(*count))).collect();
                for make in [shm, host] {
                    let got = on_threads(make(&ranges, &counts, len, Mode::Exact), |rank, mut backend| {
                        steps(&mut *backend, ranges[rank], &counts, Mode::Exact)
                    });
                    for (rank, got) in got.iter().enumerate() {
                        assert!(*got == want, "rank {rank} of {world}, {len} floats, {ranges:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn ring_steps_have_the_same_bits_in_shared_memory_and_over_frames() {
    let counts = [16, 9, 1];
    for world in WORLDS {
        for ranges in cuts(16, world) {
            for len in lengths(world) {
                let run = |backends| {
                    on_threads(backends, |rank, mut backend: Box<dyn Backend>| {
                        steps(&mut *backend, ranges[rank], &counts, Mode::Ring)
                    })
                };
                let over_frames = run(host(&ranges, &counts, len, Mode::Ring));
                let shared = run(shm(&ranges, &counts, len, Mode::Ring));
                assert!(over_frames == shared, "world {world}, {len} floats, {ranges:?}");
                assert!(shared.iter().all(|rank| *rank == shared[0]), "ranks differ");
            }
        }
    }
}

fn fill(backend: &mut dyn Backend, rank: usize) {
    backend.arena().lease(0).iter_mut().enumerate().for_each(|(i, x)| *x = mark(rank, i));
}

fn mark(rank: usize, i: usize) -> f32 {
    (rank * 10_000 + i) as f32
}

fn run(backend: &mut dyn Backend, seq: u64, op: Op<'_>) {
    backend.start(Sequence(seq), &op).expect("a sound start");
    assert_eq!(backend.finish(Sequence(seq)), Ok(Trailer::EMPTY));
}

#[test]
fn gather_broadcast_and_barrier_do_the_same_on_every_backend() {
    for make in [shm, host] {
        for world in WORLDS {
            for len in lengths(world) {
                let ranges = cut_evenly(4, world);
                let from = world as usize / 2;
                on_threads(make(&ranges, &[4], len, Mode::Exact), |rank, mut backend| {
                    fill(&mut *backend, rank);
                    run(&mut *backend, 1, Op::Barrier);
                    run(&mut *backend, 2, Op::AllGather);
                    let gathered = backend.arena().lease(0);
                    for owner in 0..world as usize {
                        assert!(
                            Chunks::even(len, world as usize)
                                .chunk(owner)
                                .all(|i| gathered[i] == mark(owner, i))
                        );
                    }
                    fill(&mut *backend, rank);
                    run(&mut *backend, 3, Op::Broadcast { from: Rank(from as u32) });
                    assert!(backend.arena().lease(0).iter().enumerate().all(|(i, x)| *x == mark(from, i)));
                });
            }
        }
    }
}

#[test]
fn a_copy_gives_the_targets_the_bits_of_the_sources_on_every_backend() {
    for make in [shm, host] {
        for world in 1..=9 {
            for len in lengths(world) {
                let lists = copies(world);
                on_threads(make(&cut_evenly(4, world), &[4], len, Mode::Exact), |rank, mut backend| {
                    // One backend copies many windows, one after the other, as the copy of a whole state does.
                    for (seq, [sources, targets]) in lists.iter().enumerate() {
                        before_copy(backend.arena().lease(0), rank, sources);
                        run(&mut *backend, seq as u64, Op::Copy { sources, targets });
                        let right = is_copied(backend.arena().lease(0), rank, sources, targets);
                        assert!(right, "rank {rank} of {world}, {len} floats, {sources:?} to {targets:?}");
                    }
                });
            }
        }
    }
}

#[test]
fn a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum() {
    for (make, mode) in
        [(shm as fn(&[_], &[_], _, _) -> _, Mode::Exact), (host, Mode::Exact), (shm, Mode::Ring)]
    {
        for world in WORLDS {
            let ranges = cut_evenly(7, world);
            let whole = on_threads(host(&ranges, &[7], 1_000, mode), |rank, mut backend| {
                steps(&mut *backend, ranges[rank], &[7], mode).remove(0)
            });
            on_threads(make(&ranges, &[7], 1_000, mode), |rank, mut backend| {
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
    for make in [shm, host] {
        for mode in [Mode::Exact, Mode::Ring] {
            let ranges = cut_evenly(6, 3);
            let counts: Vec<u32> = (0..300).map(|step| [6, 5, 6, 1][step % 4]).collect();
            let got = on_threads(make(&ranges, &[6, 5, 1], 200, mode), |rank, mut backend| {
                steps(&mut *backend, ranges[rank], &counts, mode)
            });
            assert!(got[0] == got[1] && got[1] == got[2], "{mode:?}");
            for (step, (sum, _)) in got[0].iter().enumerate() {
                assert_eq!(*sum, got[0][step % 4].0, "step {step} differs from the first of its count");
            }
        }
    }
}

#[test]
#[should_panic(expected = "between collectives")]
fn slots_are_not_lent_inside_a_collective() {
    let mut backends = shm(&cut_evenly(2, 2), &[2], 8, Mode::Exact);
    backends[0].start(Sequence(1), &Op::Barrier).expect("a sound start");
    backends[0].arena();
}

#[test]
fn slots_start_on_cache_lines() {
    let mut backends = shm(&cut_evenly(5, 3), &[5], 1_001, Mode::Exact);
    for backend in &mut backends {
        for slot in 0..backend.arena().geometry().slots() {
            assert_eq!(backend.arena().lease(slot).as_ptr().align_offset(64), 0);
        }
    }
    let mut host = HostArena::new(Geometry { len: 17, root_slots: 3, scratch_slots: 0 });
    assert!((0..3).all(|slot| host.lease(slot).as_ptr().align_offset(64) == 0));
}
