//! A world on several hosts, played by threads: an arena per host, queues between the leaders.

use crate::threads::{host, shm};
use dtrain_collective::{
    Backend, CollectiveError, Frame, Geometry, Op, Outgoing, Reduce, Sequence, Take, Transport, Verdict,
    Waker, rank_roots,
};
use dtrain_oracle::conformance::{
    self, COUNTS, Make, cuts, lengths, membership, on_ranks, on_threads, run, steps, want,
};
use dtrain_oracle::offered::offered_steps;
use dtrain_oracle::plain::{before_copy, compute, is_copied, reference, reference_trailer};
use dtrain_transport::shm::Isa;
use dtrain_transport::{
    ArenaFile, HierarchicalBackend, HierarchicalError, HierarchicalSetup, Mapping, MemoryTransport, ShmError,
    Topology, memory_mesh,
};
use dtrain_types::{Generation, MicroRange, Rank, Trailer, Wire, WorldSize, cut_evenly};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Ranks of each host.
const TOPOLOGIES: [&[u32]; 14] = [
    &[1],
    &[3],
    &[1, 1],
    &[2, 1],
    &[2, 2],
    &[3, 1],
    &[1, 3],
    &[1, 1, 1, 1],
    &[2, 2, 2],
    &[1, 4, 2],
    &[4, 1, 2],
    &[3, 5],
    &[4, 4],
    &[1, 2, 1, 2, 1, 1],
];

pub fn world(hosts: &[u32]) -> u32 {
    hosts.iter().sum()
}

/// An arena for a host, as one that outlives generations is made.
fn arena(ranks: u32, len: usize, micro_batches: u32, mode: Reduce) -> Arc<Mapping> {
    let geometry = Geometry::bound(len, micro_batches, mode);
    ArenaFile::create(WorldSize(ranks), geometry).and_then(|file| file.map()).expect("an arena")
}

type Hosts = Vec<Arc<Mapping>>;

fn join(
    arenas: &[Arc<Mapping>],
    transport: Option<MemoryTransport>,
    setup: HierarchicalSetup<'_>,
) -> Result<HierarchicalBackend<MemoryTransport>, HierarchicalError> {
    let host = setup.topology.host_of(setup.membership.rank);
    HierarchicalBackend::new(arenas[host].clone(), transport, setup)
}

/// One backend for each rank, and the arenas of the hosts.
fn hierarchical(
    hosts: &[u32],
    ranges: &[MicroRange],
    counts: &[u32],
    len: usize,
    mode: Reduce,
) -> (Vec<Box<dyn Backend>>, Hosts) {
    hierarchical_in(Wire::F32, hosts, ranges, counts, len, mode)
}

/// The same, whose sums are rounded.
pub fn hierarchical_in(
    wire: Wire,
    hosts: &[u32],
    ranges: &[MicroRange],
    counts: &[u32],
    len: usize,
    mode: Reduce,
) -> (Vec<Box<dyn Backend>>, Hosts) {
    let topology = Topology::new(hosts).expect("hosts");
    let full = ranges.last().map_or(1, |range| range.hi);
    let arenas: Hosts = hosts.iter().map(|ranks| arena(*ranks, len, full, mode)).collect();
    let mut ends: Vec<_> = memory_mesh(hosts.len()).into_iter().map(Some).collect();
    let isas = [Isa::Baseline, Isa::detect()];
    let backend = |rank: usize| {
        let host = topology.host_of(Rank(rank as u32));
        let leads = topology.leader(host) == Rank(rank as u32) && hosts.len() > 1;
        let transport = if leads { ends[host].take() } else { None };
        let (membership, topology) = (membership(1, rank, ranges), topology.clone());
        // Short segments, so that queues get full.
        let setup = HierarchicalSetup { membership, topology, mode, counts, segment: 64 };
        let backend =
            join(&arenas, transport, setup).expect("a good place").with_isa(isas[rank % 2]).with_wire(wire);
        Box::new(backend) as Box<dyn Backend>
    };
    ((0..ranges.len()).map(backend).collect(), arenas)
}

