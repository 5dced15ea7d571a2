//! Collectives between processes' worth of links: algorithm x world x length, against the plain tree and the queues.

use crate::links::{identity, loopback};
use dtrain_collective::{
    Assignment, Backend, CollectiveError, Geometry, HostBackend, Op, RankMachine, Reduce, SEGMENT, Sequence,
    Transport,
};
use dtrain_oracle::plain::{before_copy, bits, compute, copies, is_copied, reference, reference_trailer};
use dtrain_transport::memory_mesh;
use dtrain_transport::quic::{Endpoint, IoThread, MeshError, MeshPlan, MeshPort, QuicMesh, Token, Tuning};
use dtrain_types::{Generation, MicroRange, Rank, Trailer, cut_evenly};
use std::net::SocketAddr;
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(30);

/// A port with the thread that its links live on, as a process has them.
pub struct Host {
    pub port: MeshPort,
    pub io: IoThread,
}

impl Host {
    pub fn new(token: &Token, tuning: Tuning) -> Self {
        Self::at(loopback(), token, tuning)
    }

    pub fn at(addr: SocketAddr, token: &Token, tuning: Tuning) -> Self {
        let io = IoThread::start("links").expect("a thread");
        let identity = identity(token);
        let lender = io.lender();
        let made = async move {
            let bound = Endpoint::bind(addr, &identity, tuning);
            bound.map(|endpoint| MeshPort::lent_by(endpoint, lender))
        };
        Self { port: io.run(made).expect("a free port"), io }
    }
}

pub fn hosts(world: usize) -> Vec<Host> {
    let token = Token::generate();
    (0..world).map(|_| Host::new(&token, Tuning::default())).collect()
}

pub fn addrs(hosts: &[Host]) -> Vec<SocketAddr> {
    hosts.iter().map(|host| host.port.local_addr()).collect()
}

pub fn plan(generation: u64, index: usize, peers: &[SocketAddr]) -> MeshPlan {
    MeshPlan { generation: Generation(generation), index, peers: peers.to_vec(), patience: PATIENCE }
}

/// Runs `work` on a thread for each host.
pub fn on_threads<H: Send, R: Send>(hosts: Vec<H>, work: impl Fn(usize, H) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let spawn = |(index, host)| scope.spawn(move || work(index, host));
        let threads: Vec<_> = hosts.into_iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("a host panicked")).collect()
    })
}

/// One mesh between all hosts.
pub fn meshes(hosts: &[Host], generation: u64) -> Vec<QuicMesh> {
    let peers = addrs(hosts);
    on_threads(hosts.iter().collect(), |index, host: &Host| {
        QuicMesh::connect(&host.port, plan(generation, index, &peers)).expect("all are there")
    })
}

pub struct Case<'a> {
    pub ranges: &'a [MicroRange],
    pub counts: &'a [u32],
    pub len: usize,
    pub segment: usize,
    pub mode: Reduce,
}

fn backends<T: Transport>(ends: Vec<T>, generation: u64, case: &Case<'_>) -> Vec<HostBackend<T>> {
    let geometry = Geometry::plan(case.len, case.ranges, case.counts, case.mode);
    let backend = |(rank, end)| {
        let (generation, rank) = (Generation(generation), Rank(rank as u32));
        let membership = Assignment { generation, rank, ranges: case.ranges.to_vec() };
        let machine = RankMachine::with_segment(membership, case.mode, geometry, case.segment);
        let mut backend = HostBackend::from_machine(end, machine.expect("a good membership"));
        backend.prepare(case.counts);
        backend
    };
    ends.into_iter().enumerate().map(backend).collect()
}

/// A step of each count; gives the bits and the trailer of each.
fn steps(backend: &mut dyn Backend, range: MicroRange, case: &Case<'_>) -> Vec<(Vec<u32>, Trailer)> {
    let step = |(seq, count): (usize, &u32)| {
        let seq = Sequence(seq as u64);
        let trailers = compute(backend.arena(), range, *count, case.mode);
        let op = Op::AllReduce { micro_batches: *count, trailers: &trailers };
        backend.start(seq, &op).expect("a sound start");
        let trailer = backend.finish(seq).expect("a sound finish");
        (bits(backend.arena().lease(0)), trailer)
    };
    case.counts.iter().enumerate().map(step).collect()
}

pub fn run<T: Transport>(ends: Vec<T>, generation: u64, case: &Case<'_>) -> Vec<Vec<(Vec<u32>, Trailer)>> {
    on_threads(backends(ends, generation, case), |rank, mut backend| {
        steps(&mut backend, case.ranges[rank], case)
    })
}

/// Everything to one rank and nothing to some.
fn skewed(count: u32, world: u32) -> Vec<MicroRange> {
    let third = count / 3;
    let range = |rank| match rank {
        0 => MicroRange { lo: 0, hi: third },
        _ if rank + 1 == world => MicroRange { lo: third, hi: count },
        _ => MicroRange { lo: third, hi: third },
    };
    if world == 1 { cut_evenly(count, 1) } else { (0..world).map(range).collect() }
}

