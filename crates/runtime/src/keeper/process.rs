//! The keeper's side: it serves its node over the link to the supervisor, and waits for another one when that ends.

use super::{Claim, KeeperSetup, Outlook, address};
use crate::journal::OutputSink;
use crate::link::{self, LinkReceiver, LinkSender};
use crate::mail::Deliver;
use crate::node::{Isolation, Linked, NODE_MAILBOX, Node, NodeConfig, NodeNews, ToSupervisor};
use crate::rank_handles::{self, KEEPER_VARIABLE, TETHER_VARIABLE};
use crate::recipe::host_name;
use dtrain_protocol::{BootId, Message as Word, NodeConfig as NodeMachine, OutputLine, Phase, Timeouts};
use dtrain_types::{MemberId, NodeId};
use kameo::prelude::*;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// News of a node, and supervisors, that wait to be looked at.
const NEWS: usize = 16;
/// How long whoever calls has for its first word.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// The most lines of ranks that wait for somebody to show them.
const MOST_LINES: usize = 4_096;
/// How often lines that found no room are tried again.
const AGAIN: Duration = Duration::from_millis(5);
/// How often it is looked whether somebody else leads, where the supervisor is gone.
const LOOK: Duration = Duration::from_millis(250);
/// A supervisor that leads for so long and has not called will not: it leads from another host, without these ranks.
const ELSEWHERE: Duration = Duration::from_secs(5);
/// How long the last lines have at the end.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Serves this process as a keeper, if its parent made it one. Call it on the main thread: ranks die with the thread that starts
/// them.
///
/// *Blocks* until the run needs it no more. *Errors*: what a parent gives is not there, or the system refuses.
pub fn keep_if_asked() -> Option<io::Result<()>> {
    let parent = std::env::var_os(KEEPER_VARIABLE)?;
    Some(keep(parent.to_str().and_then(|text| text.parse().ok())))
}

fn keep(parent: Option<i32>) -> io::Result<()> {
    if std::env::var_os(TETHER_VARIABLE).is_some() {
        let wrong = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{KEEPER_VARIABLE} is set, but not by dtrain"),
            )
        };
        rank_handles::die_with(parent.ok_or_else(wrong)?)?;
    }
    let stream = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // The link ends when we close it, and not with a copy of it.
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let memory = rank_handles::accept_memory(&stream)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let end = runtime.block_on(serve(stream, memory));
    runtime.shutdown_timeout(Duration::from_millis(100));
    end
}

/// A link to a supervisor.
struct Link {
    sender: LinkSender,
    words: LinkReceiver,
    /// Ends when all senders are dropped and everything is written.
    writer: JoinHandle<()>,
}

impl Link {
    fn over(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        let (sender, words, writer) = link::open_host(read, write);
        Self { sender, words, writer }
    }
}

/// Where words go up, and lines that nobody takes yet.
struct Outbox {
    up: Arc<Mutex<Option<LinkSender>>>,
    lines: Mutex<VecDeque<OutputLine>>,
}

impl Outbox {
    fn lines(&self) -> MutexGuard<'_, VecDeque<OutputLine>> {
        self.lines.lock().expect("no holder panics")
    }

    fn put(&self, member: MemberId, line: &str) {
        let mut lines = self.lines();
        if lines.len() == MOST_LINES {
            lines.pop_front();
        }
        lines.push_back(OutputLine { member, line: line.to_owned() });
    }

    /// Sends lines while there is room for more important words, too; says whether all are gone.
    fn flush(&self) -> bool {
        let up = self.up.lock().expect("no holder of the link panics");
        let mut lines = self.lines();
        if let Some(link) = &*up {
            while link.has_room()
                && let Some(line) = lines.pop_front()
            {
                link.send(&Word::Output(line));
            }
        }
        lines.is_empty()
    }
}

struct Keeper {
    setup: KeeperSetup,
    node: ActorRef<Node>,
    outbox: Arc<Outbox>,
    timeouts: Timeouts,
    /// A rank holds a state that only it and its peers have.
    holds_state: bool,
    /// Since when there is no supervisor.
    gone: Option<Instant>,
    /// Since when there is one that has not called.
    led: Option<Instant>,
}

async fn serve(stream: StdStream, memory: Option<OwnedFd>) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let mut link = Link::over(UnixStream::from_std(stream)?);
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let setup = match link.words.next().await {
        Ok(Some(Word::RankSetup(setup))) => setup.read::<KeeperSetup>(),
        _ => None,
    };
    let setup = setup.ok_or_else(|| wrong("standard input has no set-up of a keeper"))?;
    let timeouts = setup.timeouts().map_err(|error| wrong(&error.to_string()))?;
    let listener = StdListener::bind_addr(&address(&setup.name)?)?;
    listener.set_nonblocking(true)?;
    let (come, calls) = mpsc::channel(NEWS);
    let listening = tokio::spawn(listen(UnixListener::from_std(listener)?, setup.name.clone(), come));

    let up = Arc::new(Mutex::new(Some(link.sender.clone())));
    let outbox = Arc::new(Outbox { up: Arc::clone(&up), lines: Mutex::default() });
    let lines = Arc::clone(&outbox);
    let (journal, output) = OutputSink::start(move |member, line| {
        lines.put(member, line);
        lines.flush();
    })?;
    let (told, news) = mpsc::channel(NEWS);
    let machine =
        NodeMachine { node: NodeId(0), boot: boot(), host: host_name(), ranks: setup.ranks, timeouts };
    let config = NodeConfig {
        machine,
        isolation: Isolation::Process(setup.program.unpack()),
        arena: memory,
        setup: setup.setup.clone(),
        up: ToSupervisor::Link(up),
        journal,
        told: Some(told),
    };
    let node = Node::spawn_with_mailbox(config, kameo::mailbox::bounded(NODE_MAILBOX));
    let keeper = Keeper {
        setup,
        node: node.clone(),
        outbox: Arc::clone(&outbox),
        timeouts,
        holds_state: false,
        gone: None,
        led: None,
    };
    let writer = keeper.run(link, news, calls).await?;
    listening.abort();
    // Ranks that are still there are killed with the actor that holds them.
    let _ = node.stop_gracefully().await;
    let _ = timeout(timeouts.detect, node.wait_for_shutdown()).await;
    drop(node);
    output.finish();
    let end = Instant::now() + LAST_LINES;
    while !outbox.flush() && Instant::now() < end && outbox.up.lock().is_ok_and(|up| up.is_some()) {
        tokio::time::sleep(AGAIN).await;
    }
    *outbox.up.lock().expect("no holder of the link panics") = None;
    let _ = timeout(LAST_LINES, writer).await;
    Ok(())
}

