//! Where the nodes of other hosts reach the supervisor: accepts their links, one a node, and carries words both nodes.
//!
//! Whoever comes through the endpoint has the token; this file only sees to it that each node has one link. It does not
//! know what the words mean, except the first one, which says who is there.

use crate::clock::time_of_day;
use crate::hosts_file::note_host;
use crate::link::{self, LinkReceiver, LinkSender};
use crate::mail::Heard;
use crate::supervisor::{NodeIs, NodeLost, Supervisor, ToNode};
use dtrain_protocol::{
    BootId, ClockReading, Goodbye, Message as Word, NodeReport, Outcome, RankSetup, Timeouts,
};
use dtrain_telemetry::Board;
use dtrain_transport::quic::{Connection, Endpoint, Identity, IoThread, Kind, LinkError, Tuning};
use dtrain_types::{NodeId, counted};
use kameo::prelude::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

/// Where other hosts join a run; it listens from the moment it is opened.
pub struct Gateway {
    endpoint: Endpoint,
    /// Carries the packets. It ends after the endpoint.
    links: IoThread,
    most_nodes: u32,
    timeouts: Timeouts,
    /// The folder of the run, where it is written down who was let in.
    run_dir: PathBuf,
    setup: RankSetup,
    /// The node beside the supervisor, which comes by another way; none where the supervisor has no ranks beside it.
    beside: Option<NodeId>,
    board: Option<Arc<Board>>,
}

impl Gateway {
    /// Listens at `addr` for the nodes 1 to `most_nodes - 1`.
    ///
    /// *Errors*: of the endpoint, [`LinkError::Busy`] above all. *Panics* inside an asynchronous task.
    pub fn open(
        addr: SocketAddr,
        identity: &Identity,
        most_nodes: u32,
        timeouts: Timeouts,
    ) -> Result<Self, LinkError> {
        let unable = |error: std::io::Error| LinkError::Bind { addr, what: error.to_string() };
        let links = IoThread::start("links").map_err(unable)?;
        let own = identity.clone();
        let tuning = tuning(&timeouts);
        let endpoint = links.run(async move { Endpoint::bind(addr, &own, tuning) })?;
        let (run_dir, setup, beside) = (PathBuf::new(), RankSetup::default(), Some(NodeId(0)));
        Ok(Self { endpoint, links, most_nodes, timeouts, run_dir, setup, beside, board: None })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// The same for the run in this folder, with the set-up that every node gets.
    #[must_use]
    pub fn of_run(self, run_dir: PathBuf, setup: RankSetup) -> Self {
        Self { run_dir, setup, ..self }
    }

    /// The same for a supervisor that leads from a host whose node calls it like all others.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { beside: None, ..self }
    }

    /// The same with what is told to whoever asks how the run is.
    #[must_use]
    pub fn telling(self, board: Arc<Board>) -> Self {
        Self { board: Some(board), ..self }
    }

    /// Begins to let nodes in. *Panics* outside of a tokio runtime.
    pub(crate) fn start(self, supervisor: ActorRef<Supervisor>) -> OpenGateway {
        let Self { mut endpoint, links, most_nodes, timeouts, run_dir, setup, beside, board } = self;
        if let Some(node) = beside {
            note_host(&run_dir, node);
        }
        let (noting, linked) = (tokio::sync::Mutex::new(run_dir), Mutex::default());
        let registry =
            Arc::new(NodeRegistry { supervisor, most_nodes, beside, timeouts, noting, setup, board, linked });
        let (own, detect) = (Arc::clone(&registry), timeouts.detect);
        let accepting = tokio::spawn(async move {
            let mut serving = JoinSet::new();
            loop {
                tokio::select! {
                    biased;
                    Some(_) = serving.join_next() => {}
                    come = endpoint.accept() => match come {
                        Ok(connection) => drop(serving.spawn(serve(connection, Arc::clone(&own)))),
                        Err(_) => return,
                    },
                }
            }
        });
        OpenGateway { registry, accepting, detect, _links: links }
    }
}

