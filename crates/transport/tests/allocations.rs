//! A prepared backend allocates nothing in a collective: counted by the allocator itself, on the threads of the ranks. None of these
//! backends has others; what the test's own machinery does meanwhile is its affair.

#[path = "../../../tests/harness/counting.rs"]
mod counting;

use counting::Counting;
use dtrain_collective::{
    Assignment, Backend, Geometry, Header, HostBackend, Op, OpKind, Outgoing, Reduce, SEGMENT, Sequence, Tag,
    Take, Transport, Verdict,
};
use dtrain_transport::{
    ArenaFile, HierarchicalBackend, HierarchicalSetup, Mapping, MemoryTransport, ShmBackend, Topology,
    memory_mesh,
};
use dtrain_types::{Generation, MicroRange, Rank, Trailer, Wire, WorldSize, cut_evenly, roots};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting(|| {
    if RANK.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
});

thread_local! {
    /// Whether this thread is a rank.
    static RANK: Cell<bool> = const { Cell::new(false) };
}

/// Long enough for several segments in each chunk.
const LEN: usize = 5 * SEGMENT + 17;
const COUNTS: [u32; 2] = [7, 5];

fn ranges() -> Vec<MicroRange> {
    cut_evenly(COUNTS[0], 4)
}

fn membership(rank: usize) -> Assignment {
    Assignment { generation: Generation(1), rank: Rank(rank as u32), ranges: ranges() }
}

fn geometry() -> Geometry {
    Geometry::bound(LEN, COUNTS[0], Reduce::Exact)
}

fn arena(ranks: u32) -> Arc<Mapping> {
    ArenaFile::create(WorldSize(ranks), geometry()).and_then(|file| file.map()).expect("an arena")
}

/// A mesh whose queues have had as many full frames in them as they can hold, and one in the receiver's hands.
fn warm_mesh(world: usize) -> Vec<MemoryTransport> {
    let mut ends = memory_mesh(world);
    let payload = vec![0.0; SEGMENT];
    let tag = Tag {
        generation: Generation(0),
        sequence: Sequence(0),
        op: OpKind::Barrier,
        operand: 0,
        round: 0,
        part: 0,
        segment: 0,
    };
    for (from, to) in (0..world).flat_map(|from| (0..world).map(move |to| (from, to))) {
        if from == to {
            continue;
        }
        let (low, high) = ends.split_at_mut(from.max(to));
        let (a, b) = (&mut low[from.min(to)], &mut high[0]);
        let (sender, receiver) = if from < to { (a, b) } else { (b, a) };
        let frame = Outgoing {
            to: Rank(to as u32),
            header: Header { tag, wire: Wire::F32, trailer: None },
            payload: &payload,
        };
        while sender.try_send(&frame).expect("the receiver is there") {}
        let mut held = |_: dtrain_collective::Frame<'_>| {
            // While it is looked at, its place in the queue is free: one more buffer comes into use.
            while sender.try_send(&frame).expect("the receiver is there") {}
            Ok(Verdict::Later)
        };
        receiver.receive(&mut held).expect("a sound mesh");
        receiver.receive(&mut |_| Ok(Verdict::Taken)).expect("a sound mesh");
    }
    ends
}

fn shm() -> Vec<Box<dyn Backend>> {
    let mapping = arena(4);
    let join = |rank| ShmBackend::new(mapping.clone(), membership(rank), Reduce::Exact, &COUNTS);
    (0..4).map(|rank| Box::new(join(rank).expect("free")) as Box<dyn Backend>).collect()
}

fn host() -> Vec<Box<dyn Backend>> {
    let ends = warm_mesh(4).into_iter().enumerate();
    let join = |(rank, end)| HostBackend::new(end, membership(rank), Reduce::Exact, geometry(), &COUNTS);
    ends.map(|end| Box::new(join(end).expect("good")) as Box<dyn Backend>).collect()
}

fn hierarchical() -> Vec<Box<dyn Backend>> {
    let topology = Topology::new(&[3, 1]).expect("two hosts");
    let arenas = [arena(3), arena(1)];
    let mut ends = warm_mesh(2);
    let (second, first) = (ends.pop(), ends.pop());
    let mut ends = [first, None, None, second];
    let join = |rank: usize| {
        let setup = HierarchicalSetup {
            membership: membership(rank),
            topology: topology.clone(),
            mode: Reduce::Exact,
            counts: &COUNTS,
            segment: SEGMENT,
        };
        let host = topology.host_of(Rank(rank as u32));
        HierarchicalBackend::new(arenas[host].clone(), ends[rank].take(), setup).expect("a good place")
    };
    (0..4).map(join).map(|backend| Box::new(backend) as Box<dyn Backend>).collect()
}

/// One step of each count, the second in three pieces, and one of every other collective.
fn round(backend: &mut dyn Backend, next: &mut u64, trailers: &[Vec<Trailer>; 2]) {
    let sources = [Rank(0), Rank(2)];
    let ops = [
        Op::AllReduce { micro_batches: COUNTS[0], trailers: &trailers[0] },
        Op::AllReduce { micro_batches: COUNTS[1], trailers: &trailers[1] },
        Op::Barrier,
        Op::ReduceScatter { micro_batches: COUNTS[1], trailers: &trailers[1] },
        Op::AllGather { cuts: None, take: Take::All },
        Op::Copy { sources: &sources, targets: &[Rank(1), Rank(3)], len: usize::MAX },
        Op::Broadcast { from: Rank(1) },
    ];
    for op in ops {
        for slot in 0..3 {
            backend.arena().lease(slot).fill(1.5);
        }
        *next += 1;
        if let Op::AllReduce { micro_batches: count, trailers: [_, ..] } = op
            && count == COUNTS[1]
        {
            for from in [2 * LEN / 3, LEN / 3] {
                backend.offer(Sequence(*next), count, from);
            }
        }
        backend.start(Sequence(*next), &op).expect("a sound start");
        backend.finish(Sequence(*next)).expect("a sound finish");
    }
}

fn allocations(backends: Vec<Box<dyn Backend>>) -> u64 {
    let together = Barrier::new(backends.len());
    let counted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (rank, mut backend) in backends.into_iter().enumerate() {
            let (together, counted) = (&together, &counted);
            scope.spawn(move || {
                RANK.set(true);
                let own = |count| vec![Trailer::EMPTY; roots(ranges()[rank], count).len()];
                let trailers = COUNTS.map(own);
                let mut next = 0;
                together.wait();
                let before = ALLOCATIONS.load(Ordering::SeqCst);
                together.wait();
                (0..10).for_each(|_| round(&mut *backend, &mut next, &trailers));
                together.wait();
                counted.store(ALLOCATIONS.load(Ordering::SeqCst) - before, Ordering::SeqCst);
                // Nobody drops anything before all have looked.
                together.wait();
            });
        }
    });
    counted.into_inner()
}

#[test]
fn a_prepared_backend_allocates_nothing_in_a_collective() {
    for (name, make) in [("shm", shm as fn() -> _), ("host", host), ("hierarchical", hierarchical)] {
        assert_eq!(allocations(make()), 0, "{name}");
    }
}
