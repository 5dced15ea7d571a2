//! The supervisor's side: it starts the keeper, or calls the one that the life before left, and starts another one when that ends.

use super::{Claim, KeeperSetup, address};
use crate::journal::{Entry, JournalSender};
use crate::link;
use crate::mail::Heard;
use crate::rank_handles::{self, KEEPER_VARIABLE};
use crate::rank_host::Program;
use crate::supervisor::{NodeIs, NodeLost, Supervisor, ToNode};
use dtrain_protocol::{Goodbye, Message as Word, RankSetup};
use dtrain_types::NodeId;
use kameo::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// The node of the supervisor's own host.
const HERE: NodeId = NodeId(0);
/// Between the end of one keeper and the start of the next; twice as long each time, up to a second, where one does not last.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const LASTING: Duration = Duration::from_secs(1);
/// How long a keeper that is dismissed has to end its ranks.
const DISMISSAL: Duration = Duration::from_secs(10);

/// The name by which a keeper is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptName(String);

impl KeptName {
    /// A name that stands in a file, or a fresh one that nobody else has.
    #[must_use]
    pub fn new(name: String) -> Self {
        Self(name)
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a keeper of this name lives. It learns nothing of the question.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.call().is_ok()
    }

    /// *Errors*: nobody of this name is there, or somebody else's process.
    fn call(&self) -> io::Result<StdStream> {
        let stream = StdStream::connect_addr(&address(&self.0)?)?;
        let (theirs, ours) =
            (rustix::net::sockopt::socket_peercred(&stream)?.uid, rustix::process::geteuid());
        match theirs == ours || theirs.is_root() {
            true => Ok(stream),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Ends the keeper of this name with its ranks, if there is one. Only whoever holds the lock of the run may.
    ///
    /// *Blocks* until all of them are gone. *Errors*: they do not end.
    pub fn dismiss(&self) -> io::Result<()> {
        let Ok(stream) = self.call() else { return Ok(()) };
        let keeper = process_behind(&stream)?;
        // One that has ended meanwhile is as good.
        let _ = pidfd_send_signal(&keeper, Signal::KILL);
        let end = std::time::Instant::now() + DISMISSAL;
        // Its ranks are killed by the kernel as it ends, and its name is free when the last thread of it is gone.
        while self.is_there() {
            if std::time::Instant::now() > end {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the process that holds the ranks does not end",
                ));
            }
            std::thread::sleep(PAUSE / 10);
        }
        Ok(())
    }
}

/// The process at the other end, as something that no other process can be taken for.
fn process_behind(stream: &StdStream) -> io::Result<OwnedFd> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    Ok(pidfd_open(peer.pid, PidfdFlags::empty())?)
}

/// Makes the memory that the ranks of a keeper share, where they share some.
pub type MakeMemory = Box<dyn Fn() -> io::Result<Option<OwnedFd>> + Send>;

/// What a keeper is made of.
pub struct KeeperPlan {
    /// Its name.
    pub name: KeptName,
    /// What it runs.
    pub program: Program,
    /// What it is told.
    pub setup: KeeperSetup,
    /// The memory of its ranks; that of one life is not that of another.
    pub memory: MakeMemory,
    /// Whether the life before left it.
    pub is_there: bool,
}

/// A keeper that lives.
struct Kept {
    stream: StdStream,
    process: OwnedFd,
    /// What we say first.
    first: RankSetup,
}

