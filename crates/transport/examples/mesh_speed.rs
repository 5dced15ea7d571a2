//! All-reduce between hosts over QUIC on loopback: time of one operation and bytes a second.
//!
//! `cargo run --release -p dtrain-transport --example mesh_speed [-- HOSTS [MTU]]`. Each host has a compute thread and an
//! I/O thread in this process, so on two cores two hosts already share them. The gradient is rewritten before every
//! operation, as a backward pass does; only the operation is timed. CPU time is of the whole process, per byte that a
//! host reduces.

use dtrain_collective::{Assignment, Backend, Geometry, HostBackend, Op, Reduce, Sequence};
use dtrain_transport::quic::{
    Endpoint, Identity, IoThread, LARGEST_DATAGRAM, MeshPlan, MeshPort, QuicMesh, Token, Tuning,
    ValidityWindow,
};
use dtrain_types::{Generation, Rank, Trailer, cut_evenly};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

const SIZES_KIB: [usize; 5] = [4, 64, 1 << 10, 16 << 10, 64 << 10];
/// How long each size is measured, at least.
const SPAN: Duration = Duration::from_millis(1500);

struct Host {
    port: MeshPort,
    _io: IoThread,
}

fn host(token: &Token, tuning: Tuning) -> Host {
    let io = IoThread::start("links").expect("a thread");
    let window = ValidityWindow::around(SystemTime::now());
    let identity = Identity::from_token(token, window).expect("an identity");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let bind = async move { Endpoint::bind(any, &identity, tuning).map(MeshPort::new) };
    let port = io.run(bind).expect("a free port");
    Host { port, _io: io }
}

/// Operations of one host until the first host has had enough; gives the times of each.
fn operations(backend: &mut dyn Backend, hosts: u32, index: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut seq = 0;
    let mut run = |backend: &mut dyn Backend, op: Op<'_>| {
        seq += 1;
        let begun = Instant::now();
        backend.start(Sequence(seq), &op).expect("start");
        let trailer = backend.finish(Sequence(seq)).expect("finish");
        (begun.elapsed(), trailer)
    };
    loop {
        let enough = index == 0 && begun.elapsed() > SPAN && times.len() > 2;
        let trailers = [Trailer { stop: u32::from(enough), ..Trailer::EMPTY }];
        backend.arena().lease(0).fill(1.5);
        run(backend, Op::Barrier);
        let (took, trailer) = run(backend, Op::AllReduce { micro_batches: hosts, trailers: &trailers });
        times.push(took);
        if trailer.stop != 0 {
            return times;
        }
    }
}

fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let world: usize = args.next().map_or(2, |text| text.parse().expect("a number of hosts"));
    let largest_datagram =
        args.next().map_or(LARGEST_DATAGRAM, |text| text.parse().expect("bytes of a datagram"));
    let tuning = Tuning { largest_datagram, ..Tuning::default() };
    let token = Token::generate();
    let hosts: Vec<Host> = (0..world).map(|_| host(&token, tuning)).collect();
    let peers: Vec<SocketAddr> = hosts.iter().map(|host| host.port.local_addr()).collect();
    println!("{world} hosts on loopback, datagrams of at most {largest_datagram} bytes, reduce: exact");
    println!("{:>10}  {:>12}  {:>12}  {:>9}  {:>12}", "bytes", "median us", "best us", "MB/s", "CPU s / GB");
    for (generation, kib) in (1..).zip(SIZES_KIB) {
        let begun_cpu = cpu_time();
        let mut all: Vec<Vec<Duration>> = std::thread::scope(|scope| {
            let threads: Vec<_> = hosts
                .iter()
                .enumerate()
                .map(|(index, host)| {
                    let peers = peers.clone();
                    scope.spawn(move || {
                        let (generation, patience) = (Generation(generation), Duration::from_secs(10));
                        let plan = MeshPlan { generation, index, peers, patience };
                        let mesh = QuicMesh::connect(&host.port, plan).expect("all are there");
                        let (ranges, counts) = (cut_evenly(world as u32, world as u32), [world as u32]);
                        let geometry = Geometry::plan(kib * 256, &ranges, &counts, Reduce::Exact);
                        let membership = Assignment { generation, rank: Rank(index as u32), ranges };
                        let mut backend =
                            HostBackend::new(mesh, membership, Reduce::Exact, geometry, &counts)
                                .expect("good");
                        operations(&mut backend, world as u32, index)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let times = &mut all[0];
        times.sort_unstable();
        let median = times[times.len() / 2];
        let bytes = kib * 1024;
        let megabytes = bytes as f64 / 1e6 / median.as_secs_f64();
        let used = (cpu_time() - begun_cpu).as_secs_f64() / (times.len() * bytes * world) as f64 * 1e9;
        println!(
            "{bytes:>10}  {:>12.1}  {:>12.1}  {megabytes:>9.0}  {used:>12.2}",
            median.as_secs_f64() * 1e6,
            times[0].as_secs_f64() * 1e6,
        );
    }
}
