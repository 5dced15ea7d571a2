//! A run of `dtrain train --json`, or a host of one, as a child process, read line by line, each with the moment of its arrival.
//!
//! The child dies with the drill, however that ends, and its ranks die with it. It does not know what is done to the
//! run or what is expected of it.

use super::seen::{Seen, is_step};
use crate::error::{CliError, Kind};
use dtrain_runtime::TETHER_VARIABLE;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A run that says nothing for so long hangs. Steps of minutes are slow; steps of this are none.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often a drill that waits looks whether somebody wants to stop it.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Whether somebody wants to stop the drill: Ctrl-C or SIGTERM.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Catches both signals from now on.
    ///
    /// *Errors*: of the system.
    pub fn new() -> Result<Self, CliError> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [Signal::INT, Signal::TERM] {
            signal_hook::flag::register(signal.as_raw(), Arc::clone(&asked))
                .map_err(|error| CliError::failed("cannot catch signals").because(&error))?;
        }
        Ok(Self(asked))
    }

    /// *Errors*: somebody does.
    pub fn check(&self) -> Result<(), CliError> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(CliError::new(Kind::Interrupted, "the drill was stopped; its runs are gone")),
            false => Ok(()),
        }
    }

    /// What came of a short command. Ctrl-C in a terminal reaches it too: then it is not to blame for its failure.
    ///
    /// *Errors*: its own, or that somebody stopped the drill.
    pub fn unless_stopped<T>(&self, done: Result<T, CliError>) -> Result<T, CliError> {
        done.or_else(|error| self.check().and(Err(error)))
    }
}

/// What came, or did not.
#[derive(Debug)]
pub enum Heard {
    /// A line, and when it came.
    Line(Instant, Value),
    /// Nothing, up to the given moment.
    Silence,
    /// The end of the run's output.
    End,
}

/// What a run left behind.
#[derive(Debug)]
pub struct EndedRun {
    /// None when a signal ended it.
    pub code: Option<i32>,
    /// What was seen of it.
    pub seen: Seen,
    /// What it said to people.
    pub words: String,
}

impl EndedRun {
    /// Its last words, for a report.
    #[must_use]
    pub fn last_words(&self) -> String {
        let lines: Vec<&str> = self.words.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(6)..].join("\n")
    }
}

/// A run that goes on. It is killed when it is dropped.
#[derive(Debug)]
pub struct Run {
    /// What was seen of it so far.
    pub seen: Seen,
    /// When it was started.
    pub begun: Instant,
    child: Child,
    lines: Receiver<(Instant, String)>,
    words: Option<JoinHandle<String>>,
    stop: Stop,
}

/// This program with arguments, bound to the life of this process. `around` is a command that it is started with.
///
/// *Errors*: the program cannot find itself.
pub fn this_program(around: &[OsString], words: &[OsString]) -> Result<Command, CliError> {
    program(&[], around, words)
}

/// The same of another program, by its words; none is this one.
///
/// *Errors*: this program cannot find itself.
pub fn program(own: &[OsString], around: &[OsString], words: &[OsString]) -> Result<Command, CliError> {
    let this = std::env::current_exe()
        .map_err(|error| CliError::failed("this program cannot find itself").because(&error))?;
    // `run-rank` dies with its parent and becomes what follows, so that nothing is left of a drill that is killed.
    let bound = [this.clone().into(), "run-rank".into(), std::process::id().to_string().into()];
    let what = if own.is_empty() { vec![this.into()] } else { own.to_vec() };
    let mut all = around.iter().cloned().chain::<[OsString; 3]>(bound).chain(what);
    let mut command = Command::new(all.next().expect("it has a first word"));
    command.args(all).args(words).stdin(Stdio::null()).env("NO_COLOR", "1").env(TETHER_VARIABLE, "1");
    Ok(command)
}