impl Keeper {
    async fn run(
        mut self,
        link: Link,
        mut news: mpsc::Receiver<NodeNews>,
        mut calls: mpsc::Receiver<Link>,
    ) -> io::Result<JoinHandle<()>> {
        // A signal to the whole process group, or to every process of a job, is meant for the supervisor.
        let mut ignored = [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::user_defined1())?,
        ];
        let [int, term, hup, usr1] = &mut ignored;
        let Link { sender, words, mut writer } = link;
        drop(sender);
        let (mut words, mut has_left) = (Some(words), None);
        loop {
            let again = Instant::now() + AGAIN;
            let is_full = !self.outbox.flush() && self.gone.is_none();
            let patience = has_left.or(self.gone.map(|gone| gone + self.timeouts.master));
            tokio::select! {
                biased;
                word = next_word(&mut words) => match word {
                    Some(Word::Goodbye(_)) => return Ok(writer),
                    Some(word) => self.hear(word).await,
                    None => {
                        words = None;
                        self.lose();
                        if !self.holds_state || has_left.is_some() {
                            return Ok(writer);
                        }
                    }
                },
                Some(call) = calls.recv() => {
                    (words, writer) = (Some(call.words), call.writer);
                    self.take(call.sender).await;
                }
                Some(told) = news.recv() => match told {
                    // The supervisor says the last word.
                    NodeNews::Left => has_left = Some(Instant::now() + self.timeouts.detect * 2),
                    NodeNews::Orphaned if self.gone.is_some() => return Ok(writer),
                    // It only stands still, and may yet order others.
                    NodeNews::Orphaned => self.holds_state = false,
                },
                () = sleep_until(patience.unwrap_or(again)), if patience.is_some() => return Ok(writer),
                () = sleep_until(Instant::now() + LOOK), if self.gone.is_some() => if self.is_left_out() { return Ok(writer) },
                () = sleep_until(again), if is_full => {}
                // Where there is no supervisor any more, it is meant for whoever waits for one.
                _ = int.recv() => if self.gone.is_some() { return Ok(writer) },
                _ = term.recv() => if self.gone.is_some() { return Ok(writer) },
                _ = hup.recv() => if self.gone.is_some() { return Ok(writer) },
                _ = usr1.recv() => {}
            }
        }
    }

    async fn hear(&mut self, word: Word) {
        if let Word::Directive(directive) = &word {
            self.holds_state |= directive.phase == Phase::Run;
        }
        let _ = self.node.tell(Deliver(word)).send().await;
    }

    /// The supervisor is gone.
    fn lose(&mut self) {
        *self.outbox.up.lock().expect("no holder of the link panics") = None;
        self.gone = Some(Instant::now());
        tracing::warn!(keeper = self.setup.name, waits = ?self.timeouts.master, "the supervisor is gone");
    }

    /// Whether another host leads by now, or led.
    fn is_left_out(&mut self) -> bool {
        match self.setup.outlook() {
            Outlook::Vacant => {
                self.led = None;
                false
            }
            Outlook::Led => self.led.get_or_insert_with(Instant::now).elapsed() >= ELSEWHERE,
            Outlook::Forgotten => true,
        }
    }

    /// Another one is there.
    async fn take(&mut self, sender: LinkSender) {
        *self.outbox.up.lock().expect("no holder of the link panics") = Some(sender);
        (self.gone, self.led) = (None, None);
        let _ = self.node.tell(Linked).send().await;
    }
}

/// The next word; none when the link has ended. Waits for ever where there is no link.
async fn next_word(words: &mut Option<LinkReceiver>) -> Option<Word> {
    let Some(words) = words else { return std::future::pending().await };
    words.next().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the link to the supervisor ended");
        None
    })
}

/// Lets supervisors in that mean this keeper.
async fn listen(listener: UnixListener, name: String, come: mpsc::Sender<Link>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Too many files, and no reason to give up.
            tokio::time::sleep(FIRST_WORD / 50).await;
            continue;
        };
        let own = rustix::process::geteuid().as_raw();
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0) {
            continue;
        }
        let (come, name) = (come.clone(), name.clone());
        tokio::spawn(async move {
            let mut link = Link::over(stream);
            let first = timeout(FIRST_WORD, link.words.next()).await;
            // Who only asks whether somebody is there says nothing.
            let Ok(Ok(Some(Word::RankSetup(claim)))) = first else { return };
            if claim.read() == Some(Claim { name }) {
                let _ = come.send(link).await;
            }
        });
    }
}

/// A number for this life of the node.
fn boot() -> BootId {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    BootId(
        (u64::from(std::process::id()) << 32)
            ^ u64::try_from(since.as_nanos() & 0xFFFF_FFFF_FFFF).unwrap_or(0),
    )
}
