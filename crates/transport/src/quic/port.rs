//! The place where meshes are made: an endpoint that knows which generation it is in.
//!
//! For each pair the one with the lower index opens a stream and says hello; the other answers `SEEN` when it has read
//! that, and `JOINED` when it has come to the same generation itself. A hello of a generation to come is kept until then,
//! one of a generation that is over is refused. Links are kept from one generation to the next, because a handshake costs
//! three round trips.
//!
//! It does not know frames; [`super::QuicMesh`] gets the streams.

use super::error::{LinkError, Refusal, code, read_words, write_words};
use super::wire::{HELLO_BYTES, Hello};
use super::{Connection, Dialler, Endpoint, Kind, Lender};
use dtrain_types::Generation;
use quinn::{ReadError, ReadExactError, RecvStream, SendStream};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// The hello was read.
const SEEN: u8 = b's';
/// The peer is in the generation.
const JOINED: u8 = b'j';
/// Hellos of generations to come that are kept. Each has a place in the bound on a peer's streams, so this is for the sum.
const PARKED: usize = 64;
/// The first pause after a failed attempt; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// The two directions of the stream of a pair.
pub(super) type Streams = (SendStream, RecvStream);

/// A peer that said hello.
pub(super) struct Caller {
    pub hello: Hello,
    pub joined: Joined,
}

/// The stream of a pair, and the link that carries it.
pub(super) struct Joined {
    pub streams: Streams,
    pub link: Connection,
}

/// An endpoint for meshes. It takes every link that comes; streams of another kind are refused.
#[derive(Debug)]
pub struct MeshPort {
    shared: Arc<PortShared>,
    local: SocketAddr,
    accepting: JoinHandle<()>,
}

impl MeshPort {
    /// Takes an endpoint over. *Panics* outside a tokio runtime.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self::over(endpoint, None)
    }

    /// As `new`, on the thread of `lender`: whoever waits for a mesh runs the tasks of the thread meanwhile.
    #[must_use]
    pub fn lent_by(endpoint: Endpoint, lender: Lender) -> Self {
        Self::over(endpoint, Some(lender))
    }

    fn over(endpoint: Endpoint, lender: Option<Lender>) -> Self {
        let dialler = endpoint.dialler();
        let local = endpoint.local_addr();
        let refusals = endpoint.refusals_handle();
        let strange = AtomicU64::new(0);
        let shared = Arc::new(PortShared { dialler, lender, refusals, strange, state: Mutex::default() });
        let accepting = tokio::spawn(accept(endpoint, Arc::clone(&shared)));
        Self { shared, local, accepting }
    }

    /// Where it listens. A wildcard stays one: peers then reach it at this port of the host's own addresses.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// How many streams of token holders were refused because they were no hello, or one of another plan. A test of
    /// hostile peers asks: nothing else shows it.
    #[must_use]
    pub fn strange_streams(&self) -> u64 {
        self.shared.strange.load(Ordering::Relaxed)
    }

    /// How often each kind of stranger was turned away.
    #[must_use]
    pub fn refusals(&self) -> BTreeMap<Refusal, u64> {
        self.shared.refusals.counts()
    }

    pub(super) fn shared(&self) -> &Arc<PortShared> {
        &self.shared
    }

    /// Waits until what dropped meshes had still to send has arrived, for at most `patience`; then closes all links.
    ///
    /// A process that ends without this may take its last frames with it.
    pub async fn close(self, patience: Duration) {
        let mut writing = std::mem::take(&mut self.shared.state().writing);
        // What has not arrived by then has no one who waits for it.
        let _late = timeout(patience, async { while writing.join_next().await.is_some() {} }).await;
        self.shared.dialler.close();
        let _unheard = timeout(patience, self.shared.dialler.closed()).await;
    }
}

impl Drop for MeshPort {
    fn drop(&mut self) {
        // The task owns the endpoint, which closes with it. The tasks of the links hold the shared, and the shared holds them.
        self.accepting.abort();
        self.shared.state().serving.abort_all();
    }
}

async fn accept(mut endpoint: Endpoint, shared: Arc<PortShared>) {
    while let Ok(connection) = endpoint.accept().await {
        shared.adopt(&connection);
    }
}

/// What a port knows.
#[derive(Debug)]
pub(super) struct PortShared {
    dialler: Dialler,
    /// Of the thread on which the links live, if it lends its tasks.
    lender: Option<Lender>,
    refusals: Arc<super::gate::Refusals>,
    /// Streams of token holders that were of no use.
    strange: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The newest generation that was asked for here.
    newest: Option<Generation>,
    /// Who waits for the hellos of `newest`.
    waiting: Option<mpsc::Sender<Caller>>,
    parked: VecDeque<Caller>,
    links: BTreeMap<SocketAddr, Connection>,
    serving: JoinSet<()>,
    writing: JoinSet<()>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Caller({:?})", self.hello)
    }
}

