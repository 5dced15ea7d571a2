//! The link between the hosts of a group: encrypted, for those who have the token. A thread keeps it; the supervisor hears a bell.
//!
//! On the first host the thread lets the others in and asks `assembly` what to say; its own supervisor is a host like the others, without
//! a network between. On any other host it calls the first one, and calls again when it is not heard any more.

use crate::Launch;
use crate::assembly::{Assembly, Order, Rules};
use crate::error::LaunchError;
use crate::launch::host;
use crate::life::Neighbours;
use crate::message::{Down, End, GroupShape, Hello, How, Up};
use crate::words;
use dtrain_protocol::{from_bytes, to_bytes};
use dtrain_transport::quic::{
    Connection, Endpoint, Identity, Kind, LinkError, RecvStream, SendStream, Tuning,
};
use rustix::process::Signal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until, timeout};

/// A host from which nothing comes for so long is lost.
const SILENCE: Duration = Duration::from_secs(6);
/// Between two calls.
const PAUSE: Duration = Duration::from_millis(300);
/// Another launcher of the same host may be dead and not yet missed: for so long a refusal may pass.
const MAY_PASS: Duration = Duration::from_secs(15);
/// How long the last words may take.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// Words that may wait to be sent or heard: a host says a few at each start.
const QUEUE: usize = 256;
/// A longer word is none of ours. *Units*: bytes.
const LONGEST: u32 = 1 << 20;

/// Where and how hosts meet.
pub struct Meeting {
    /// What proves that a host belongs.
    pub identity: Identity,
    /// The first host: its name or its address, and the UDP port.
    pub first: (String, u16),
    /// How long hosts wait for each other.
    pub patience: Duration,
}

/// This host's end.
pub struct Link {
    up: mpsc::Sender<Up>,
    down: Receiver<Down>,
    bell: UnixStream,
    /// What was heard and not yet acted on.
    waiting: VecDeque<Down>,
    attempt: u32,
    thread: Option<JoinHandle<()>>,
}

impl Meeting {
    /// Opens the door of the first host, or begins to call it.
    ///
    /// *Errors*: of kind usage: the port is taken, or no name.
    pub fn begin(self, launch: &Launch) -> Result<Link, LaunchError> {
        let system =
            |error: io::Error| LaunchError::failed("cannot speak to the other hosts").because(&error);
        let shape =
            GroupShape { hosts: launch.hosts.count, processes: launch.processes, restarts: launch.restarts };
        let hello = Hello { host: launch.hosts.this, name: host(), shape, newest: None };
        let (up, said) = mpsc::channel(QUEUE);
        let (down, heard) = channel();
        let (bell, rope) = UnixStream::pair().map_err(system)?;
        bell.set_nonblocking(true).map_err(system)?;
        rope.set_nonblocking(true).map_err(system)?;
        let bell_rope = Rope { down, rope };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
        let rules =
            Rules { shape, patience: self.patience, port: self.first.1, run_id: launch.run_id.clone() };
        let endpoint = match hello.host {
            0 => Some(runtime.block_on(self.door())?),
            _ => None,
        };
        let work = move || match endpoint {
            Some(endpoint) => runtime.block_on(Lead::new(rules, bell_rope).run(endpoint, hello, said)),
            None => runtime.block_on(
                Caller { meeting: self, hello, rope: bell_rope, runs: false, interrupted: None }.run(said),
            ),
        };
        let thread = std::thread::Builder::new().name("hosts".into()).spawn(work).map_err(system)?;
        Ok(Link { up, down: heard, bell, waiting: VecDeque::new(), attempt: 0, thread: Some(thread) })
    }

    /// Listens on all addresses: whether a name leads to one that this host knows as its own is the cluster's business.
    async fn door(&self) -> Result<Endpoint, LaunchError> {
        let (name, port) = (&self.first.0, self.first.1);
        let found =
            tokio::net::lookup_host((name.as_str(), port)).await.ok().and_then(|mut found| found.next());
        let all: IpAddr = match found {
            Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        Endpoint::bind(SocketAddr::new(all, port), &self.identity, tuning()).map_err(|error| match error {
            LinkError::Busy { addr } => LaunchError::usage(format!("the UDP address {addr} is in use"))
                .hint("stop the other process, or give all hosts another port: --master-port PORT"),
            error => LaunchError::usage(error.to_string()),
        })
    }
}

fn tuning() -> Tuning {
    Tuning { idle_timeout: SILENCE, keep_alive: SILENCE / 6, ..Tuning::default() }
}

impl Link {
    /// What becomes readable when something was said.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The next thing that was said, if there is one.
    pub fn next(&mut self) -> Option<Down> {
        self.take_in();
        self.waiting.pop_front()
    }

