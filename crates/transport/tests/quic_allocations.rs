//! However many steps a mesh carries, its compute thread allocates no more than the buffers that may be under way.
//!
//! Where that thread runs the tasks of the links while it waits, what the library of QUIC allocates for its packets is not
//! counted: it is the same on whatever thread the links live.

#[path = "../../../tests/harness/counting.rs"]
mod counting;

use counting::Counting;
use dtrain_collective::{
    Assignment, Backend, CollectiveError, Frame, Geometry, HostBackend, Op, Outgoing, Reduce, SEGMENT,
    Sequence, Transport, Verdict, Waker,
};
use dtrain_transport::quic::{
    Endpoint, Identity, IoThread, LinkError, MeshPlan, MeshPort, QuicMesh, Token, Tuning, ValidityWindow,
};
use dtrain_types::{Generation, Rank, Trailer, cut_evenly};
use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends frees and allocates after its own counter is gone.
    let _gone = HERE.try_with(|here| here.set(here.get() + 1));
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(count);

const HOSTS: usize = 2;
const STEPS: u64 = 400;
/// Frames that may be under way to the one peer, each a buffer that grows at most twice: small, then full.
const BUFFERS: u64 = 256 * 3;

fn host(token: &Token, lends: bool) -> (MeshPort, IoThread) {
    let io = IoThread::start("links").expect("a thread");
    let window = ValidityWindow::around(SystemTime::now());
    let identity = Identity::from_token(token, window).expect("an identity");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let lender = io.lender();
    let made = async move {
        let endpoint = Endpoint::bind(any, &identity, Tuning::default())?;
        Ok::<_, LinkError>(if lends { MeshPort::lent_by(endpoint, lender) } else { MeshPort::new(endpoint) })
    };
    (io.run(made).expect("a free port"), io)
}

/// A mesh whose waits are not counted.
struct WaitsApart(QuicMesh);

impl Transport for WaitsApart {
    fn try_send(&mut self, frame: &Outgoing<'_>) -> Result<bool, CollectiveError> {
        self.0.try_send(frame)
    }

    fn try_send_ahead(&mut self, frame: &Outgoing<'_>) -> Result<bool, CollectiveError> {
        self.0.try_send_ahead(frame)
    }

    fn receive(
        &mut self,
        sink: &mut dyn FnMut(Frame<'_>) -> Result<Verdict, CollectiveError>,
    ) -> Result<usize, CollectiveError> {
        self.0.receive(sink)
    }

    fn wait(&mut self) -> Result<(), CollectiveError> {
        let before = HERE.get();
        let waited = self.0.wait();
        HERE.set(before);
        waited
    }

    fn rest(&mut self) {
        self.0.rest();
    }

    fn waker(&self) -> Waker {
        self.0.waker()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

fn step(backend: &mut dyn Backend, seq: u64) {
    backend.arena().lease(0).fill(1.0);
    let op = Op::AllReduce { micro_batches: HOSTS as u32, trailers: &[Trailer::EMPTY] };
    if seq % 2 == 1 {
        backend.offer(Sequence(seq), HOSTS as u32, SEGMENT);
    }
    backend.start(Sequence(seq), &op).expect("a sound start");
    backend.finish(Sequence(seq)).expect("a sound finish");
}

/// What each compute thread allocates in all steps but the first, which makes what the machine itself keeps.
fn allocations(lends: bool) -> Vec<u64> {
    let token = Token::generate();
    let hosts: Vec<_> = (0..HOSTS).map(|_| host(&token, lends)).collect();
    let peers: Vec<_> = hosts.iter().map(|(port, _)| port.local_addr()).collect();
    let run = |index: usize| {
        let (generation, patience) = (Generation(1), Duration::from_secs(30));
        let plan = MeshPlan { generation, index, peers: peers.clone(), patience };
        let mesh = QuicMesh::connect(&hosts[index].0, plan).expect("all come");
        let mesh: Box<dyn Transport> = if lends { Box::new(WaitsApart(mesh)) } else { Box::new(mesh) };
        let (ranges, counts) = (cut_evenly(HOSTS as u32, HOSTS as u32), [HOSTS as u32]);
        let geometry = Geometry::plan(3 * SEGMENT + 5, &ranges, &counts, Reduce::Exact);
        let membership = Assignment { generation, rank: Rank(index as u32), ranges };
        let made = HostBackend::new(mesh, membership, Reduce::Exact, geometry, &counts);
        let mut backend = made.expect("a good membership");
        step(&mut backend, 0);
        let before = HERE.get();
        (1..STEPS).for_each(|seq| step(&mut backend, seq));
        HERE.get() - before
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..HOSTS).map(|index| scope.spawn(move || run(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn the_compute_thread_of_a_mesh_allocates_its_buffers_and_then_nothing() {
    for lends in [false, true] {
        let made = allocations(lends);
        assert!(
            made.iter().all(|count| *count <= BUFFERS),
            "{made:?} allocations in {STEPS} steps, lends: {lends}"
        );
    }
}
