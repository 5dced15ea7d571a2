//! Where ranks live: a process of its own each, or threads of this one. Both get the same handles and speak the same
//! frames; only their ends differ (a process has an exit status and can be killed, a thread has neither).
//!
//! Does not know the protocol: it starts, watches and kills.

use crate::rank_handles::{self, HANDLES_VARIABLE, KEEPER_VARIABLE, RankHandles};
use dtrain_types::{Incarnation, MemberId};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

/// How many of a rank's last output lines are kept for the report of its death.
pub const LAST_LINES: usize = 20;
/// How long a dead rank's output is still read.
const LAST_WORDS: Duration = Duration::from_millis(50);
/// How long a rank that is to be killed has for its stacks.
const STACKS: Duration = Duration::from_millis(50);
/// A line of a rank's output longer than this is cut.
const LONGEST_LINE: usize = 2_000;

/// Which program a rank process runs: this one again, with the same arguments.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// What it finds in its environment beside what is in ours.
    pub environment: Vec<(OsString, OsString)>,
    /// What has it write its stacks to standard error, before it is killed; none where it knows no such signal.
    pub stacks: Option<Signal>,
}

impl Program {
    /// This very program, also when its file has been replaced meanwhile.
    #[must_use]
    pub fn this() -> Self {
        let (path, arguments) = (PathBuf::from("/proc/self/exe"), std::env::args_os().skip(1).collect());
        Self { path, arguments, environment: Vec::new(), stacks: None }
    }

    /// The same with one more variable in its environment.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }
}

/// How one life of a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankExit {
    /// The process exited with this code.
    Code(i32),
    /// The process was killed by this signal.
    Signal(i32),
    /// The thread returned.
    Returned,
    /// The thread panicked.
    Panicked,
}

impl From<ExitStatus> for RankExit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(-1),
        }
    }
}

/// What happens to a started rank, told to its node.
#[derive(Debug)]
pub enum RankNews {
    /// A line that it printed.
    Line(MemberId, String),
    /// The end of this life; nothing of it comes after.
    Ended(MemberId, Incarnation, RankExit),
}

/// The function that a rank thread runs: it serves the handles until the run is over.
pub type ServeRank = Arc<dyn Fn(RankHandles) + Send + Sync>;

/// A started rank.
#[derive(Debug)]
pub struct StartedRank {
    /// Our end of its control link.
    pub link: UnixStream,
    /// Its process id (this process's own for a thread).
    pub pid: u32,
    /// Kills it; without effect on a thread.
    pub killer: Killer,
}

/// Sends SIGKILL to a rank process, at most once and never to a recycled pid.
#[derive(Debug, Default)]
pub struct Killer(Option<tokio::sync::oneshot::Sender<()>>);

impl Killer {
    /// Kills the process; its [`RankNews::Ended`] follows when the kernel has torn it down.
    pub fn kill(&mut self) {
        if let Some(trigger) = self.0.take() {
            // A closed channel means that the process has ended already.
            let _ = trigger.send(());
        }
    }
}

/// Starts `member` as a process. Must be called on a thread that lasts as long as the run: the kernel kills the
/// process when the thread that started it ends.
///
/// *Errors*: of the system calls.
pub fn start_process(
    program: &Program,
    (member, incarnation): (MemberId, Incarnation),
    arena: Option<&OwnedFd>,
    news: tokio::sync::mpsc::Sender<RankNews>,
) -> io::Result<StartedRank> {
    let (ours, theirs) = UnixStream::pair()?;
    rank_handles::offer(&ours, arena.map(AsFd::as_fd))?;
    let mut child = Command::new(&program.path)
        .args(&program.arguments)
        .envs(program.environment.iter().map(|(name, value)| (name, value)))
        .env_remove(KEEPER_VARIABLE)
        .env(HANDLES_VARIABLE, format!("{}:{}:{}", member.0, incarnation.0, std::process::id()))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let pid = child.id().unwrap_or(0);
    let stacks = program.stacks;
    let (trigger, killed) = tokio::sync::oneshot::channel();
    let outputs = (child.stdout.take(), child.stderr.take());
    tokio::spawn(async move {
        let lines = news.clone();
        let words = tokio::spawn(async move {
            tokio::join!(forward_lines(member, outputs.0, &lines), forward_lines(member, outputs.1, &lines))
        });
        let ending = wait_or_kill(&mut child, killed, stacks).await;
        // The end is told after the last line, so that a report of a death can quote it; but a grandchild that
        // keeps the pipe open must not hide the death.
        let _ = tokio::time::timeout(LAST_WORDS, words).await;
        let _ = news.send(RankNews::Ended(member, incarnation, ending)).await;
    });
    Ok(StartedRank { link: ours, pid, killer: Killer(Some(trigger)) })
}

async fn wait_or_kill(
    child: &mut Child,
    killed: tokio::sync::oneshot::Receiver<()>,
    stacks: Option<Signal>,
) -> RankExit {
    let status = tokio::select! {
        biased;
        status = child.wait() => status,
        Ok(()) = killed => {
            // An error means that it has exited already; the wait below tells how.
            if let Some((signal, pid)) = stacks.zip(child.id().and_then(|id| Pid::from_raw(id as i32))) {
                let _ = kill_process(pid, signal);
                let _ = tokio::time::timeout(STACKS, child.wait()).await;
            }
            let _ = child.start_kill();
            child.wait().await
        }
    };
    status.map_or(RankExit::Code(-1), RankExit::from)
}

async fn forward_lines(
    member: MemberId,
    output: Option<impl AsyncRead + Unpin>,
    news: &tokio::sync::mpsc::Sender<RankNews>,
) {
    let Some(output) = output else { return };
    let mut lines = BufReader::new(output).split(b'\n');
    while let Ok(Some(mut line)) = lines.next_segment().await {
        line.truncate(LONGEST_LINE);
        let text = String::from_utf8_lossy(&line).into_owned();
        if news.send(RankNews::Line(member, text)).await.is_err() {
            return;
        }
    }
}

/// Starts `member` as a thread of this process.
///
/// *Errors*: of the system calls.
pub fn start_thread(
    serve: ServeRank,
    (member, incarnation): (MemberId, Incarnation),
    arena: Option<&OwnedFd>,
    news: tokio::sync::mpsc::Sender<RankNews>,
) -> io::Result<StartedRank> {
    let (ours, theirs) = UnixStream::pair()?;
    rank_handles::offer(&ours, arena.map(AsFd::as_fd))?;
    let handles = rank_handles::accept(member, incarnation, theirs)?;
    let thread = std::thread::Builder::new().name(format!("rank-{member}")).spawn(move || {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| serve(handles)));
        let ending = if ended.is_ok() { RankExit::Returned } else { RankExit::Panicked };
        let _ = news.blocking_send(RankNews::Ended(member, incarnation, ending));
    })?;
    // The end of the thread is told by its last line above; the process ends only after all of them.
    drop(thread);
    Ok(StartedRank { link: ours, pid: std::process::id(), killer: Killer::default() })
}