    /// From now on words are about this start.
    pub fn begin_life(&mut self, attempt: u32) {
        self.attempt = attempt;
    }

    /// No rank is left here.
    pub fn end_life(&mut self, how: How) {
        self.say(Up::Ended { attempt: self.attempt, how });
    }

    fn say(&self, up: Up) {
        // The thread is gone only after its last word, which is on its way to us.
        let _ = self.up.blocking_send(up);
    }

    fn take_in(&mut self) {
        let mut bytes = [0; 64];
        while self.bell.read(&mut bytes).is_ok_and(|read| read > 0) {}
        self.waiting.extend(self.down.try_iter());
    }
}

impl Neighbours for Link {
    fn want_an_end(&mut self) -> bool {
        self.take_in();
        self.waiting.iter().any(|down| matches!(down, Down::Stop | Down::Cut { .. } | Down::Finish(_)))
    }

    fn tell_of_failure(&mut self) {
        self.say(Up::Failing { attempt: self.attempt });
    }

    fn tell_of_signal(&mut self, signal: Signal) {
        self.say(Up::Interrupted { words: format!("{} on {}", words::signal(signal), host()) });
    }
}

impl Drop for Link {
    /// Waits until the others have heard the last words, or were given time to.
    fn drop(&mut self) {
        let (closed, _) = mpsc::channel(1);
        self.up = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Says something to the supervisor of this host.
struct Rope {
    down: Sender<Down>,
    rope: UnixStream,
}

impl Rope {
    fn say(&mut self, down: Down) {
        // A supervisor that is gone hears nothing, and a bell that rings already need not ring twice.
        let _ = self.down.send(down);
        let _ = self.rope.write(&[1]);
    }
}

/// Something that happens at the door.
enum Event {
    Came { serial: u64, hello: Hello, to: mpsc::Sender<Down> },
    Said { serial: u64, up: Up },
    Gone { serial: u64 },
}

/// The first host's side.
struct Lead {
    assembly: Assembly,
    own: Rope,
    /// By its number the connection of a host, and the way to it.
    ways: BTreeMap<u32, (u64, mpsc::Sender<Down>)>,
}

impl Lead {
    fn new(rules: Rules, own: Rope) -> Self {
        Self { assembly: Assembly::new(rules, Instant::now()), own, ways: BTreeMap::new() }
    }

    async fn run(mut self, mut endpoint: Endpoint, own: Hello, mut said: mpsc::Receiver<Up>) {
        let (events, mut queue) = mpsc::channel(QUEUE);
        let orders = self.assembly.join(own).expect("the first host has the first seat");
        self.carry_out(orders);
        let mut serial = 0;
        while !self.assembly.is_over() {
            let deadline =
                self.assembly.deadline().unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            let orders = tokio::select! {
                biased;
                up = said.recv() => match up {
                    Some(up) => self.assembly.hear(0, up, Instant::now()),
                    // This host's supervisor has ended: so has the run.
                    None => break,
                },
                Some(event) = queue.recv() => self.take(event),
                Ok(connection) = endpoint.accept() => {
                    serial += 1;
                    tokio::spawn(serve(connection, serial, events.clone()));
                    Vec::new()
                }
                () = sleep_until(deadline.into()) => self.assembly.tick(Instant::now()),
            };
            self.carry_out(orders);
        }
        // Who has heard the last words hangs up.
        let gone = async {
            while !self.ways.is_empty() {
                match queue.recv().await {
                    Some(Event::Gone { serial }) => self.ways.retain(|_, (of_host, _)| *of_host != serial),
                    Some(_) => {}
                    None => break,
                }
            }
        };
        let _ = timeout(LAST_WORDS, gone).await;
        let dialler = endpoint.dialler();
        dialler.close();
        let _ = timeout(LAST_WORDS, dialler.closed()).await;
    }

    fn take(&mut self, event: Event) -> Vec<Order> {
        let now = Instant::now();
        let host_of = |ways: &BTreeMap<u32, (u64, mpsc::Sender<Down>)>, serial: u64| {
            ways.iter().find(|(_, (of_host, _))| *of_host == serial).map(|(host, _)| *host)
        };
        match event {
            Event::Came { serial, hello, to } => {
                let host = hello.host;
                match self.assembly.join(hello) {
                    Ok(orders) => {
                        self.ways.insert(host, (serial, to));
                        orders
                    }
                    Err(refusal) => {
                        let _ = to.try_send(Down::Refused { why: refusal.why, passes: refusal.passes });
                        Vec::new()
                    }
                }
            }
            Event::Said { serial, up } => match host_of(&self.ways, serial) {
                Some(host) => self.assembly.hear(host, up, now),
                None => Vec::new(),
            },
            Event::Gone { serial } => match host_of(&self.ways, serial) {
                Some(host) => {
                    self.ways.remove(&host);
                    self.assembly.lose(host, now)
                }
                None => Vec::new(),
            },
        }
    }

    fn carry_out(&mut self, orders: Vec<Order>) {
        for Order { to, what } in orders {
            match self.ways.get(&to) {
                // One that does not read is lost soon.
                Some((_, way)) => drop(way.try_send(what)),
                None if to == 0 => self.own.say(what),
                None => {}
            }
        }
    }
}

/// One host at the door, from its first word to its last.
async fn serve(connection: Connection, serial: u64, events: mpsc::Sender<Event>) {
    let Ok((Kind::Control, mut send, mut recv)) = connection.accept_stream().await else { return };
    let Ok(Some(Up::Here(hello))) = read::<Up>(&mut recv).await else { return connection.close() };
    let (to, mut orders) = mpsc::channel(QUEUE);
    if events.send(Event::Came { serial, hello, to }).await.is_err() {
        return;
    }
    let writer = tokio::spawn(async move {
        while let Some(down) = orders.recv().await {
            if write(&mut send, &down).await.is_err() {
                return;
            }
        }
        let _ = send.finish();
    });
    while let Ok(Some(up)) = read::<Up>(&mut recv).await {
        if events.send(Event::Said { serial, up }).await.is_err() {
            break;
        }
    }
    // The way to this host goes with it: then there is nothing more to write.
    let _ = events.send(Event::Gone { serial }).await;
    let _ = timeout(LAST_WORDS, writer).await;
    connection.close();
}

/// The side of any other host.
struct Caller {
    meeting: Meeting,
    hello: Hello,
    rope: Rope,
    /// Ranks of the newest start may be left here.
    runs: bool,
    /// Somebody wants an end, in these words, and the first host may not have heard it.
    interrupted: Option<String>,
}

impl Caller {
    async fn run(mut self, mut said: mpsc::Receiver<Up>) {
        let mut since = Instant::now();
        let mut last = "nobody answered".to_owned();
        while since.elapsed() < self.meeting.patience {
            if let Some(words) = self.interrupted.take() {
                return self.rope.say(Down::Finish(End::Interrupted { words }));
            }
            // No start begins before the one before it has ended on every host, and who calls is there for the next.
            while self.runs {
                match said.recv().await {
                    Some(up) => self.note(&up),
                    None => return,
                }
            }
            let called = tokio::select! {
                biased;
                up = said.recv() => match up {
                    // Nobody hears it; who wants an end gets it.
                    Some(up) => {
                        self.note(&up);
                        continue;
                    }
                    None => return,
                },
                called = call(&self.meeting) => called,
            };
            match called {
                Ok((endpoint, connection)) => match self.serve(&connection, &mut said).await {
                    Served::Over => {
                        connection.close();
                        endpoint.dialler().close();
                        let _ = timeout(LAST_WORDS, endpoint.dialler().closed()).await;
                        return;
                    }
                    Served::NoPlace { why } if since.elapsed() >= MAY_PASS => {
                        return self.rope.say(Down::Refused { why, passes: false });
                    }
                    Served::NoPlace { why } => last = why,
                    Served::Cut { what } => {
                        self.rope.say(Down::Cut { what: what.clone() });
                        (since, last) = (Instant::now(), what);
                    }
                },
                Err(error @ (LinkError::Untrusted { .. } | LinkError::Refused { .. })) => {
                    let words = error.to_string();
                    let why = words.split_once("\nhint:").map_or(words.as_str(), |(what, _)| what).to_owned();
                    return self.rope.say(Down::Refused { why, passes: false });
                }
                Err(error) => last = error.to_string(),
            }
            sleep(PAUSE).await;
        }
        let (name, port) = &self.meeting.first;
        let waited = self.meeting.patience.as_secs();
        let report = format!("host 0 at {name}, UDP port {port}, was not reached within {waited} s: {last}");
        let hint = "is `dtrain run --node-rank 0` running there, does --master-addr lead to it, and does a firewall let UDP through? \
                    --join-timeout waits longer";
        self.rope.say(Down::Finish(End::Failed { report, hint: hint.to_owned() }));
    }

    /// What the supervisor of this host says, whoever hears it.
    fn note(&mut self, up: &Up) {
        match up {
            Up::Ended { .. } => self.runs = false,
            Up::Interrupted { words } => self.interrupted = Some(words.clone()),
            _ => {}
        }
    }

    async fn serve(&mut self, connection: &Connection, said: &mut mpsc::Receiver<Up>) -> Served {
        let cut = |error: LinkError| Served::Cut { what: error.to_string() };
        let (mut send, mut recv) = match connection.open_control().await {
            Ok(streams) => streams,
            Err(error) => return cut(error),
        };
        if write(&mut send, &Up::Here(self.hello.clone())).await.is_err() {
            return cut(connection.closed().await);
        }
        // Reading is not interrupted: half a word would be lost.
        let (heard, mut words) = mpsc::channel(QUEUE);
        let reader = tokio::spawn(async move {
            while let Ok(Some(down)) = read::<Down>(&mut recv).await {
                if heard.send(down).await.is_err() {
                    return;
                }
            }
        });
        let served = loop {
            tokio::select! {
                biased;
                down = words.recv() => match down {
                    Some(Down::Refused { why, passes: true }) => break Served::NoPlace { why },
                    Some(down) => {
                        let over = matches!(down, Down::Finish(_) | Down::Refused { .. });
                        if let Down::Start { attempt, .. } = down {
                            (self.hello.newest, self.runs) = (Some(attempt), true);
                        }
                        self.rope.say(down);
                        if over {
                            break Served::Over;
                        }
                    }
                    None => break cut(timeout(LAST_WORDS, connection.closed()).await.unwrap_or(LinkError::Closed)),
                },
                up = said.recv() => match up {
                    Some(up) => {
                        self.note(&up);
                        drop(write(&mut send, &up).await);
                    }
                    None => {
                        // The supervisor has ended. Its last words arrive before the end of the stream does.
                        let _ = send.finish();
                        let _ = timeout(LAST_WORDS, send.stopped()).await;
                        break Served::Over;
                    }
                },
            }
        };
        reader.abort();
        served
    }
}

/// What a link came to.
enum Served {
    /// The last word was said.
    Over,
    /// The first host has no place for this one now.
    NoPlace { why: String },
    /// It is not heard any more.
    Cut { what: String },
}

/// One call at every address that the name of the first host has now.
async fn call(meeting: &Meeting) -> Result<(Endpoint, Connection), LinkError> {
    let (name, port) = (meeting.first.0.as_str(), meeting.first.1);
    let nowhere = |what: String| LinkError::Lost { addr: SocketAddr::from(([0, 0, 0, 0], port)), what };
    let found =
        tokio::net::lookup_host((name, port)).await.map_err(|error| nowhere(format!("{name}: {error}")))?;
    let mut last = nowhere(format!("{name} has no address"));
    for addr in found {
        let from: IpAddr =
            if addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let endpoint = Endpoint::bind(SocketAddr::new(from, 0), &meeting.identity, tuning())?;
        match endpoint.connect(addr).await {
            Ok(connection) => return Ok((endpoint, connection)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Writes a word behind its length.
async fn write<T: Serialize>(send: &mut SendStream, word: &T) -> io::Result<()> {
    let bytes = to_bytes(word).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    send.write_all(&length.to_le_bytes()).await?;
    send.write_all(&bytes).await?;
    Ok(())
}

/// Reads a word; none at the end of the stream.
async fn read<T: DeserializeOwned>(recv: &mut RecvStream) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    if recv.read_exact(&mut length).await.is_err() {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other(format!("a word of {length} bytes")));
    }
    let mut bytes = vec![0; length as usize];
    recv.read_exact(&mut bytes).await.map_err(io::Error::other)?;
    from_bytes(&bytes).map(Some).map_err(io::Error::other)
}
