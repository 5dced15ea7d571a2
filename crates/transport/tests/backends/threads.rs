//! Every backend between threads: algorithm x world x length x cut, against the plain tree and against one another.

use dtrain_collective::{
    Arena, Backend, Geometry, HostArena, HostBackend, Op, RankMachine, Reduce, Sequence,
};
use dtrain_oracle::conformance::{self, COUNTS, WORLDS, cuts, lengths, membership, on_threads, steps};
use dtrain_transport::shm::Isa;
use dtrain_transport::{ArenaFile, ShmBackend, memory_mesh};
use dtrain_types::{MicroRange, Trailer, Wire, WorldSize, cut_evenly};

/// Ranges of the ranks, counts of micro-batches, floats, mode.
type Case<'a> = (&'a [MicroRange], &'a [u32], usize, Reduce);

/// One backend for each rank, in shared memory that all of them map once; `cores` says what each knows of the machine.
fn shm_on(cores: impl Fn(usize) -> usize, wire: Wire, case: Case<'_>) -> Vec<Box<dyn Backend>> {
    let boxed = |backend| Box::new(backend) as Box<dyn Backend>;
    shm_backends(cores, wire, case).into_iter().map(boxed).collect()
}

fn shm_backends(
    cores: impl Fn(usize) -> usize,
    wire: Wire,
    (ranges, counts, len, mode): Case<'_>,
) -> Vec<ShmBackend> {
    let geometry = Geometry::plan(len, ranges, counts, mode);
    let file = ArenaFile::create(WorldSize(ranges.len() as u32), geometry).expect("a memfd");
    let mapping = file.map().expect("a mapping");
    let isas = [Isa::Baseline, Isa::detect()];
    let backend = |rank: usize| {
        let backend = ShmBackend::new(mapping.clone(), membership(1, rank, ranges), mode, counts);
        // Ranks with different instruction sets must agree on the bits.
        let backend = backend.expect("a good arena").with_isa(isas[rank % 2]);
        backend.with_cores(cores(rank)).with_wire(wire)
    };
    (0..ranges.len()).map(backend).collect()
}

/// Ranks that have their sums in common: in slot 0 of the first one alone. A core for each, or one for all.
fn in_common(cores: usize, case: Case<'_>) -> Vec<Box<dyn Backend>> {
    let boxed = |backend: ShmBackend| Box::new(backend.with_sum_in_common()) as Box<dyn Backend>;
    shm_backends(|_| cores, Wire::F32, case).into_iter().map(boxed).collect()
}

/// Ranks that share cores, and so the work of sums.
pub fn shm(ranges: &[MicroRange], counts: &[u32], len: usize, mode: Reduce) -> Vec<Box<dyn Backend>> {
    shm_in(Wire::F32, (ranges, counts, len, mode))
}

/// The same, whose sums are rounded.
pub fn shm_in(wire: Wire, (ranges, counts, len, mode): Case<'_>) -> Vec<Box<dyn Backend>> {
    shm_on(|_| 1, wire, (ranges, counts, len, mode))
}

/// Ranks with a core each, as they believe: each adds up its own chunk.
fn roomy(ranges: &[MicroRange], counts: &[u32], len: usize, mode: Reduce) -> Vec<Box<dyn Backend>> {
    shm_on(|_| ranges.len(), Wire::F32, (ranges, counts, len, mode))
}

/// Ranks that count cores differently: one of them finds too few, and all share the work.
fn at_odds(ranges: &[MicroRange], counts: &[u32], len: usize, mode: Reduce) -> Vec<Box<dyn Backend>> {
    let cores = |rank| if rank + 1 == ranges.len() { 1 } else { ranges.len() };
    shm_on(cores, Wire::F32, (ranges, counts, len, mode))
}

/// One backend for each rank, over queues, with short segments so that they get full.
pub fn host(ranges: &[MicroRange], counts: &[u32], len: usize, mode: Reduce) -> Vec<Box<dyn Backend>> {
    host_in(Wire::F32, (ranges, counts, len, mode))
}

/// The same, whose sums are rounded.
pub fn host_in(wire: Wire, (ranges, counts, len, mode): Case<'_>) -> Vec<Box<dyn Backend>> {
    let geometry = Geometry::plan(len, ranges, counts, mode);
    let backend = |(rank, transport)| {
        let machine =
            RankMachine::with_segment(membership(1, rank, ranges), mode, geometry, 64).expect("good");
        // And with little room for what comes before its time.
        let machine = machine.with_room_for(1 + rank % 2);
        let mut backend = HostBackend::from_machine(transport, machine).with_wire(wire);
        backend.prepare(counts);
        Box::new(backend) as Box<dyn Backend>
    };
    memory_mesh(ranges.len()).into_iter().enumerate().map(backend).collect()
}

#[test]
fn exact_steps_have_the_bits_of_the_plain_tree_on_every_backend() {
    conformance::exact_steps_have_the_bits_of_the_plain_tree(&WORLDS, &shm);
    conformance::exact_steps_have_the_bits_of_the_plain_tree(&WORLDS[..5], &roomy);
    conformance::exact_steps_have_the_bits_of_the_plain_tree(&WORLDS[..5], &at_odds);
    conformance::exact_steps_have_the_bits_of_the_plain_tree(&WORLDS, &host);
}

