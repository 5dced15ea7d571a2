//! One life of a group: all ranks are started, watched and, when one fails or somebody says so, stopped.
//!
//! It ends when no rank and nothing that a rank started is left, and all their output is written. It does not know of
//! restarts: that is `supervisor`.

use crate::Launch;
use crate::cause::{Asked, Death};
use crate::descendants::{self, Swept};
use crate::environment::{Start, variables};
use crate::output::{Output, Source};
use crate::tail::{LastWords, Tail};
use crate::watch::{Seen, Watch};
use dtrain_protocol::ExitCause;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitStatus, getpid, kill_process_group, pidfd_open, pidfd_send_signal,
};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the others may go on after one has ended in a way that a missing peer can cause.
const SETTLE: Duration = Duration::from_millis(500);

/// What a life came to.
#[derive(Debug)]
pub struct Ended {
    /// How each rank ended, in the order in which the kernel saw it.
    pub deaths: Vec<Death>,
    /// When the ranks were started.
    pub started: Instant,
    /// The signal by which somebody ended it.
    pub interrupted: Option<Signal>,
    /// Whether the process above is gone.
    pub abandoned: bool,
    /// Whether another host wanted an end.
    pub stopped: bool,
    /// What each local rank said last.
    pub tails: Vec<Tail>,
    /// What the ranks had left behind.
    pub swept: Swept,
}

/// The other hosts of a group, as one life of its ranks on this one knows them.
pub trait Neighbours {
    /// Takes in what they have said; whether it means an end of this life.
    fn want_an_end(&mut self) -> bool;
    /// Tells them that a rank has failed here.
    fn tell_of_failure(&mut self);
    /// Tells them that somebody ends the run here.
    fn tell_of_signal(&mut self, signal: Signal);
}

/// A group on one host has none.
pub struct NoNeighbours;

impl Neighbours for NoNeighbours {
    fn want_an_end(&mut self) -> bool {
        false
    }

    fn tell_of_failure(&mut self) {}

    fn tell_of_signal(&mut self, _: Signal) {}
}

/// A process that was started.
struct Rank {
    pid: Pid,
    pidfd: OwnedFd,
    asked: Asked,
    /// Set when it was taken in, which may be before the look that puts it in its place among the others.
    end: Option<ExitCause>,
    dead: bool,
}

/// What goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// One has failed. It may have missed a peer that fails more slowly: until then that one may end by itself.
    Settling(Instant),
    /// All were asked to end; who has not by then is killed.
    Ending(Instant),
    Killing,
}

struct Life<'a> {
    launch: &'a Launch,
    watch: &'a mut Watch,
    neighbours: &'a mut dyn Neighbours,
    ranks: Vec<Rank>,
    phase: Phase,
    looks: u64,
    ended: Ended,
}

/// Starts all ranks and sees them through to their end. *Blocks* for that long.
///
/// *Errors*: of the system; then nothing is left either.
pub fn live(
    launch: &Launch,
    start: &Start,
    watch: &mut Watch,
    folder: Option<&Path>,
    neighbours: &mut dyn Neighbours,
) -> io::Result<Ended> {
    let ended = Ended {
        deaths: Vec::new(),
        started: Instant::now(),
        interrupted: None,
        abandoned: false,
        stopped: false,
        tails: Vec::new(),
        swept: Swept::default(),
    };
    let mut life =
        Life { launch, watch, neighbours, ranks: Vec::new(), phase: Phase::Running, looks: 0, ended };
    let output = life.start(start).and_then(|sources| Output::start(sources, &launch.console, folder));
    match output {
        Ok(output) => life.run(output),
        Err(error) => {
            // Those that were started already fall with the rest.
            descendants::sweep();
            Err(error)
        }
    }
}