/// Tells `each` a way to make a world of every topology.
fn on_every_topology(each: impl Fn(&[u32], Make<'_>)) {
    for hosts in TOPOLOGIES {
        each(&[world(hosts)], &|ranges, counts, len, mode| hierarchical(hosts, ranges, counts, len, mode).0);
    }
}

#[test]
fn exact_steps_have_the_bits_of_the_plain_tree_on_every_topology() {
    on_every_topology(conformance::exact_steps_have_the_bits_of_the_plain_tree);
}

/// Offers of every kind make the sums that they should.
fn offers_make_the_sum_of(hosts: &[u32], len: usize, ranges: &[MicroRange]) {
    let (backends, _arenas) = hierarchical(hosts, ranges, &COUNTS, len, Reduce::Exact);
    assert_eq!(backends[0].takes_offers(), hosts.len() > 1);
    let got =
        on_ranks(backends, |rank, mut backend| offered_steps(&mut *backend, rank, ranges[rank], &COUNTS));
    let want = want(len, &COUNTS);
    for (rank, got) in got.iter().enumerate() {
        assert!(*got == want, "rank {rank} of {hosts:?}, {len} floats, {ranges:?}");
    }
}

#[test]
fn what_ranks_offer_ahead_of_a_sum_does_not_change_it_on_any_topology() {
    for hosts in TOPOLOGIES {
        for ranges in cuts(COUNTS[0], world(hosts)) {
            [1, 1_237].into_iter().for_each(|len| offers_make_the_sum_of(hosts, len, &ranges));
        }
    }
}

#[test]
fn ranks_of_a_host_add_up_what_all_of_them_have_given_while_the_rest_is_computed() {
    for hosts in [&[1, 1][..], &[2, 1], &[3, 2]] {
        offers_make_the_sum_of(hosts, 300_000, &cut_evenly(16, world(hosts)));
    }
}

#[test]
fn an_offer_that_comes_to_nothing_leaves_the_rest_of_the_slots_and_the_start_tells_of_it() {
    let ranges = cut_evenly(2, 2);
    let (hosts, _arenas) = hierarchical(&[1, 1], &ranges, &[2], 100, Reduce::Exact);
    for mut backends in [hosts, host(&ranges, &[2], 100, Reduce::Exact)] {
        let backend = &mut backends[0];
        assert!(backend.takes_offers());
        backend.aborter().abort("a peer is gone");
        for from in [60, 30] {
            backend.arena().lease_part(0, from..from + 30).fill(1.0);
            backend.offer(Sequence(1), 2, from);
        }
        // A pass that is not over still writes.
        backend.arena().lease_part(0, 0..30).fill(1.0);
        let op = Op::AllReduce { micro_batches: 2, trailers: &[Trailer::EMPTY] };
        let started = backend.start(Sequence(1), &op);
        assert!(matches!(started, Err(CollectiveError::Aborted { .. })), "{started:?}");
        assert!(backend.start(Sequence(2), &Op::Barrier).is_err());
    }
}

#[test]
fn every_cut_of_a_step_over_two_hosts_has_the_bits_of_the_plain_tree() {
    // Cuts that no planner makes: roots of a host that are made of many roots of its ranks, and of some that are not.
    let counts = [11, 7];
    let want: Vec<_> = counts.map(|count| (reference(50, count), reference_trailer(count))).to_vec();
    for (a, b, c) in (0..=11u32).flat_map(|a| (a..=11).map(move |b| (a, b, (a + b).div_ceil(2)))) {
        let ranges = [(0, a), (a, c), (c, b), (b, 11)].map(|(lo, hi)| MicroRange { lo, hi });
        for hosts in [[2, 2], [1, 3], [3, 1]] {
            let (backends, _arenas) = hierarchical(&hosts, &ranges, &counts, 50, Reduce::Exact);
            let got = on_threads(backends, |rank, mut backend| {
                steps(&mut *backend, ranges[rank], &counts, Reduce::Exact)
            });
            assert!(got.iter().all(|got| *got == want), "{hosts:?} {ranges:?}");
        }
    }
}

#[test]
fn ring_steps_give_all_ranks_the_same_sum_and_on_one_rank_per_host_that_of_the_flat_ring() {
    let counts = [16, 9, 1];
    for hosts in TOPOLOGIES {
        let world = world(hosts);
        for ranges in cuts(16, world) {
            for len in lengths(world) {
                let run = |backends| {
                    on_threads(backends, |rank, mut backend: Box<dyn Backend>| {
                        steps(&mut *backend, ranges[rank], &counts, Reduce::Ring)
                    })
                };
                let (backends, _arenas) = hierarchical(hosts, &ranges, &counts, len, Reduce::Ring);
                let got = run(backends);
                assert!(got.iter().all(|rank| *rank == got[0]), "ranks differ: {hosts:?} {len} {ranges:?}");
                let flat = run(shm(&ranges, &counts, len, Reduce::Ring));
                if hosts.iter().all(|ranks| *ranks == 1) {
                    assert!(got == flat, "{hosts:?}, {len} floats, {ranges:?}");
                }
                for (ours, theirs) in got[0].iter().zip(&flat[0]) {
                    let near = |(a, b): (&u32, &u32)| {
                        let (a, b) = (f32::from_bits(*a), f32::from_bits(*b));
                        (a - b).abs() <= 1e-2 + 1e-5 * b.abs()
                    };
                    assert!(ours.0.iter().zip(&theirs.0).all(near), "{hosts:?}, {len} floats");
                    assert_eq!(ours.1.samples, theirs.1.samples);
                }
            }
        }
    }
}

#[test]
fn gather_broadcast_and_barrier_do_across_hosts_what_they_do_on_one() {
    on_every_topology(conformance::gathers_broadcasts_and_barriers_do_what_their_names_say);
    on_every_topology(conformance::what_ranks_need_is_there_where_they_have_said_what_that_is);
}

#[test]
fn a_copy_across_hosts_gives_the_targets_the_bits_of_the_sources() {
    on_every_topology(conformance::a_copy_gives_the_targets_the_bits_of_the_sources);
}

#[test]
fn a_reduce_scatter_across_hosts_gives_each_rank_its_chunk_of_the_sum() {
    on_every_topology(|world, make| {
        conformance::a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum(world, Reduce::Exact, make);
    });
}

#[test]
fn many_steps_in_a_row_stay_right_while_hosts_overtake_one_another() {
    let hosts = [2, 1, 2];
    conformance::many_steps_in_a_row_stay_right(5, 200, Reduce::Exact, &|ranges, counts, len, mode| {
        hierarchical(&hosts, ranges, counts, len, mode).0
    });
}

/// Counts the floats that it sends, and says when it waits.
struct Counted {
    end: MemoryTransport,
    floats: Arc<AtomicUsize>,
    waits: Sender<()>,
}

impl Transport for Counted {
    fn try_send(&mut self, frame: &Outgoing<'_>) -> Result<bool, CollectiveError> {
        let sent = self.end.try_send(frame)?;
        self.floats.fetch_add(if sent { frame.payload.len() } else { 0 }, Ordering::Relaxed);
        Ok(sent)
    }

    fn receive(
        &mut self,
        sink: &mut dyn FnMut(Frame<'_>) -> Result<Verdict, CollectiveError>,
    ) -> Result<usize, CollectiveError> {
        self.end.receive(sink)
    }

    fn wait(&mut self) -> Result<(), CollectiveError> {
        // Nobody may be listening.
        let _heard = self.waits.send(());
        self.end.wait()
    }

    fn waker(&self) -> Waker {
        self.end.waker()
    }

    fn describe(&self) -> String {
        "counted threads".into()
    }
}

/// Backends for steps of six micro-batches whose leaders have counted transports.
struct Watched {
    backends: Vec<Box<dyn Backend>>,
    arenas: Hosts,
    floats: Arc<AtomicUsize>,
    /// Hears of every wait of a leader.
    waits: Receiver<()>,
}

fn watched(hosts: &[u32], ranges: &[MicroRange], len: usize) -> Watched {
    let topology = Topology::new(hosts).expect("hosts");
    let (floats, (sender, waits)) = (Arc::new(AtomicUsize::new(0)), channel());
    let arenas: Hosts = hosts.iter().map(|ranks| arena(*ranks, len, 6, Reduce::Exact)).collect();
    let counted = |end| Some(Counted { end, floats: floats.clone(), waits: sender.clone() });
    let mut ends: Vec<_> = memory_mesh(hosts.len()).into_iter().map(counted).collect();
    let backend = |rank: usize| {
        let (host, membership) = (topology.host_of(Rank(rank as u32)), membership(1, rank, ranges));
        let end = if topology.leader(host) == membership.rank { ends[host].take() } else { None };
        let transport = end.map(|end| Box::new(end) as Box<dyn Transport>);
        let topology = topology.clone();
        let setup =
            HierarchicalSetup { membership, topology, mode: Reduce::Exact, counts: &[6], segment: 64 };
        let backend = HierarchicalBackend::new(arenas[host].clone(), transport, setup);
        Box::new(backend.expect("a good place")) as Box<dyn Backend>
    };
    let backends = (0..ranges.len()).map(backend).collect();
    Watched { backends, arenas, floats, waits }
}

#[test]
fn between_hosts_a_float_travels_once_for_each_host_that_needs_it() {
    const LEN: usize = 3 * 1_600;
    let ranges = cut_evenly(6, 6);
    let topology = Topology::new(&[2, 3, 1]).expect("hosts");
    let Watched { backends, floats, .. } = watched(&[2, 3, 1], &ranges, LEN);
    // Host 0 has a third of the state and host 1 two thirds; each host has one rank that needs all of it.
    let (sources, targets) = ([Rank(0), Rank(2), Rank(3)], [Rank(1), Rank(4), Rank(5)]);
    let backends = on_threads(backends, |rank, mut backend| {
        before_copy(backend.arena().lease(0), rank, &sources);
        run(&mut *backend, 1, Op::Copy { sources: &sources, targets: &targets, len: usize::MAX });
        assert!(is_copied(backend.arena().lease(0), rank, &sources, &targets));
        backend
    });
    let third = LEN / 3;
    assert_eq!(floats.swap(0, Ordering::Relaxed), 2 * third + third + LEN);
    on_threads(backends, |rank, mut backend| step(&mut *backend, ranges[rank], 2).expect("a sound step"));
    // Each root of a host goes to the two other owners, a third of it each, and each sum to the two other hosts.
    let roots: usize =
        (0..3).map(|host| rank_roots(host_range(&ranges, &topology, host), 6, Reduce::Exact).len()).sum();
    assert_eq!(floats.load(Ordering::Relaxed), roots * 2 * LEN / 3 + 2 * LEN);
}

fn host_range(ranges: &[MicroRange], topology: &Topology, host: usize) -> MicroRange {
    let ranks = &ranges[topology.ranks(host)];
    MicroRange { lo: ranks[0].lo, hi: ranks[ranks.len() - 1].hi }
}

fn step(backend: &mut dyn Backend, range: MicroRange, seq: u64) -> Result<(), CollectiveError> {
    let trailers = compute(backend.arena(), range, 6, Reduce::Exact);
    backend.start(Sequence(seq), &Op::AllReduce { micro_batches: 6, trailers: &trailers })?;
    backend.finish(Sequence(seq)).map(drop)
}

#[test]
fn an_abort_on_a_host_ends_its_leaders_wait_for_the_other_hosts() {
    let ranges = cut_evenly(6, 4);
    let Watched { mut backends, arenas, waits, .. } = watched(&[2, 2], &ranges, 1_000);
    // Host 1 never comes, so its leader's frames never do; only the abort can end these waits.
    let missing = backends.split_off(2);
    let aborter = HierarchicalBackend::<MemoryTransport>::watcher(arenas[0].clone(), Generation(1));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            on_threads(backends, |rank, mut backend| {
                let first = step(&mut *backend, ranges[rank], 1);
                (first, backend.start(Sequence(2), &Op::Barrier))
            })
        });
        // The leader looks at the arena for the last time before it waits: from here on only a waker reaches it.
        waits.recv().expect("the leader waits");
        aborter.abort("rank 3 was killed");
        for (first, second) in waiting.join().expect("no panic") {
            for result in [first, second] {
                assert!(matches!(result, Err(CollectiveError::Aborted { .. })), "{result:?}");
            }
        }
    });
    drop(missing);
}