/// The numbers of the links of a run with these timeouts.
#[must_use]
pub fn tuning(timeouts: &Timeouts) -> Tuning {
    // The control plane notices silence by itself, and earlier; a link that comes back before this is still good.
    let idle_timeout = (timeouts.detect * 3).max(Duration::from_secs(1));
    Tuning {
        idle_timeout,
        keep_alive: idle_timeout / 6,
        handshake_timeout: (timeouts.detect * 2).clamp(Duration::from_secs(1), Duration::from_secs(5)),
        ..Tuning::default()
    }
}

/// A gateway that lets nodes in.
pub(crate) struct OpenGateway {
    registry: Arc<NodeRegistry>,
    accepting: JoinHandle<()>,
    detect: Duration,
    _links: IoThread,
}

impl OpenGateway {
    /// Tells every node what the run came to, and waits until they have gone, for at most `detect`.
    pub async fn close(self, outcome: &Outcome) {
        let (code, why) = (exit_code(outcome), in_words(outcome));
        for entry in self.registry.linked().values() {
            entry.link.send(&Word::Goodbye(Goodbye { code, why: why.clone() }));
        }
        let end = Instant::now() + self.detect;
        while !self.registry.linked().is_empty() && Instant::now() < end {
            sleep(self.detect / 64).await;
        }
        self.accepting.abort();
        // The endpoint ends with the task, and must do so before its thread.
        let _ = self.accepting.await;
    }
}

/// The exit code of a process that ends with the run.
fn exit_code(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Finished(_) => 0,
        Outcome::Interrupted(_) => 130,
        Outcome::NotEnough { .. } => 3,
        Outcome::Failed { .. } => 1,
    }
}

fn in_words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Finished(ending) => format!("the run is finished after step {}", ending.step),
        Outcome::Interrupted(_) => "the run was interrupted".to_owned(),
        Outcome::NotEnough { joined, min_ranks, .. } => {
            let are = if *joined == 1 { "is" } else { "are" };
            format!("{} {are} there, {min_ranks} needed", counted(*joined, "rank"))
        }
        Outcome::Failed { first, .. } => dtrain_protocol::cut_text(&first.to_string()),
    }
}

/// What all links share.
struct NodeRegistry {
    supervisor: ActorRef<Supervisor>,
    most_nodes: u32,
    beside: Option<NodeId>,
    timeouts: Timeouts,
    /// The folder in which hosts are noted, one at a time.
    noting: tokio::sync::Mutex<PathBuf>,
    setup: RankSetup,
    board: Option<Arc<Board>>,
    linked: Mutex<BTreeMap<NodeId, LinkedNode>>,
}

/// A node that is linked.
struct LinkedNode {
    boot: BootId,
    link: LinkSender,
    connection: Connection,
    /// When it last said a word.
    heard: Instant,
}

impl NodeRegistry {
    fn linked(&self) -> MutexGuard<'_, BTreeMap<NodeId, LinkedNode>> {
        self.linked.lock().expect("no holder panics")
    }

    /// Lets a node in, once no other has its number.
    ///
    /// *Errors*: why it gets none.
    async fn admit(
        &self,
        report: &NodeReport,
        link: &LinkSender,
        connection: &Connection,
    ) -> Result<(), String> {
        let (node, most) = (report.node, self.most_nodes);
        if Some(node) == self.beside || node.0 >= most {
            return Err(format!(
                "this run has no place for a node of rank {node}: its nodes are 0 to {}",
                most - 1
            ));
        }
        let (come, detect) = (Instant::now(), self.timeouts.detect);
        loop {
            {
                let mut linked = self.linked();
                let free = match linked.get(&node) {
                    None => true,
                    // Its old link is a link of the past, whatever it looks like from here.
                    Some(old) if old.boot == report.boot => true,
                    // The process of a node that was killed cannot say so: it is known by its silence. What it said just
                    // before its end may have arrived later than this.
                    Some(old) if old.heard > come + detect / 2 => {
                        return Err(format!("another process is the node of rank {node}, and it is alive"));
                    }
                    Some(_) => Instant::now() >= come + detect,
                };
                if free {
                    let entry = LinkedNode {
                        boot: report.boot,
                        link: link.clone(),
                        connection: connection.clone(),
                        heard: Instant::now(),
                    };
                    if let Some(old) = linked.insert(node, entry) {
                        old.connection.close();
                    }
                    return Ok(());
                }
            }
            sleep(self.timeouts.heartbeat).await;
        }
    }

    /// Writes down that the node was let in, before it hears a word.
    async fn note(&self, node: NodeId) {
        let run_dir = self.noting.lock().await;
        let path = run_dir.clone();
        // Nobody ends it but a runtime that ends.
        let _ = tokio::task::spawn_blocking(move || note_host(&path, node)).await;
    }

    /// Notes that the node was heard; false if the link is no longer its own.
    fn hear(&self, node: NodeId, link: &LinkSender) -> bool {
        let mut linked = self.linked();
        let own = linked.get_mut(&node).filter(|entry| entry.link.is_same(link));
        own.map(|entry| entry.heard = Instant::now()).is_some()
    }

    fn leave(&self, node: NodeId, link: &LinkSender) {
        let mut linked = self.linked();
        if linked.get(&node).is_some_and(|entry| entry.link.is_same(link)) {
            linked.remove(&node);
        }
    }
}

