//! Frames between the leaders of the hosts of one generation, over encrypted links.
//!
//! Every pair has one stream that both use. The links live on a thread of their own; the compute thread only queues and
//! takes frames, and sleeps. A mesh is for one generation: after any error the next generation makes a new one, and the
//! links under it stay. It does not know what a frame means; the receiver says whether it was used.

use super::board::{Board, Ending, Next, Turn};
use super::error::{code, read_words, write_words};
use super::io_thread::{Borrowed, Lender, run_on};
use super::path::Path;
use super::port::{Caller, Joined, MeshPort, PeerIsPast, PortShared, join, refuse};
use super::wire::{Decoder, Hello};
use dtrain_collective::{CollectiveError, Frame, Outgoing, Transport, Verdict, Waker};
use dtrain_types::{Generation, Rank};
use quinn::{ReadError, RecvStream, SendStream, WriteError};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The most floats in a frame between hosts, for whoever makes the machine that sends them: 64 KiB, so that several frames
/// under way stay in the cache.
pub const MESH_SEGMENT: usize = 16 << 10;
/// The most bytes that are taken from a stream at once.
const PIECE: usize = 256 << 10;
/// How long a dropped mesh goes on sending what was queued. A peer that needs it is in its last collective.
const LINGER: Duration = Duration::from_secs(10);

/// Who is in the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshPlan {
    /// The generation that it is for.
    pub generation: Generation,
    /// The place of this process among `peers`; it is the rank in frames.
    pub index: usize,
    /// Where the port of each one listens, this process's own too.
    pub peers: Vec<SocketAddr>,
    /// How long the others may take to come.
    pub patience: Duration,
}

/// Why there is no mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// Some were not reached.
    #[error("generation {generation}: {} not reached within {within:?}{}", list(.missing), reasons(.why))]
    Unreachable {
        /// The generation.
        generation: Generation,
        /// Exactly those that were not reached, rising.
        missing: Vec<usize>,
        /// The patience.
        within: Duration,
        /// The last failure of each one that this side dialled.
        why: BTreeMap<usize, String>,
    },
    /// A peer is past this generation.
    #[error("generation {generation} is over: peer {peer} has left it")]
    Superseded {
        /// The generation.
        generation: Generation,
        /// The peer.
        peer: usize,
    },
    /// This process is past this generation.
    #[error("generation {generation} is not newer than {newest}, which this process was in")]
    Stale {
        /// The generation.
        generation: Generation,
        /// The newest here.
        newest: Generation,
    },
}

fn list(missing: &[usize]) -> String {
    let mut text = String::from(if missing.len() == 1 { "peer" } else { "peers" });
    for (place, peer) in missing.iter().enumerate() {
        let _infallible = write!(text, "{}{peer}", if place == 0 { " " } else { ", " });
    }
    text
}

fn reasons(why: &BTreeMap<usize, String>) -> String {
    why.iter().map(|(peer, what)| format!("; peer {peer}: {what}")).collect()
}

/// One process's end of a mesh.
#[derive(Debug)]
pub struct QuicMesh {
    board: Arc<Board>,
    index: usize,
    world: usize,
    generation: Generation,
    /// The board's count of changes when it was last looked through.
    looked: u64,
    /// Something went wrong here: peers that wait for more shall hear of it.
    failed: bool,
    lender: Option<Lender>,
    /// The tasks of the links, while this thread runs them.
    borrowed: Option<Borrowed>,
    /// By peer: something is queued of which the task of the stream was not told.
    untold: Vec<bool>,
    /// End with the mesh.
    _readers: JoinSet<()>,
}

impl QuicMesh {
    /// Reaches every peer of the plan.
    ///
    /// *Blocks* up to the patience. *Errors*: [`MeshError`]. *Panics* inside an asynchronous task (use
    /// [`QuicMesh::establish`]), or if the index is not among the peers.
    pub fn connect(port: &MeshPort, plan: MeshPlan) -> Result<Self, MeshError> {
        let shared = Arc::clone(port.shared());
        let handle = shared.dialler().handle().clone();
        run_on(&handle, establish(shared, plan))
    }

