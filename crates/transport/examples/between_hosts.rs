//! All-reduce between two hosts over QUIC beside a bare QUIC link between the same two processes.
//!
//! `bench/between_hosts.py` starts it twice, in two network namespaces:
//! `between_hosts INDEX OWN_ADDRESS PEER_ADDRESS [PAIRS [KIB...]]`, with the token in `TOKEN`. The first process (index 0)
//! prints a line of JSON for each size: the times of every operation in microseconds, in turn a bare exchange, an all-reduce
//! in `exact` and one in `ring`; the size of the datagrams; and the CPU time of this process.
//!
//! A bare exchange is what the links could do if nothing else were to do: a stream of the same settings on a link of its own,
//! on a thread of its own, carries as many bytes each way as the all-reduce does, in chunks that are not copied. For small sizes it
//! is 64 bytes there and back instead, which is the round trip.

use bytes::Bytes;
use dtrain_collective::{Assignment, Backend, Geometry, HostBackend, Op, RankMachine, Reduce, Sequence};
use dtrain_transport::quic::{
    Connection, Endpoint, Identity, IoThread, MESH_SEGMENT, MeshPlan, MeshPort, QuicMesh, RecvStream,
    SendStream, Token, Tuning, ValidityWindow,
};
use dtrain_types::{Generation, Rank, Trailer, cut_evenly};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

const PORT: u16 = 7_400;
const PATIENCE: Duration = Duration::from_secs(20);
/// From here on an exchange of as many bytes is the bar, below it the round trip.
const LARGE: usize = 1 << 20;
/// What a chunk of the bare exchange has.
const CHUNK: usize = 256 << 10;
/// Operations that are not counted, so that buffers, windows and the size of datagrams are found.
const WARM: usize = 3;

/// What the command line says.
struct Position {
    index: usize,
    own: IpAddr,
    peer: IpAddr,
    pairs: usize,
    sizes: Vec<usize>,
}

impl Position {
    fn read() -> Self {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let number = |text: &String| text.parse().expect("a number");
        let sizes = match args.get(4..).unwrap_or_default() {
            [] => vec![4 << 10, 64 << 20],
            kib => kib.iter().map(|kib| number(kib) * 1024).collect(),
        };
        Self {
            index: number(&args[0]),
            own: args[1].parse().expect("an address"),
            peer: args[2].parse().expect("an address"),
            pairs: args.get(3).map_or(5, number),
            sizes,
        }
    }

    /// The addresses of both, by index.
    fn both(&self, port: u16) -> [SocketAddr; 2] {
        let (own, peer) = (SocketAddr::new(self.own, port), SocketAddr::new(self.peer, port));
        if self.index == 0 { [own, peer] } else { [peer, own] }
    }
}

/// A link with one stream and nothing on top.
struct Bare {
    io: IoThread,
    _endpoint: Endpoint,
    link: Connection,
    streams: Option<(SendStream, RecvStream)>,
}

impl Bare {
    fn open(position: &Position, identity: Identity) -> Self {
        let io = IoThread::start("bare").expect("a thread");
        let [first, second] = position.both(PORT + 1);
        let index = position.index;
        let (endpoint, link, mut streams) = io.run(async move {
            let own = if index == 0 { first } else { second };
            let mut endpoint = Endpoint::bind(own, &identity, Tuning::default()).expect("a free port");
            let begun = Instant::now();
            let (link, streams) = loop {
                if index == 1 {
                    let link = endpoint.accept().await.expect("the first dials");
                    let (_, send, recv) = link.accept_stream().await.expect("a stream");
                    break (link, (send, recv));
                }
                match endpoint.connect(second).await {
                    Ok(link) => {
                        let streams = link.open_bulk().await.expect("a stream");
                        break (link, streams);
                    }
                    Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
                }
            };
            (endpoint, link, Some(streams))
        });
        let streams = streams.take();
        let mut bare = Self { io, _endpoint: endpoint, link, streams };
        bare.meet();
        bare
    }

    fn with<F>(&mut self, work: impl FnOnce(SendStream, RecvStream) -> F)
    where
        F: Future<Output = (SendStream, RecvStream)> + Send + 'static,
    {
        let (send, recv) = self.streams.take().expect("nobody else has them");
        self.streams = Some(self.io.run(work(send, recv)));
    }

    /// 64 bytes each way at once: nobody is ahead of the other by more than half a round trip.
    fn meet(&mut self) {
        self.with(|mut send, mut recv| async move {
            send.write_all(&[1; 64]).await.expect("the peer is there");
            recv.read_exact(&mut [0; 64]).await.expect("the peer is there");
            (send, recv)
        });
    }

    /// There and back, asked by the process with index 0; the time of it there.
    fn ping(&mut self, index: usize) -> Took {
        self.meet();
        let clock = Clock::start();
        let (tell, told) = std::sync::mpsc::channel();
        self.with(|mut send, mut recv| async move {
            let begun = Instant::now();
            let mut bytes = [2; 64];
            if index == 0 {
                send.write_all(&bytes).await.expect("the peer is there");
            }
            recv.read_exact(&mut bytes).await.expect("the peer is there");
            if index == 1 {
                send.write_all(&bytes).await.expect("the peer is there");
            }
            tell.send(begun.elapsed()).expect("it is heard");
            (send, recv)
        });
        Took { wall: told.recv().expect("it was told"), ..clock.stop() }
    }