/// Serves one link from its first word to its last.
async fn serve(connection: Connection, registry: Arc<NodeRegistry>) {
    let from = connection.remote_addr();
    let (link, mut words, report) = match first_word(&connection, &registry).await {
        Ok(Some(come)) => come,
        Ok(None) => return,
        Err(why) => return tracing::warn!(%from, why, "a link that is no node's"),
    };
    let heard = time_of_day();
    let node = report.node;
    if let Err(why) = registry.admit(&report, &link, &connection).await {
        tracing::warn!(%from, why, "a node was refused");
        link.send(&Word::Goodbye(Goodbye { code: 2, why }));
        // It goes when it has read that.
        let _ = timeout(registry.timeouts.detect, connection.closed()).await;
        return connection.close();
    }
    tracing::info!(%node, %from, host = report.host, "a node is linked");
    registry.note(node).await;
    link.send(&Word::Clock(ClockReading { heard, said: time_of_day() }));
    link.send(&Word::RankSetup(registry.setup.clone()));
    let supervisor = registry.supervisor.clone();
    let _ = supervisor.tell(NodeIs(node, ToNode::Link(link.clone()))).send().await;
    // Who offers no rank yet only asks for the configuration, to find out how many it has.
    let mut next = (report.ranks > 0).then_some(Word::NodeReport(report));
    loop {
        if let Some(word) = next.take() {
            let strange = matches!(&word, Word::NodeReport(report) if report.node != node);
            if strange || !registry.hear(node, &link) || supervisor.tell(Heard(word)).send().await.is_err() {
                break;
            }
        }
        match words.next().await {
            Ok(Some(word)) => next = Some(word),
            Ok(None) => break,
            Err(error) => {
                tracing::info!(%node, %error, "the link to a node ended");
                break;
            }
        }
    }
    registry.leave(node, &link);
    let _ = supervisor.tell(NodeLost(node, link)).send().await;
    connection.close();
}

/// None of somebody who only asked how the run is, and was told.
///
/// *Errors*: what came instead of a node's report.
async fn first_word(
    connection: &Connection,
    registry: &NodeRegistry,
) -> Result<Option<(LinkSender, LinkReceiver, Box<NodeReport>)>, String> {
    let come = async {
        let (kind, mut send, recv) = connection.accept_stream().await.map_err(|error| error.to_string())?;
        if kind == Kind::Status {
            let progress = registry.board.as_ref().map(|board| board.read()).unwrap_or_default();
            let text = serde_json::to_vec(&progress).map_err(|error| error.to_string())?;
            send.write_all(&text).await.map_err(|error| error.to_string())?;
            let _ = send.finish();
            // They close it when they have read it.
            connection.closed().await;
            return Ok(None);
        }
        if kind != Kind::Control {
            return Err("its first stream is not for words".to_owned());
        }
        let (link, mut words, _writer) = link::open_host(recv, send);
        match words.next().await {
            Ok(Some(Word::NodeReport(report))) => Ok(Some((link, words, report))),
            Ok(Some(_)) => Err("its first word is not a node's report".to_owned()),
            Ok(None) => Err("it said nothing".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    };
    let patience = tuning(&registry.timeouts).handshake_timeout;
    timeout(patience, come).await.unwrap_or_else(|_| Err(format!("it said nothing for {patience:?}")))
}