impl Life<'_> {
    fn start(&mut self, start: &Start) -> io::Result<Vec<Source>> {
        let mut sources = Vec::new();
        for local in 0..self.launch.processes {
            // The path of this very file, also when another one has taken its name meanwhile.
            let mut command = Command::new("/proc/self/exe");
            command
                .arg0("dtrain")
                .arg("run-rank")
                .arg(getpid().to_string())
                .arg("--")
                .args(&self.launch.program);
            command.envs(variables(self.launch, start, local)).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            let pid = Pid::from_child(&child);
            let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
            self.watch.rank(local, &pidfd)?;
            let pipes = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
            let pipes = pipes.map(|pipe| pipe.expect("both streams are piped"));
            sources.push(Source { local, rank: self.launch.rank(local), pipes });
            self.ranks.push(Rank { pid, pidfd, asked: Asked::Nothing, end: None, dead: false });
        }
        Ok(sources)
    }

    fn run(mut self, output: Output) -> io::Result<Ended> {
        // What came together with the word to start has rung the bell already.
        self.hear_neighbours();
        while self.ranks.iter().any(|rank| !rank.dead) {
            let deadline = match self.phase {
                Phase::Settling(deadline) | Phase::Ending(deadline) => Some(deadline),
                Phase::Running | Phase::Killing => None,
            };
            self.look(deadline)?;
            self.decide(Instant::now());
        }
        self.ended.swept = descendants::sweep();
        output.nobody_is_left()?;
        self.watch.output(&output.done)?;
        // A terminal that is stopped holds the output; who asks twice for an end gets it all the same.
        while !self.is_hurried() {
            if self.look(None)?.contains(&Seen::Output) {
                self.watch.forget(&output.done)?;
                self.ended.tails = output.join();
                break;
            }
        }
        for death in &mut self.ended.deaths {
            let tail = self.ended.tails.get(death.local as usize);
            death.words = tail.map(Tail::last_words).unwrap_or_default();
        }
        Ok(self.ended)
    }

    /// What the ends so far and the time ask for.
    fn decide(&mut self, now: Instant) {
        let deaths = &self.ended.deaths;
        let settled = deaths.iter().any(|death| !death.is_success() && death.is_plain());
        match self.phase {
            Phase::Running | Phase::Settling(_) if settled => self.fail(),
            Phase::Running if deaths.iter().any(|death| !death.is_success()) => {
                self.phase = Phase::Settling(now + SETTLE);
            }
            Phase::Settling(deadline) if deadline <= now => self.fail(),
            Phase::Ending(deadline) if deadline <= now => self.kill(),
            _ => {}
        }
    }

    fn hear_neighbours(&mut self) {
        let end = self.neighbours.want_an_end();
        self.ended.stopped |= end;
        if end && matches!(self.phase, Phase::Running | Phase::Settling(_)) {
            self.ask(Signal::TERM);
        }
    }

    /// A rank has failed by itself: here and elsewhere all end.
    fn fail(&mut self) {
        self.neighbours.tell_of_failure();
        self.ask(Signal::TERM);
    }

    /// Whether nobody waits for the last of the output.
    fn is_hurried(&self) -> bool {
        self.ended.abandoned || (self.phase == Phase::Killing && self.ended.interrupted.is_some())
    }

    /// Waits for something to happen and takes it in; what it was.
    fn look(&mut self, deadline: Option<Instant>) -> io::Result<Vec<Seen>> {
        let seen = self.watch.look(self.ranks.len(), deadline)?;
        self.looks += 1;
        let ranks = &mut self.ranks;
        descendants::reap(|pid, status| {
            if let Some(rank) = ranks.iter_mut().find(|rank| rank.pid == pid) {
                rank.end = Some(ended(status));
            }
        });
        for seen in &seen {
            match *seen {
                Seen::Rank(local) => self.bury(local)?,
                Seen::Stop(signal, times) => self.stop(signal, times),
                Seen::Pass(signal) => self.pass(signal),
                Seen::Party => {
                    self.ended.abandoned = true;
                    self.kill();
                }
                Seen::Hosts => self.hear_neighbours(),
                Seen::Child | Seen::Output => {}
            }
        }
        Ok(seen)
    }

    /// Writes down the end of a rank, in its place among the others.
    fn bury(&mut self, local: u32) -> io::Result<()> {
        let rank = &mut self.ranks[local as usize];
        self.watch.forget(&rank.pidfd)?;
        rank.dead = true;
        self.ended.deaths.push(Death {
            local,
            pid: rank.pid.as_raw_pid(),
            end: rank.end.take().expect("a pidfd is readable when its process can be waited for"),
            at: Instant::now(),
            look: self.looks,
            asked: rank.asked,
            words: LastWords::default(),
        });
        Ok(())
    }

    /// Somebody wants an end: the ranks get the same signal. Who asks again means it.
    fn stop(&mut self, signal: Signal, times: usize) {
        let again = self.ended.interrupted.is_some() || times > 1;
        self.neighbours.tell_of_signal(signal);
        self.ended.interrupted.get_or_insert(signal);
        if again {
            self.kill();
        } else if matches!(self.phase, Phase::Running | Phase::Settling(_)) {
            self.ask(signal);
        }
    }

    /// Asks all ranks to end, with all that they have started: a shell around the program passes nothing on.
    fn ask(&mut self, signal: Signal) {
        self.phase = Phase::Ending(Instant::now() + self.launch.grace);
        for rank in self.ranks.iter_mut().filter(|rank| !rank.dead) {
            rank.asked = rank.asked.max(Asked::End);
            rank.signal_group(signal);
            // One that was stopped would not hear it.
            rank.signal_group(Signal::CONT);
        }
    }

    fn kill(&mut self) {
        self.phase = Phase::Killing;
        for rank in self.ranks.iter_mut().filter(|rank| !rank.dead) {
            rank.asked = Asked::Kill;
            rank.signal_group(Signal::KILL);
        }
    }

    /// The meaning of such a signal is the program's; what the program has started may not know it.
    fn pass(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| !rank.dead) {
            // It may end at this moment.
            let _ = pidfd_send_signal(&rank.pidfd, signal);
        }
    }
}

impl Rank {
    /// A rank that has not left our session yet has no group: then it alone is meant. A dead one hears nothing.
    fn signal_group(&self, signal: Signal) {
        if kill_process_group(self.pid, signal).is_err() {
            let _ = pidfd_send_signal(&self.pidfd, signal);
        }
    }
}

fn ended(status: WaitStatus) -> ExitCause {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitCause::Code(code),
        (None, Some(signal)) => ExitCause::Signal(signal),
        (None, None) => unreachable!("only ends are waited for"),
    }
}