#[test]
fn a_lost_host_is_told_by_the_leader_as_its_leader_and_its_peers_do_not_wait() {
    let (hosts, ranges) = ([2, 1, 3], cut_evenly(6, 6));
    let (mut backends, _arenas) = hierarchical(&hosts, &ranges, &[6], 1_000, Reduce::Exact);
    // Host 2 is ranks 3, 4 and 5; its end of the mesh is gone before anybody sends to it.
    drop(backends.split_off(3));
    drop(backends.remove(2));
    let results = on_threads(backends, |rank, mut backend| step(&mut *backend, ranges[rank], 1));
    assert!(matches!(&results[0], Err(CollectiveError::Lost { to: Rank(2 | 3), .. })), "{results:?}");
    assert!(matches!(&results[1], Err(CollectiveError::Aborted { .. })), "{results:?}");
}

#[test]
fn hosts_in_different_collectives_find_out_and_no_rank_of_them_hangs() {
    let ranges = cut_evenly(6, 4);
    let (backends, _arenas) = hierarchical(&[2, 2], &ranges, &[6], 10, Reduce::Exact);
    let results = on_threads(backends, |rank, mut backend| {
        let op = if rank < 2 { Op::Barrier } else { Op::AllGather { cuts: None, take: Take::All } };
        let first = backend.start(Sequence(1), &op).and_then(|()| backend.finish(Sequence(1)));
        // Keeps the other end until both have seen the other's frame.
        (first.map(drop), backend)
    });
    for (rank, other) in [(0, Rank(2)), (2, Rank(0))] {
        let result = &results[rank].0;
        assert!(
            matches!(result, Err(CollectiveError::Mismatch { from, .. }) if *from == other),
            "{result:?}"
        );
    }
    for rank in [1, 3] {
        assert!(matches!(results[rank].0, Err(CollectiveError::Aborted { .. })), "{:?}", results[rank].0);
    }
}