#[test]
fn exact_and_ring_steps_have_the_same_bits_as_the_plain_tree_and_the_queues() {
    let counts = [16, 9, 1];
    for world in 1..=5u32 {
        let hosts = hosts(world as usize);
        let mut generation = 0;
        for ranges in [cut_evenly(16, world), skewed(16, world)] {
            let n = world as usize;
            // Short segments fill the queues; full ones are what training sends.
            let shapes = [(0, 64), (1, 64), (n - 1, 64), (n + 1, 64), (1_000, 64), (5_237, 64)];
            for (len, segment) in shapes.into_iter().chain([(2 * SEGMENT + 77, SEGMENT)]) {
                for mode in [Reduce::Exact, Reduce::Ring] {
                    generation += 1;
                    let case = Case { ranges: &ranges, counts: &counts, len, segment, mode };
                    let got = run(meshes(&hosts, generation), generation, &case);
                    let want = match mode {
                        Reduce::Exact => {
                            let step = |count: &u32| (reference(len, *count), reference_trailer(*count));
                            vec![counts.iter().map(step).collect(); n]
                        }
                        Reduce::Ring => run(memory_mesh(n), generation, &case),
                    };
                    assert!(got == want, "world {world}, {len} floats, {mode:?}, {ranges:?}");
                }
            }
        }
    }
}

#[test]
fn state_is_copied_whoever_has_it_and_whoever_needs_it() {
    for world in 1..=4u32 {
        let hosts = hosts(world as usize);
        let lists = copies(world);
        for (generation, (len, segment)) in [(1_000, 64), (2 * SEGMENT + 5, SEGMENT)].into_iter().enumerate()
        {
            let generation = generation as u64 + 1;
            let ranges = cut_evenly(4, world);
            let case = Case { ranges: &ranges, counts: &[4], len, segment, mode: Reduce::Exact };
            on_threads(backends(meshes(&hosts, generation), generation, &case), |rank, mut backend| {
                for (seq, [sources, targets]) in lists.iter().enumerate() {
                    before_copy(backend.arena().lease(0), rank, sources);
                    run_op(&mut backend, 2 * seq as u64, Op::Copy { sources, targets, len: usize::MAX });
                    let right = is_copied(backend.arena().lease(0), rank, sources, targets);
                    assert!(right, "rank {rank} of {world}, {len} floats, {sources:?} to {targets:?}");
                    run_op(&mut backend, 2 * seq as u64 + 1, Op::Barrier);
                }
            });
        }
    }
}

fn run_op(backend: &mut dyn Backend, seq: u64, op: Op<'_>) {
    backend.start(Sequence(seq), &op).expect("a sound start");
    assert_eq!(backend.finish(Sequence(seq)), Ok(Trailer::EMPTY));
}

#[test]
fn many_steps_in_a_row_stay_right_while_hosts_overtake_one_another() {
    let hosts = hosts(3);
    let counts: Vec<u32> = (0..300).map(|step| [6, 5, 6, 1][step % 4]).collect();
    for (generation, mode) in [(1, Reduce::Exact), (2, Reduce::Ring)] {
        let case = Case { ranges: &cut_evenly(6, 3), counts: &counts, len: 700, segment: 64, mode };
        let got = run(meshes(&hosts, generation), generation, &case);
        assert!(got[0] == got[1] && got[1] == got[2], "{mode:?}");
        for (step, (sum, _)) in got[0].iter().enumerate() {
            assert_eq!(*sum, got[0][step % 4].0, "step {step} differs from the first of its count");
        }
    }
}

#[test]
fn exactly_the_peers_that_did_not_come_are_named() {
    let hosts = hosts(4);
    let mut peers = addrs(&hosts);
    // Peer 3 is a socket that never answers; peer 0 is there and does not come.
    let deaf = std::net::UdpSocket::bind(loopback()).expect("a free port");
    peers[3] = deaf.local_addr().expect("it has one");
    let results = on_threads(hosts.iter().collect(), |index, host: &Host| {
        let patience = Duration::from_millis(700);
        (1..3)
            .contains(&index)
            .then(|| QuicMesh::connect(&host.port, MeshPlan { patience, ..plan(1, index, &peers) }).map(drop))
    });
    for index in [1, 2] {
        let Some(Err(MeshError::Unreachable { missing, .. })) = &results[index] else {
            panic!("{results:?}")
        };
        assert_eq!(*missing, [0, 3], "host {index}");
    }
}

#[test]
fn a_generation_that_is_over_is_refused_here_and_at_a_peer() {
    let hosts = hosts(2);
    drop(meshes(&hosts, 5));
    let peers = addrs(&hosts);
    for generation in [4, 5] {
        let stale = QuicMesh::connect(&hosts[0].port, plan(generation, 0, &peers)).map(drop);
        let generation = Generation(generation);
        assert_eq!(stale, Err(MeshError::Stale { generation, newest: Generation(5) }));
    }
    // Host 1 has gone on to 7 with others; host 0 still wants 6.
    let alone = [peers[1]];
    drop(QuicMesh::connect(&hosts[1].port, plan(7, 0, &alone)).expect("nobody else is in it"));
    let superseded = QuicMesh::connect(&hosts[0].port, plan(6, 0, &peers)).map(drop);
    assert_eq!(superseded, Err(MeshError::Superseded { generation: Generation(6), peer: 1 }));
}

