//! One all-reduce of two ranks, per backend and size.
//!
//! Two pinned threads; each rewrites its gradient before every operation, as a backward pass does, because a loop over
//! untouched buffers flatters. Only the operation is timed: a barrier stands between the writing and the clock.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dtrain_collective::{Assignment, Backend, Geometry, HostBackend, Op, Reduce, Sequence};
use dtrain_transport::{ArenaFile, ShmBackend, memory_mesh};
use dtrain_types::{Generation, MicroRange, Rank, Trailer, WorldSize, cut_evenly};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const RANKS: usize = 2;
const SIZES_KIB: [usize; 5] = [4, 64, 1 << 10, 16 << 10, 64 << 10];

fn membership(rank: usize, ranges: &[MicroRange]) -> Assignment {
    Assignment { generation: Generation(1), rank: Rank(rank as u32), ranges: ranges.to_vec() }
}

fn shm(len: usize, mode: Reduce) -> Vec<Box<dyn Backend>> {
    let ranges = cut_evenly(RANKS as u32, RANKS as u32);
    let geometry = Geometry::plan(len, &ranges, &[RANKS as u32], mode);
    let file = ArenaFile::create(WorldSize(RANKS as u32), geometry).expect("a memfd");
    let mapping = file.map().expect("a mapping");
    let join = |rank| ShmBackend::new(mapping.clone(), membership(rank, &ranges), mode, &[RANKS as u32]);
    (0..RANKS).map(|rank| Box::new(join(rank).expect("free")) as Box<dyn Backend>).collect()
}

fn host(len: usize, mode: Reduce) -> Vec<Box<dyn Backend>> {
    let ranges = cut_evenly(RANKS as u32, RANKS as u32);
    let geometry = Geometry::plan(len, &ranges, &[RANKS as u32], mode);
    let ends = memory_mesh(RANKS).into_iter().enumerate();
    let join =
        |(rank, end)| HostBackend::new(end, membership(rank, &ranges), mode, geometry, &[RANKS as u32]);
    ends.map(|end| Box::new(join(end).expect("good")) as Box<dyn Backend>).collect()
}

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    // Where pinning is forbidden, or there is no such core, the numbers are only noisier.
    let _unpinned = sched_setaffinity(None, &cores);
}

fn operations(backend: &mut dyn Backend, next: &mut u64, count: u64) -> Duration {
    let mut total = Duration::ZERO;
    let mut seq = || {
        *next += 1;
        Sequence(*next)
    };
    let op = Op::AllReduce { micro_batches: RANKS as u32, trailers: &[Trailer::EMPTY] };
    for _ in 0..count {
        backend.arena().lease(0).fill(1.5);
        let ready = seq();
        backend.start(ready, &Op::Barrier).expect("start");
        backend.finish(ready).expect("finish");
        let reduce = seq();
        let begun = Instant::now();
        backend.start(reduce, &op).expect("start");
        backend.finish(reduce).expect("finish");
        total += begun.elapsed();
    }
    total
}

fn follow(mut backend: Box<dyn Backend>, counts: &Receiver<u64>) {
    pin(1);
    let mut next = 0;
    for count in counts {
        operations(&mut *backend, &mut next, count);
    }
}

fn bench(c: &mut Criterion) {
    type Make = fn(usize, Reduce) -> Vec<Box<dyn Backend>>;
    let backends: [(&str, Make, Reduce); 3] = [
        ("shm exact", shm, Reduce::Exact),
        ("threads exact", host, Reduce::Exact),
        ("threads ring", host, Reduce::Ring),
    ];
    pin(0);
    for (name, make, mode) in backends {
        let mut group = c.benchmark_group(name);
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(800));
        for kib in SIZES_KIB {
            let mut pair = make(kib * 256, mode);
            let (other, mut own) = (pair.pop().expect("two"), pair.pop().expect("two"));
            let (send, counts): (Sender<u64>, _) = channel();
            std::thread::scope(|scope| {
                scope.spawn(move || follow(other, &counts));
                let mut next = 0;
                group.throughput(Throughput::Bytes(kib as u64 * 1024));
                group.bench_function(BenchmarkId::from_parameter(format!("{kib} KiB")), |b| {
                    b.iter_custom(|count| {
                        send.send(count).expect("the other rank lives");
                        operations(&mut *own, &mut next, count)
                    });
                });
                drop(send);
            });
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