/// Why a call came to nothing.
enum CallError {
    /// The peer says that the generation is over.
    Stale,
    /// Something that may pass.
    Failed(String),
}

impl PortShared {
    /// A thread that panicked holding the lock left nothing half done: each critical section is a few insertions.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn dialler(&self) -> &Dialler {
        &self.dialler
    }

    pub fn lender(&self) -> Option<Lender> {
        self.lender.clone()
    }

    /// Counts a stream that was of no use, and tells of the first: a broken peer must not fill the log.
    pub fn note_strange(&self, what: &dyn std::fmt::Display) {
        if self.strange.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(%what, "refused a stream of a mesh; more of them are only counted");
        }
    }

    /// Runs what is left of a stream's sending after its mesh is gone.
    pub fn spawn_writer(&self, task: impl Future<Output = ()> + Send + 'static) {
        let writing = &mut self.state().writing;
        while writing.try_join_next().is_some() {}
        writing.spawn(task);
    }

    /// Keeps a link and serves what its peer opens on it.
    fn adopt(self: &Arc<Self>, connection: &Connection) {
        let state = &mut *self.state();
        while state.serving.try_join_next().is_some() {}
        state.links.insert(connection.remote_addr(), connection.clone());
        state.serving.spawn(serve(Arc::clone(self), connection.clone()));
    }

    /// Forgets a link, unless another one has taken its place.
    fn forget(&self, connection: &Connection) {
        let links = &mut self.state().links;
        let addr = connection.remote_addr();
        if links.get(&addr).is_some_and(|kept| kept.is_same(connection)) {
            links.remove(&addr);
        }
    }

    fn link_to(&self, addr: SocketAddr) -> Option<Connection> {
        self.state().links.get(&addr).filter(|link| !link.is_closed()).cloned()
    }

    /// Enters a generation: its hellos, those that came early too, go to the receiver from now on.
    ///
    /// *Errors*: the newest generation, if this one is not newer.
    pub fn enter(&self, generation: Generation, world: usize) -> Result<mpsc::Receiver<Caller>, Generation> {
        let state = &mut *self.state();
        if let Some(newest) = state.newest.filter(|newest| *newest >= generation) {
            return Err(newest);
        }
        let (tell, told) = mpsc::channel(PARKED + world);
        state.newest = Some(generation);
        for caller in std::mem::take(&mut state.parked) {
            match caller.hello.generation {
                of if of == generation => {
                    tell.try_send(caller).expect("there is room for all that were parked")
                }
                of if of > generation => state.parked.push_back(caller),
                _ => refuse(caller.joined.streams, code::STALE),
            }
        }
        state.waiting = Some(tell);
        Ok(told)
    }

    /// No more hellos of this generation are wanted.
    pub fn settle(&self, generation: Generation) {
        let state = &mut *self.state();
        if state.newest == Some(generation) {
            state.waiting = None;
        }
    }

    /// Whether a hello may hope.
    fn is_stale(&self, hello: &Hello) -> bool {
        let state = self.state();
        let over =
            |newest| hello.generation < newest || hello.generation == newest && state.waiting.is_none();
        state.newest.is_some_and(over)
    }

    /// Hands a caller to whoever waits for it, or keeps it for later.
    fn present(&self, caller: Caller) {
        let state = &mut *self.state();
        let ahead = state.newest.is_none_or(|newest| caller.hello.generation > newest);
        if ahead {
            state.parked.push_back(caller);
            // The oldest is the one whose generation has most likely passed.
            if state.parked.len() > PARKED {
                let dropped = state.parked.pop_front().expect("more than none");
                refuse(dropped.joined.streams, code::CROWDED);
            }
            return;
        }
        let refused = match &state.waiting {
            Some(waiting) if state.newest == Some(caller.hello.generation) => waiting.try_send(caller).err(),
            _ => return refuse(caller.joined.streams, code::STALE),
        };
        if let Some(error) = refused {
            refuse(error.into_inner().joined.streams, code::CROWDED);
        }
    }

    /// Calls a peer until it has joined the generation. Does not end by itself while the peer cannot be reached; `note`
    /// hears why. *Errors*: the peer is past this generation.
    pub async fn call(
        self: Arc<Self>,
        hello: Hello,
        addr: SocketAddr,
        note: impl Fn(String),
    ) -> Result<Joined, PeerIsPast> {
        let mut kept = self.link_to(addr);
        let mut pause = FIRST_PAUSE;
        loop {
            let attempt = async {
                let link = match kept.take() {
                    Some(link) => link,
                    None => {
                        let dialled = self.dialler.connect(addr).await;
                        let link = dialled.map_err(|error| CallError::Failed(error.to_string()))?;
                        self.adopt(&link);
                        link
                    }
                };
                let invited = self.invite(&link, &hello).await;
                if matches!(invited, Err(CallError::Failed(_))) {
                    // A link whose peer was replaced may look alive until it times out.
                    self.forget(&link);
                }
                invited.map(|streams| Joined { streams, link })
            };
            match attempt.await {
                Ok(joined) => return Ok(joined),
                Err(CallError::Stale) => return Err(PeerIsPast),
                Err(CallError::Failed(why)) => note(why),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            // The peer may have dialled us meanwhile.
            kept = self.link_to(addr);
        }
    }

    async fn invite(&self, link: &Connection, hello: &Hello) -> Result<Streams, CallError> {
        let after = self.dialler.tuning().idle_timeout / 2;
        let asked = async {
            let failed = |error: LinkError| CallError::Failed(error.to_string());
            let (mut send, mut recv) = link.open_bulk().await.map_err(failed)?;
            let written = send.write_all(&hello.encode()).await;
            written.map_err(|error| CallError::Failed(write_words(&error)))?;
            expect(&mut recv, SEEN).await.map(|()| (send, recv))
        };
        let silent = |_| CallError::Failed(format!("no answer to the hello within {after:?}"));
        let (send, mut recv) = timeout(after, asked).await.map_err(silent)??;
        // From here on the peer is alive and has still to come to this generation. The caller's patience bounds the wait.
        expect(&mut recv, JOINED).await?;
        Ok((send, recv))
    }
}