    /// As many bytes as `data` has, both ways at once.
    fn exchange(&mut self, data: &Bytes) -> Took {
        self.meet();
        let data = data.clone();
        let clock = Clock::start();
        self.with(|mut send, mut recv| async move {
            let all = data.len();
            let write = async {
                for at in (0..all).step_by(CHUNK) {
                    let chunk = data.slice(at..(at + CHUNK).min(all));
                    send.write_chunk(chunk).await.expect("the peer is there");
                }
            };
            let read = async {
                let mut left = all;
                while left > 0 {
                    let piece = recv.read_chunk(CHUNK.min(left), true).await.expect("the peer is there");
                    left -= piece.expect("the stream goes on").bytes.len();
                }
            };
            tokio::join!(write, read);
            (send, recv)
        });
        clock.stop()
    }
}

/// A mesh of two for one size and mode.
struct Ours {
    backend: HostBackend<QuicMesh>,
    sequence: u64,
    bytes: usize,
}

impl Ours {
    fn join(position: &Position, port: &MeshPort, generation: u64, bytes: usize, mode: Reduce) -> Self {
        let generation = Generation(generation);
        let peers = position.both(PORT).to_vec();
        let plan = MeshPlan { generation, index: position.index, peers, patience: PATIENCE };
        let mesh = QuicMesh::connect(port, plan).expect("the peer comes");
        let (ranges, counts) = (cut_evenly(2, 2), [2]);
        let geometry = Geometry::plan(bytes / 4, &ranges, &counts, mode);
        let membership = Assignment { generation, rank: Rank(position.index as u32), ranges };
        let machine = RankMachine::with_segment(membership, mode, geometry, MESH_SEGMENT);
        let mut backend = HostBackend::from_machine(mesh, machine.expect("a good plan"));
        backend.prepare(&counts);
        Self { backend, sequence: 0, bytes }
    }

    fn run(&mut self, op: &Op<'_>) -> Took {
        self.sequence += 1;
        let clock = Clock::start();
        self.backend.start(Sequence(self.sequence), op).expect("start");
        self.backend.finish(Sequence(self.sequence)).expect("finish");
        clock.stop()
    }

    /// One all-reduce over a buffer that was just written, as a backward pass writes it. Checks the sum.
    fn all_reduce(&mut self) -> Took {
        self.backend.arena().lease(0).fill(1.5);
        self.run(&Op::Barrier);
        let took = self.run(&Op::AllReduce { micro_batches: 2, trailers: &[Trailer::EMPTY] });
        let sum = self.backend.arena().lease(0);
        assert!(sum.len() * 4 >= self.bytes && sum[..self.bytes / 4].iter().all(|float| *float == 3.0));
        took
    }
}

/// What one operation took here.
struct Took {
    wall: Duration,
    cpu: Duration,
}

struct Clock {
    begun: Instant,
    cpu: Duration,
}

impl Clock {
    fn start() -> Self {
        Self { begun: Instant::now(), cpu: cpu_time() }
    }

    fn stop(&self) -> Took {
        Took { wall: self.begun.elapsed(), cpu: cpu_time() - self.cpu }
    }
}

fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// The times of one kind of operation.
#[derive(Default)]
struct Times {
    micros: Vec<f64>,
    cpu: Duration,
}

impl Times {
    fn note(&mut self, took: &Took) {
        self.micros.push(took.wall.as_secs_f64() * 1e6);
        self.cpu += took.cpu;
    }

    fn json(&self) -> String {
        let times: Vec<String> = self.micros.iter().map(|time| format!("{time:.1}")).collect();
        let cpu = self.cpu.as_secs_f64() * 1e6 / self.micros.len() as f64;
        format!("{{\"us\": [{}], \"cpu_us\": {cpu:.1}}}", times.join(", "))
    }
}

fn main() {
    let position = Position::read();
    let token: Token = std::env::var("TOKEN").expect("TOKEN is set").parse().expect("a token");
    let identity =
        || Identity::from_token(&token, ValidityWindow::around(SystemTime::now())).expect("an identity");
    let io = IoThread::start("links").expect("a thread");
    let (own, first) = (position.both(PORT)[position.index], identity());
    let lender = io.lender();
    let made = async move {
        Endpoint::bind(own, &first, Tuning::default()).map(|endpoint| MeshPort::lent_by(endpoint, lender))
    };
    let port = io.run(made).expect("a free port");
    let mut bare = Bare::open(&position, identity());
    for (place, &bytes) in position.sizes.iter().enumerate() {
        let data = Bytes::from(vec![7; bytes]);
        let generation = place as u64 * 2 + 1;
        let mut exact = Ours::join(&position, &port, generation, bytes, Reduce::Exact);
        let mut ring = Ours::join(&position, &port, generation + 1, bytes, Reduce::Ring);
        let mut times: [Times; 3] = Default::default();
        for turn in 0..position.pairs + WARM {
            if turn == WARM {
                times = Default::default();
            }
            times[0].note(&if bytes < LARGE { bare.ping(position.index) } else { bare.exchange(&data) });
            times[1].note(&exact.all_reduce());
            times[2].note(&ring.all_reduce());
        }
        if position.index == 0 {
            let [bare_times, exact, ring] = times.map(|times| times.json());
            println!(
                "{{\"bytes\": {bytes}, \"datagram\": {}, \"bare\": {bare_times}, \"exact\": {exact}, \"ring\": {ring}}}",
                bare.link.datagram_size()
            );
        }
    }
    // Who is ahead must not close the links under the other.
    bare.meet();
}