#[test]
fn a_hello_that_comes_early_waits_for_its_generation() {
    let hosts = hosts(2);
    let peers = addrs(&hosts);
    std::thread::scope(|scope| {
        let (first, second) = (&hosts[0], &hosts[1]);
        let early = scope.spawn(|| QuicMesh::connect(&first.port, plan(9, 0, &peers)).map(drop));
        // Host 1 goes through generations of its own meanwhile.
        for generation in 1..9 {
            drop(QuicMesh::connect(&second.port, plan(generation, 0, &peers[1..])).expect("alone"));
        }
        let late = QuicMesh::connect(&second.port, plan(9, 1, &peers)).map(drop);
        assert_eq!((early.join().expect("no panic"), late), (Ok(()), Ok(())));
    });
}

fn lost(result: Result<Trailer, CollectiveError>) -> Rank {
    match result {
        Err(CollectiveError::Lost { to, .. }) => to,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_host_that_dies_inside_a_collective_is_lost_by_name_and_the_rest_form_anew() {
    let token = Token::generate();
    let tuning = Tuning {
        idle_timeout: Duration::from_millis(600),
        keep_alive: Duration::from_millis(100),
        ..Tuning::default()
    };
    let mut hosts: Vec<Host> = (0..3).map(|_| Host::new(&token, tuning)).collect();
    let case = Case { ranges: &cut_evenly(3, 3), counts: &[3], len: 1_000, segment: 64, mode: Reduce::Exact };
    let mut backends = backends(meshes(&hosts, 1), 1, &case);
    let dead = backends.pop().expect("three");
    let victim = hosts.pop().expect("three");
    // Its links end without a word, as those of a killed process do: nothing of it runs any more.
    let (held, release) = std::sync::mpsc::channel::<()>();
    victim.io.handle().spawn(async move { release.recv().ok() });
    let blamed = on_threads(backends, |rank, mut backend| {
        let trailers = compute(backend.arena(), case.ranges[rank], 3, Reduce::Exact);
        let op = Op::AllReduce { micro_batches: 3, trailers: &trailers };
        backend.start(Sequence(1), &op).expect("a sound start");
        lost(backend.finish(Sequence(1)))
    });
    // Whoever hears first gives up and says so, so the other may hear of it before the silence is long enough.
    assert!(blamed.contains(&Rank(2)), "{blamed:?}");
    let case = Case { ranges: &cut_evenly(3, 2), ..case };
    let got = run(meshes(&hosts, 2), 2, &case);
    assert!(got.iter().all(|steps| *steps == [(reference(1_000, 3), reference_trailer(3))]));
    drop(held);
    drop((dead, victim));
}

#[test]
fn an_abort_ends_the_wait_for_a_peer_that_does_not_come() {
    let hosts = hosts(2);
    let case = Case { ranges: &cut_evenly(2, 2), counts: &[2], len: 10, segment: 64, mode: Reduce::Exact };
    let mut backends = backends(meshes(&hosts, 1), 1, &case);
    let _absent = backends.pop();
    let mut backend = backends.pop().expect("two");
    let aborter = backend.aborter();
    backend.start(Sequence(1), &Op::Barrier).expect("a sound start");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| backend.finish(Sequence(1)));
        aborter.abort("the supervisor says so");
        assert!(matches!(waiting.join().expect("no panic"), Err(CollectiveError::Aborted { .. })));
    });
}

#[test]
fn what_a_mesh_has_queued_arrives_though_it_is_dropped_and_its_port_closed() {
    let mut hosts = hosts(2);
    // A broadcast needs nothing back, so the sender is done while most of it is on its way.
    let len = 20 * SEGMENT;
    let case = Case { ranges: &cut_evenly(2, 2), counts: &[2], len, segment: SEGMENT, mode: Reduce::Exact };
    let mut backends = backends(meshes(&hosts, 1), 1, &case);
    let (mut receiver, mut sender) = (backends.pop().expect("two"), backends.pop().expect("two"));
    let op = Op::Copy { sources: &[Rank(0)], targets: &[Rank(1)], len: usize::MAX };
    std::thread::scope(|scope| {
        let Host { port, io } = hosts.remove(0);
        scope.spawn(move || {
            sender.arena().lease(0).fill(2.5);
            sender.start(Sequence(1), &op).expect("a sound start");
            sender.finish(Sequence(1)).expect("a sound finish");
            drop(sender);
            io.run(port.close(PATIENCE));
        });
        receiver.start(Sequence(1), &op).expect("a sound start");
        receiver.finish(Sequence(1)).expect("it all comes");
        assert!(receiver.arena().lease(0).iter().all(|x| *x == 2.5));
    });
}