impl KeeperPlan {
    fn start(&self) -> io::Result<Kept> {
        let (ours, theirs) = StdStream::pair()?;
        let memory = (self.memory)()?;
        rank_handles::offer(&ours, memory.as_ref().map(AsFd::as_fd))?;
        // Its words come over a pipe: whoever waits for the end of our output does not wait for a keeper that outlives us.
        let mut child = Command::new(&self.program.path)
            .args(&self.program.arguments)
            .envs(self.program.environment.iter().map(|(name, value)| (name, value)))
            .env(KEEPER_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // What a terminal says to our group is for us.
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        // Its end is seen on the link; somebody has to take what is left of it.
        std::thread::Builder::new().name("keeper".into()).spawn(move || {
            if let Some(mut words) = child.stderr.take() {
                let _ = io::copy(&mut words, &mut io::stderr());
            }
            let _ = child.wait();
        })?;
        Ok(Kept { stream: ours, process, first: RankSetup::of(&self.setup) })
    }

    fn find(&self) -> io::Result<Kept> {
        let stream = self.name.call()?;
        let process = process_behind(&stream)?;
        let claim = Claim { name: self.name.as_str().to_owned() };
        Ok(Kept { stream, process, first: RankSetup::of(&claim) })
    }
}

/// The keeper of a run, held until the run is over. Whoever drops it ends the keeper and its ranks, unless it panics.
pub struct Hold {
    task: JoinHandle<()>,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    is_over: bool,
    process: OwnedFd,
    link: link::LinkSender,
}

impl Hold {
    /// Starts the keeper, or takes over the one that is there.
    ///
    /// *Errors*: of the system. *Panics* outside of a tokio runtime.
    pub async fn begin(
        plan: KeeperPlan,
        supervisor: ActorRef<Supervisor>,
        journal: JournalSender,
    ) -> io::Result<Self> {
        // One that ended this very moment leaves us where its end would have left us a moment later.
        let kept = match plan.is_there {
            true => plan.find().or_else(|_| plan.start())?,
            false => plan.start()?,
        };
        let (process, link, words) = open(kept)?;
        let shared = Arc::new(Mutex::new(Shared { is_over: false, process, link: link.clone() }));
        let own = Arc::clone(&shared);
        let task = tokio::spawn(hold(plan, supervisor, journal, own, link, words));
        Ok(Self { task, shared })
    }

    /// Lets the keeper go and waits until it is gone, for at most `patience`; what its ranks said last is entered by then.
    pub async fn close(mut self, patience: Duration) {
        {
            let mut shared = self.shared.lock().expect("no holder panics");
            shared.is_over = true;
            shared.link.send(&Word::Goodbye(Goodbye { code: 0, why: "the run is over".to_owned() }));
        }
        if timeout(patience, &mut self.task).await.is_err() {
            return tracing::warn!("the process that holds the ranks does not leave");
        }
        let shared = self.shared.lock().expect("no holder panics");
        let mut gone = [PollFd::new(&shared.process, PollFlags::IN)];
        let limit = Timespec::try_from(patience).ok();
        let _ = poll(&mut gone, limit.as_ref());
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.task.abort();
        if !std::thread::panicking() {
            // One that has left already is not there to be killed.
            let shared = self.shared.lock().expect("no holder panics");
            let _ = pidfd_send_signal(&shared.process, Signal::KILL);
        }
    }
}

type Opened = (OwnedFd, link::LinkSender, link::LinkReceiver);

fn open(kept: Kept) -> io::Result<Opened> {
    kept.stream.set_nonblocking(true)?;
    let (read, write) = UnixStream::from_std(kept.stream)?.into_split();
    let (link, words, _writer) = link::open_host(read, write);
    link.send(&Word::RankSetup(kept.first));
    Ok((kept.process, link, words))
}

/// Carries words until the run is over, over the links of one keeper after the other.
async fn hold(
    plan: KeeperPlan,
    supervisor: ActorRef<Supervisor>,
    journal: JournalSender,
    shared: Arc<Mutex<Shared>>,
    mut link: link::LinkSender,
    mut words: link::LinkReceiver,
) {
    let (mut begun, mut pause) = (Instant::now(), PAUSE / 2);
    loop {
        let _ = supervisor.tell(NodeIs(HERE, ToNode::Link(link.clone()))).send().await;
        loop {
            match words.next().await {
                Ok(Some(Word::Output(output))) => {
                    journal.enter(Entry::RankOutput { member: output.member, line: output.line });
                }
                Ok(Some(word)) => drop(supervisor.tell(Heard(word)).send().await),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "the link to the process that holds the ranks ended");
                    break;
                }
            }
        }
        if shared.lock().expect("no holder panics").is_over {
            return;
        }
        let _ = supervisor.tell(NodeLost(HERE, link)).send().await;
        // One that lives without a link would keep its name.
        let _ = pidfd_send_signal(&shared.lock().expect("no holder panics").process, Signal::KILL);
        (link, words) = loop {
            // Where one after the other ends as soon as it begins, nobody is in a hurry.
            pause = if begun.elapsed() >= LASTING { PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            sleep(pause).await;
            begun = Instant::now();
            match plan.start().and_then(open) {
                Ok((process, link, words)) => {
                    let mut shared = shared.lock().expect("no holder panics");
                    (shared.process, shared.link) = (process, link.clone());
                    break (link, words);
                }
                Err(error) => tracing::warn!(%error, "a process that holds the ranks could not be started"),
            }
        };
    }
}