impl Run {
    /// Starts `command`; `seen` is what was seen of an earlier life.
    ///
    /// *Errors*: it cannot be started.
    pub fn start(mut command: Command, seen: Seen, stop: &Stop) -> Result<Self, CliError> {
        let begun = Instant::now();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| CliError::failed("a run cannot be started").because(&error))?;
        let (sender, lines) = channel();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
        std::thread::spawn(move || {
            let mut line = String::new();
            while stdout.read_line(&mut line).is_ok_and(|read| read > 0) {
                if sender.send((Instant::now(), std::mem::take(&mut line))).is_err() {
                    return;
                }
            }
        });
        let mut stderr = BufReader::new(child.stderr.take().expect("it is a pipe"));
        let words = std::thread::spawn(move || {
            let (mut text, mut line) = (String::new(), Vec::new());
            while stderr.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                text += &String::from_utf8_lossy(&line);
                line.clear();
            }
            text
        });
        Ok(Self { seen, begun, child, lines, words: Some(words), stop: stop.clone() })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line; with `until` at the latest then. *Blocks*.
    ///
    /// *Errors*: somebody stopped the drill; a run that is silent for ten minutes.
    pub fn hear(&mut self, until: Option<Instant>) -> Result<Heard, CliError> {
        let patience = Instant::now() + PATIENCE;
        loop {
            self.stop.check()?;
            let now = Instant::now();
            let wait = until.map_or(LOOK_UP, |until| until.saturating_duration_since(now).min(LOOK_UP));
            match self.lines.recv_timeout(wait) {
                Ok((at, line)) => {
                    // A run that is killed may leave half a line.
                    let Ok(value) = serde_json::from_str::<Value>(&line) else { continue };
                    self.seen.take(&value);
                    return Ok(Heard::Line(at, value));
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(Heard::End),
                Err(RecvTimeoutError::Timeout) if until.is_some_and(|until| Instant::now() >= until) => {
                    return Ok(Heard::Silence);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= patience => {
                    let message = format!("the run said nothing for {} s", PATIENCE.as_secs());
                    return Err(CliError::failed(message));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Reads until a line is `wanted`; when it came, or none when the run ended first. *Blocks*.
    ///
    /// *Errors*: as [`Run::hear`].
    pub fn wait_for(
        &mut self,
        mut wanted: impl FnMut(&Seen, &Value) -> bool,
    ) -> Result<Option<Instant>, CliError> {
        loop {
            match self.hear(None)? {
                Heard::Line(at, line) if wanted(&self.seen, &line) => return Ok(Some(at)),
                Heard::End => return Ok(None),
                Heard::Line(..) | Heard::Silence => {}
            }
        }
    }

    /// Reads until a step is made. False when the run ended before it. *Blocks*.
    ///
    /// *Errors*: as [`Run::hear`].
    pub fn wait_for_step(&mut self, step: u64) -> Result<bool, CliError> {
        Ok(self.seen.last_step >= step
            || self.wait_for(|seen, line| is_step(line) && seen.last_step >= step)?.is_some())
    }

    /// Reads for so long. False when the run ended in that time. *Blocks*.
    ///
    /// *Errors*: as [`Run::hear`].
    pub fn pause(&mut self, time: Duration) -> Result<bool, CliError> {
        let until = Instant::now() + time;
        loop {
            match self.hear(Some(until))? {
                Heard::Silence => return Ok(true),
                Heard::End => return Ok(false),
                Heard::Line(..) if Instant::now() >= until => return Ok(true),
                Heard::Line(..) => {}
            }
        }
    }

    /// Reads to the end and waits for the process. *Blocks*.
    ///
    /// *Errors*: as [`Run::hear`]; of the system.
    pub fn finish(mut self) -> Result<EndedRun, CliError> {
        while !matches!(self.hear(None)?, Heard::End) {}
        let status = self
            .child
            .wait()
            .map_err(|error| CliError::failed("a run cannot be waited for").because(&error))?;
        let words = self.words.take().and_then(|words| words.join().ok()).unwrap_or_default();
        Ok(EndedRun { code: status.code(), seen: std::mem::take(&mut self.seen), words })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process that may be gone already.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It is gone: then somebody else was faster, and the run says so.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// The process that a process was started by, if it is there.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
}

/// Whether a process is there and works.
#[must_use]
pub fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}