#[test]
fn ranks_of_one_host_in_different_collectives_are_named_by_their_rank_in_the_world() {
    let ranges = cut_evenly(6, 3);
    let (backends, _arenas) = hierarchical(&[1, 2], &ranges, &[6], 10, Reduce::Exact);
    let both = backends.into_iter().skip(1).collect();
    let results = on_threads(both, |rank, mut backend| {
        let op = if rank == 0 { Op::Barrier } else { Op::AllGather { cuts: None, take: Take::All } };
        backend.start(Sequence(1), &op).and_then(|()| backend.finish(Sequence(1))).map(drop)
    });
    for (result, other) in results.iter().zip([Rank(2), Rank(1)]) {
        assert!(
            matches!(result, Err(CollectiveError::Mismatch { from, .. }) if *from == other),
            "{result:?}"
        );
    }
}

#[test]
fn the_next_generation_works_in_the_arenas_of_the_last_with_another_topology() {
    // Five ranks on two hosts; then a rank of host 0 is gone, and its host has one rank.
    let counts = [6];
    let arenas: Hosts = [2, 3].map(|ranks| arena(ranks, 300, 6, Reduce::Exact)).to_vec();
    for (generation, hosts) in [(1, [2, 3]), (2, [1, 3]), (3, [2, 2])] {
        let topology = Topology::new(&hosts).expect("hosts");
        let ranges = cut_evenly(6, world(&hosts));
        let mut ends: Vec<_> = memory_mesh(2).into_iter().map(Some).collect();
        let backend = |rank: usize| {
            let membership = membership(generation, rank, &ranges);
            let host = topology.host_of(membership.rank);
            let transport = if topology.leader(host) == membership.rank { ends[host].take() } else { None };
            let topology = topology.clone();
            let setup =
                HierarchicalSetup { membership, topology, mode: Reduce::Exact, counts: &counts, segment: 64 };
            Box::new(join(&arenas, transport, setup).expect("a good place")) as Box<dyn Backend>
        };
        let backends = (0..ranges.len()).map(backend).collect();
        let got = on_threads(backends, |rank, mut backend| {
            steps(&mut *backend, ranges[rank], &counts, Reduce::Exact).remove(0)
        });
        assert!(got.iter().all(|got| *got == (reference(300, 6), reference_trailer(6))), "{generation}");
    }
}