#[test]
fn a_sum_in_common_has_the_same_bits_and_lies_in_one_slot() {
    for cores in [1, 8] {
        let make = |ranges: &[MicroRange], counts: &[u32], len: usize, mode: Reduce| {
            in_common(cores, (ranges, counts, len, mode))
        };
        for (world, len) in WORLDS[..5].iter().flat_map(|world| lengths(*world).map(|len| (*world, len))) {
            for ranges in cuts(COUNTS[0], world) {
                let want = conformance::want(len, &COUNTS);
                on_threads(
                    make(&ranges, &COUNTS, len, Reduce::Exact),
                    |rank, mut backend: Box<dyn Backend>| {
                        for (seq, (count, want)) in (0..).zip(COUNTS.iter().zip(&want)) {
                            let own = ranges[rank];
                            let got =
                                conformance::one_step(&mut *backend, 2 * seq, own, *count, Reduce::Exact);
                            assert!(got == *want, "rank {rank}, {len} floats, {ranges:?}");
                            // All have read it before the first rank writes there again.
                            conformance::run(&mut *backend, 2 * seq + 1, Op::Barrier);
                        }
                    },
                );
            }
        }
        let backends = make(&cut_evenly(3, 3), &[3], 5_000, Reduce::Exact);
        on_threads(backends, |rank, mut backend: Box<dyn Backend>| {
            backend.arena().lease(0).fill(1.0);
            let op = Op::AllReduce { micro_batches: 3, trailers: &[Trailer::EMPTY] };
            conformance::run(&mut *backend, 1, op);
            assert!(backend.reduced().iter().all(|sum| *sum == 3.0));
            conformance::run(&mut *backend, 2, Op::Barrier);
            // Whoever is not the first has its own slot as it was.
            let own = if rank == 0 { 3.0 } else { 1.0 };
            assert!(backend.arena().lease(0).iter().all(|x| *x == own), "rank {rank}");
        });
    }
}

#[test]
fn ring_steps_have_the_same_bits_in_shared_memory_and_over_frames() {
    for world in WORLDS {
        for ranges in cuts(16, world) {
            for len in lengths(world) {
                let run = |backends| {
                    on_threads(backends, |rank, mut backend: Box<dyn Backend>| {
                        steps(&mut *backend, ranges[rank], &COUNTS, Reduce::Ring)
                    })
                };
                let over_frames = run(host(&ranges, &COUNTS, len, Reduce::Ring));
                let shared = run(shm(&ranges, &COUNTS, len, Reduce::Ring));
                assert!(over_frames == shared, "world {world}, {len} floats, {ranges:?}");
                // Ranks that believe to have a core each are slow where they have not: not the large worlds.
                if world <= 5 {
                    let owned = run(roomy(&ranges, &COUNTS, len, Reduce::Ring));
                    assert!(owned == shared, "world {world}, {len} floats, {ranges:?}, a core for each");
                }
                assert!(shared.iter().all(|rank| *rank == shared[0]), "ranks differ");
            }
        }
    }
}

#[test]
fn gather_broadcast_and_barrier_do_the_same_on_every_backend() {
    conformance::gathers_broadcasts_and_barriers_do_what_their_names_say(&WORLDS, &shm);
    conformance::gathers_broadcasts_and_barriers_do_what_their_names_say(&WORLDS, &host);
    conformance::what_ranks_need_is_there_where_they_have_said_what_that_is(&WORLDS, &shm);
    conformance::what_ranks_need_is_there_where_they_have_said_what_that_is(&WORLDS, &host);
}

#[test]
fn a_copy_gives_the_targets_the_bits_of_the_sources_on_every_backend() {
    conformance::a_copy_gives_the_targets_the_bits_of_the_sources(&WORLDS[..9], &shm);
    conformance::a_copy_gives_the_targets_the_bits_of_the_sources(&WORLDS[..9], &host);
}

#[test]
fn a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum() {
    conformance::a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum(&WORLDS, Reduce::Exact, &shm);
    conformance::a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum(&WORLDS, Reduce::Exact, &host);
    conformance::a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum(&WORLDS, Reduce::Ring, &shm);
    conformance::a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum(&WORLDS[..5], Reduce::Exact, &roomy);
}

#[test]
fn many_steps_in_a_row_stay_right_while_ranks_overtake_one_another() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        conformance::many_steps_in_a_row_stay_right(3, 200, mode, &shm);
        conformance::many_steps_in_a_row_stay_right(3, 200, mode, &roomy);
        // More pieces than ranks.
        conformance::many_steps_in_a_row_stay_right(3, 100_003, mode, &shm);
        conformance::many_steps_in_a_row_stay_right(3, 200, mode, &host);
    }
}

#[test]
#[should_panic(expected = "between collectives")]
fn slots_are_not_lent_inside_a_collective() {
    let mut backends = shm(&cut_evenly(2, 2), &[2], 8, Reduce::Exact);
    backends[0].start(Sequence(1), &Op::Barrier).expect("a sound start");
    backends[0].arena();
}

#[test]
fn slots_start_on_cache_lines() {
    let mut backends = shm(&cut_evenly(5, 3), &[5], 1_001, Reduce::Exact);
    for backend in &mut backends {
        for slot in 0..backend.arena().geometry().slots() {
            assert_eq!(backend.arena().lease(slot).as_ptr().align_offset(64), 0);
        }
    }
    let mut host = HostArena::new(Geometry { len: 17, root_slots: 3, scratch_slots: 0 });
    assert!((0..3).all(|slot| host.lease(slot).as_ptr().align_offset(64) == 0));
}