    /// As `connect`, without blocking; from any runtime. The work is done on that of the port.
    pub async fn establish(port: &MeshPort, plan: MeshPlan) -> Result<Self, MeshError> {
        let shared = Arc::clone(port.shared());
        let handle = shared.dialler().handle().clone();
        // A set of one ends with this future, should the caller lose patience before the plan does.
        let mut work = JoinSet::new();
        work.spawn_on(establish(shared, plan), &handle);
        let done = work.join_next().await.expect("there is one");
        done.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => panic!("the thread of the links outlives its callers"),
        })
    }

    fn over(shared: &PortShared, plan: &MeshPlan, joined: Vec<Option<Joined>>) -> Self {
        let board = Arc::new(Board::new(plan.peers.len()));
        let mut readers = JoinSet::new();
        for (peer, joined) in joined.into_iter().enumerate() {
            let Some(Joined { streams: (send, recv), link }) = joined else { continue };
            let path = Path::new(link, shared.dialler().local_addr());
            let lane = OneLane { board: Arc::clone(&board), peer, path: Arc::clone(&path) };
            shared.spawn_writer(write(lane.clone(), send));
            readers.spawn(read(lane, recv, plan.generation));
            readers.spawn(path.watch(Arc::clone(&board), peer));
        }
        Self {
            board,
            index: plan.index,
            world: plan.peers.len(),
            generation: plan.generation,
            looked: 0,
            failed: false,
            lender: shared.lender(),
            borrowed: None,
            untold: vec![false; plan.peers.len()],
            _readers: readers,
        }
    }

    fn or_fail<R>(&mut self, result: Result<R, CollectiveError>) -> Result<R, CollectiveError> {
        self.failed |= result.is_err();
        result
    }

    fn queue(&mut self, frame: &Outgoing<'_>, turn: Turn) -> Result<bool, CollectiveError> {
        let to = frame.to;
        assert!(to.index() < self.world && to.index() != self.index, "a frame to {to} of {}", self.world);
        let sent = self.board.send(frame, turn).map_err(|what| CollectiveError::Lost { to, what });
        if sent == Ok(true) {
            match self.borrowed {
                None => self.board.tell(to.index()),
                // Nobody else runs the tasks, so they hear of all of them at once.
                Some(_) => self.untold[to.index()] = true,
            }
        }
        self.or_fail(sent)
    }

    /// Offers the foremost frame of each peer. No more at once, so that what a frame completes is on its way before the
    /// next one is looked at, while it is still in the cache.
    fn offer(
        &self,
        sink: &mut dyn FnMut(Frame<'_>) -> Result<Verdict, CollectiveError>,
    ) -> Result<usize, CollectiveError> {
        let mut count = 0;
        for from in (0..self.world).filter(|from| *from != self.index) {
            let to = Rank(from as u32);
            let lost = |what| CollectiveError::Lost { to, what };
            let Some((header, payload)) = self.board.take(from).map_err(lost)? else { continue };
            match sink(Frame { from: to, header, payload: &payload })? {
                Verdict::Taken | Verdict::Stale => {
                    count += 1;
                    self.board.recycle(from, payload);
                }
                Verdict::Later => self.board.put_back(from, (header, payload)),
            }
        }
        Ok(count)
    }
}

impl Transport for QuicMesh {
    fn try_send(&mut self, frame: &Outgoing<'_>) -> Result<bool, CollectiveError> {
        self.queue(frame, Turn::Own)
    }

    fn try_send_ahead(&mut self, frame: &Outgoing<'_>) -> Result<bool, CollectiveError> {
        self.queue(frame, Turn::Ahead)
    }