#[test]
fn a_place_that_makes_no_sense_is_refused_with_its_reason() {
    let ranges = cut_evenly(6, 3);
    let arenas: Hosts = [1, 2].map(|ranks| arena(ranks, 10, 6, Reduce::Exact)).to_vec();
    let setup = |rank: usize, hosts: &[u32]| HierarchicalSetup {
        membership: membership(1, rank, &ranges),
        topology: Topology::new(hosts).expect("hosts"),
        mode: Reduce::Exact,
        counts: &[6],
        segment: 64,
    };
    let end = || memory_mesh(2).pop();
    let refused = |transport, setup| join(&arenas, transport, setup).err().expect("refused");
    assert!(matches!(refused(None, setup(0, &[1, 1])), HierarchicalError::World { .. }));
    assert!(matches!(refused(None, setup(0, &[1, 2])), HierarchicalError::Link { rank: Rank(0), .. }));
    assert!(matches!(refused(end(), setup(2, &[1, 2])), HierarchicalError::Link { rank: Rank(2), .. }));
    assert!(matches!(refused(end(), setup(0, &[3])), HierarchicalError::Arena(ShmError::TooSmall { .. })));
    // A host root needs a slot of the leader, though no rank has more than one root.
    let small = ArenaFile::create(WorldSize(3), Geometry { len: 10, root_slots: 1, scratch_slots: 3 });
    let small = small.and_then(|file| file.map()).expect("an arena");
    let place = |counts: &[u32]| {
        let ranges = [(0, 1), (1, 2), (2, 3), (3, 8)].map(|(lo, hi)| MicroRange { lo, hi });
        let setup = HierarchicalSetup {
            membership: membership(1, 1, &ranges),
            topology: Topology::new(&[3, 1]).expect("hosts"),
            mode: Reduce::Exact,
            counts,
            segment: 64,
        };
        HierarchicalBackend::<MemoryTransport>::new(small.clone(), None, setup).err()
    };
    let refused = place(&[8]);
    assert!(matches!(refused, Some(HierarchicalError::Arena(ShmError::TooSmall { .. }))), "{refused:?}");
    assert_eq!(place(&[3]), None, "three micro-batches are one root of that host");
}