/// The peer refused a hello because the generation is over for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerIsPast;

async fn expect(recv: &mut RecvStream, byte: u8) -> Result<(), CallError> {
    let mut got = [0];
    match recv.read_exact(&mut got).await {
        Ok(()) if got == [byte] => Ok(()),
        Ok(()) => Err(CallError::Failed(format!("the peer answered {got:02x?}"))),
        Err(ReadExactError::ReadError(ReadError::Reset(code::STALE))) => Err(CallError::Stale),
        Err(ReadExactError::ReadError(error)) => Err(CallError::Failed(read_words(&error))),
        Err(ReadExactError::FinishedEarly(_)) => Err(CallError::Failed("the peer hung up".into())),
    }
}

/// Ends a stream with a reason. Fails only if the peer has ended it already.
pub(super) fn refuse((mut send, mut recv): Streams, why: quinn::VarInt) {
    let _ended = (send.reset(why), recv.stop(why));
}

/// Tells a caller that this side is in its generation too.
pub(super) async fn join(streams: &mut Streams) -> Result<(), String> {
    streams.0.write_all(&[JOINED]).await.map_err(|error| write_words(&error))
}

/// Serves the streams that the peer opens on one link, until the link is gone.
async fn serve(shared: Arc<PortShared>, connection: Connection) {
    loop {
        let streams = match connection.accept_stream().await {
            Ok((Kind::Bulk, send, recv)) => (send, recv),
            Ok((Kind::Control | Kind::Status, send, recv)) => {
                refuse((send, recv), code::UNKNOWN);
                continue;
            }
            Err(LinkError::Kind { .. } | LinkError::Silent { .. }) => continue,
            Err(_) => break,
        };
        answer(&shared, &connection, streams).await;
    }
    shared.forget(&connection);
}

/// Reads the hello on a stream and presents the caller.
async fn answer(shared: &PortShared, connection: &Connection, (mut send, mut recv): Streams) {
    let mut bytes = [0; HELLO_BYTES];
    let after = shared.dialler.tuning().handshake_timeout;
    match timeout(after, recv.read_exact(&mut bytes)).await {
        Ok(Ok(())) => {}
        // It broke off, or says nothing: there is nobody to answer.
        _ => return refuse((send, recv), code::UNKNOWN),
    }
    let hello = match Hello::decode(&bytes) {
        Ok(hello) => hello,
        Err(error) => {
            shared.note_strange(&format_args!("{}: {error}", connection.remote_addr()));
            return refuse((send, recv), code::UNKNOWN);
        }
    };
    if shared.is_stale(&hello) {
        return refuse((send, recv), code::STALE);
    }
    if send.write_all(&[SEEN]).await.is_ok() {
        let joined = Joined { streams: (send, recv), link: connection.clone() };
        shared.present(Caller { hello, joined });
    }
}