    fn receive(
        &mut self,
        sink: &mut dyn FnMut(Frame<'_>) -> Result<Verdict, CollectiveError>,
    ) -> Result<usize, CollectiveError> {
        self.looked = self.board.changes();
        let offered = self.offer(sink);
        self.or_fail(offered)
    }

    fn wait(&mut self) -> Result<(), CollectiveError> {
        // A thread that belongs to a runtime must not run another one.
        if self.borrowed.is_none() && Handle::try_current().is_err() {
            self.borrowed = self.lender.as_ref().and_then(Lender::borrow);
        }
        let Self { board, untold, looked, .. } = self;
        match &self.borrowed {
            None => board.wait(*looked),
            Some(borrowed) => borrowed.run_until(async {
                tell_all(board, untold);
                board.change(*looked).await;
            }),
        }
        Ok(())
    }

    fn rest(&mut self) {
        tell_all(&self.board, &mut self.untold);
        self.borrowed = None;
    }

    fn waker(&self) -> Waker {
        let board = Arc::clone(&self.board);
        Arc::new(move || board.notify())
    }

    fn describe(&self) -> String {
        format!("QUIC between {} hosts, generation {}", self.world, self.generation)
    }
}

/// Tells the tasks of the streams what was queued for them.
fn tell_all(board: &Board, untold: &mut [bool]) {
    for (peer, untold) in untold.iter_mut().enumerate().filter(|(_, untold)| **untold) {
        board.tell(peer);
        *untold = false;
    }
}

impl Drop for QuicMesh {
    fn drop(&mut self) {
        self.rest();
        let ending = if self.failed { Ending::Abandon } else { Ending::Finish };
        (0..self.world).for_each(|peer| self.board.end(peer, ending));
    }
}

async fn establish(shared: Arc<PortShared>, plan: MeshPlan) -> Result<QuicMesh, MeshError> {
    assert!(plan.index < plan.peers.len(), "index {} of {} peers", plan.index, plan.peers.len());
    let generation = plan.generation;
    let callers = shared
        .enter(generation, plan.peers.len())
        .map_err(|newest| MeshError::Stale { generation, newest })?;
    let mut gathering = Gathering { joined: plan.peers.iter().map(|_| None).collect(), plan };
    let gathered = gathering.gather(&shared, callers).await;
    shared.settle(generation);
    let Gathering { plan, joined } = gathering;
    if let Err(error) = gathered {
        joined.into_iter().flatten().for_each(|joined| refuse(joined.streams, code::ABANDONED));
        return Err(error);
    }
    Ok(QuicMesh::over(&shared, &plan, joined))
}

/// A mesh that is being made.
struct Gathering {
    plan: MeshPlan,
    /// By peer; what is there is a peer that has joined.
    joined: Vec<Option<Joined>>,
}

impl Gathering {
    fn missing(&self) -> impl Iterator<Item = usize> {
        (0..self.joined.len()).filter(|peer| *peer != self.plan.index && self.joined[*peer].is_none())
    }

    /// Waits for those with lower indices and calls the others.
    async fn gather(
        &mut self,
        shared: &Arc<PortShared>,
        mut callers: mpsc::Receiver<Caller>,
    ) -> Result<(), MeshError> {
        let deadline = Instant::now() + self.plan.patience;
        let generation = self.plan.generation;
        let why = Arc::new(Mutex::new(BTreeMap::new()));
        let mut calls = self.call_all(shared, &why);
        while self.missing().next().is_some() {
            tokio::select! {
                biased;
                Some(caller) = callers.recv() => self.admit(shared, caller).await,
                Some(call) = calls.join_next() => match call.expect("a call does not panic") {
                    (peer, Ok(joined)) => self.joined[peer] = Some(joined),
                    (peer, Err(PeerIsPast)) => return Err(MeshError::Superseded { generation, peer }),
                },
                () = sleep_until(deadline) => {
                    let missing: Vec<usize> = self.missing().collect();
                    let mut why = std::mem::take(&mut *why.lock().unwrap_or_else(PoisonError::into_inner));
                    why.retain(|peer, _| missing.contains(peer));
                    let within = self.plan.patience;
                    return Err(MeshError::Unreachable { generation, missing, within, why });
                }
            }
        }
        Ok(())
    }

