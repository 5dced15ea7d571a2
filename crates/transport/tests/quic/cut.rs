//! A path that is cut in the middle of an all-reduce: the log and the failure name both hosts and how long nothing came.

use crate::links::identity;
use crate::lossy::{Network, Weather};
use dtrain_collective::{
    Arena, Assignment, CollectiveError, Geometry, Op, RankMachine, Reduce, Sequence, Transport,
};
use dtrain_transport::quic::{Endpoint, MeshPlan, MeshPort, QuicMesh, Token, Tuning};
use dtrain_types::{Generation, Rank, Trailer, cut_evenly};
use std::fmt::{Debug, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;
use tracing::field::{Field, Visit};

/// So many floats take the path some tens of round trips.
const LEN: usize = 1 << 20;

fn addr(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + host as u8], 1000 + host as u16))
}

/// Takes part until the first error. The first frame of the peer that it uses cuts the path.
async fn rank(network: Arc<Network>, token: Token, rank: usize) -> CollectiveError {
    let socket = network.socket(addr(rank));
    let endpoint =
        Endpoint::with_socket(socket, &identity(&token), Tuning::default(), Some([rank as u8; 32]));
    let port = MeshPort::new(endpoint.expect("good numbers"));
    let (generation, patience) = (Generation(1), Duration::from_secs(20));
    let plan = MeshPlan { generation, index: rank, peers: vec![addr(0), addr(1)], patience };
    let mut mesh = QuicMesh::establish(&port, plan).await.expect("both come");
    let ranges = cut_evenly(2, 2);
    let geometry = Geometry::plan(LEN, &ranges, &[2], Reduce::Exact);
    let membership = Assignment { generation, rank: Rank(rank as u32), ranges };
    let mut machine = RankMachine::new(membership, Reduce::Exact, geometry).expect("a good membership");
    machine.prepare(&[2]);
    machine.arena().lease(0).fill(1.0);
    machine.start(Sequence(1), &Op::AllReduce { micro_batches: 2, trailers: &[Trailer::EMPTY] });
    loop {
        while let Some(frame) = machine.poll_send() {
            match mesh.try_send(&frame) {
                Ok(true) => machine.sent(),
                Ok(false) => break,
                Err(error) => return error,
            }
        }
        match mesh.receive(&mut |frame| machine.handle_frame(&frame)) {
            Ok(0) => sleep(Duration::from_millis(1)).await,
            Ok(_) => network.cut(),
            Err(error) => return error,
        }
        assert!(!machine.is_done(), "it was cut in the middle");
    }
}

/// Writes down what is logged as a warning.
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").expect("a string");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN && metadata.target().starts_with("dtrain")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().expect("no panic").push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_path_that_is_cut_in_an_all_reduce_is_named_with_both_hosts_and_the_time_of_silence() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let errors = tracing::subscriber::with_default(Log(Arc::clone(&log)), || {
        runtime.expect("a runtime").block_on(async {
            let network = Network::new(Weather { seed: 1, loss: 0, delay: (1, 2), largest: 1472 });
            let token = Token::generate();
            let ranks = [0, 1].map(|host| tokio::spawn(rank(Arc::clone(&network), token.clone(), host)));
            let [first, second] = ranks;
            [first.await.expect("no panic"), second.await.expect("no panic")]
        })
    });
    let log = log.lock().expect("no panic");
    for (rank, error) in errors.iter().enumerate() {
        let (here, there) = (addr(rank), addr(1 - rank));
        let CollectiveError::Lost { to, what } = error else { panic!("{error:?}") };
        assert_eq!(to.index(), 1 - rank);
        let seconds = what.strip_prefix(&format!("nothing came from {there} to {here} for "));
        let seconds: f64 = seconds.and_then(|rest| rest.strip_suffix(" s")).expect(what).parse().expect(what);
        assert!((2.5..6.0).contains(&seconds), "{what}");
        let told: Vec<&String> =
            log.iter().filter(|line| line.contains(&format!("here={here} there={there}"))).collect();
        assert_eq!(told.len(), 1, "{log:?}");
        assert!(told[0].contains("nothing comes over the link"), "{told:?}");
        assert!(told[0].contains("since="), "{told:?}");
    }
}