    fn call_all(
        &self,
        shared: &Arc<PortShared>,
        why: &Arc<Mutex<BTreeMap<usize, String>>>,
    ) -> JoinSet<(usize, Result<Joined, PeerIsPast>)> {
        let MeshPlan { generation, index, ref peers, .. } = self.plan;
        let mut calls = JoinSet::new();
        for (peer, addr) in peers.iter().copied().enumerate().skip(index + 1) {
            let (from, to, world) = (index as u32, peer as u32, peers.len() as u32);
            let (shared, why) = (Arc::clone(shared), Arc::clone(why));
            calls.spawn(async move {
                let note = |what| {
                    why.lock().unwrap_or_else(PoisonError::into_inner).insert(peer, what);
                };
                (peer, shared.call(Hello { generation, from, to, world }, addr, note).await)
            });
        }
        calls
    }

    /// Lets a caller join if it is who it should be. One that calls again has lost its first call.
    async fn admit(&mut self, shared: &PortShared, mut caller: Caller) {
        let Hello { from, to, world, .. } = caller.hello;
        let fits = (from as usize) < self.plan.index
            && to as usize == self.plan.index
            && world as usize == self.joined.len();
        if !fits {
            shared.note_strange(&format_args!(
                "{:?} at index {} of {}",
                caller.hello,
                self.plan.index,
                self.joined.len()
            ));
            return refuse(caller.joined.streams, code::UNKNOWN);
        }
        if join(&mut caller.joined.streams).await.is_ok() {
            self.joined[from as usize] = Some(caller.joined);
        }
    }
}

/// What the tasks of one peer's stream share.
#[derive(Clone)]
struct OneLane {
    board: Arc<Board>,
    peer: usize,
    path: Arc<Path>,
}

/// Sends what is queued for a peer. Lives on after the mesh until everything has arrived, within bounds.
async fn write(lane: OneLane, mut send: SendStream) {
    let OneLane { board, peer, .. } = &lane;
    let overdue = async {
        board.lane(*peer).leaving.notified().await;
        if !board.is_abandoned(*peer) {
            sleep(LINGER).await;
        }
    };
    tokio::select! {
        biased;
        () = write_all(&lane, &mut send) => {}
        // Fails only if the peer has ended the stream already.
        () = overdue => drop(send.reset(code::ABANDONED)),
    }
}

async fn write_all(OneLane { board, peer, path }: &OneLane, send: &mut SendStream) {
    let peer = *peer;
    loop {
        match board.next(peer) {
            Next::Send(bytes) => {
                if let Err(error) = send.write_chunk(bytes).await {
                    let what = match &error {
                        WriteError::ConnectionLost(error) => path.words(error),
                        other => write_words(other),
                    };
                    return board.lose_outbound(peer, what);
                }
            }
            Next::Wait => board.lane(peer).work.notified().await,
            Next::End(Ending::Abandon) => {
                let _ended = send.reset(code::ABANDONED);
                return;
            }
            Next::End(Ending::Finish) => {
                let _ended = send.finish();
                // Until the peer has it all, or will never have it.
                let _gone = timeout(LINGER, send.stopped()).await;
                return;
            }
        }
    }
}

/// Lays down what comes from a peer.
async fn read(lane: OneLane, mut recv: RecvStream, generation: Generation) {
    let OneLane { board, peer, path } = lane;
    let mut decoder = Decoder::new(generation);
    loop {
        let piece = match recv.read_chunk(PIECE, true).await {
            Ok(Some(piece)) => piece.bytes,
            // A peer that has all it needs may leave while others still work. Whoever misses something from it is told so
            // by the supervisor, which knows why it left.
            Ok(None) if decoder.is_between_frames() => return,
            Ok(None) => return board.lose_inbound(peer, "its stream ended inside a frame".into()),
            Err(ReadError::ConnectionLost(error)) => return board.lose_inbound(peer, path.words(&error)),
            Err(error) => return board.lose_inbound(peer, read_words(&error)),
        };
        let mut input = &piece[..];
        loop {
            match decoder.feed(&mut input) {
                Ok(true) => board.deliver(peer, decoder.take(board.spare(peer))).await,
                Ok(false) => break,
                Err(error) => {
                    let _ended = recv.stop(code::UNKNOWN);
                    return board.lose_inbound(peer, error.to_string());
                }
            }
        }
    }
}
