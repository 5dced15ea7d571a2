//! What `dtrain doctor` looks at: a check is one line with a verdict, what was found, and what to do about it.
//!
//! Foreign libraries are only opened in child processes (`probe`), so that one that crashes or hangs is a line of the
//! report and not the end of it. Nothing here prints.

mod clock;
mod gpus;
mod host;
mod limits;
mod network;
mod probe;

pub(crate) use limits::free_memory;
pub use probe::answer;

use crate::arguments::Doctor;
use serde_json::{Value, json};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but not for everything or not well.
    Warn,
    /// It is not there, or does not work.
    Missing,
}

impl Verdict {
    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Missing => "missing",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found, for people.
    pub found: String,
    /// What to do, where there is something to do or to know.
    pub hint: Option<String>,
    /// What was found, for programs.
    pub details: Value,
}

impl Check {
    /// Its name for programs: `host_name`.
    #[must_use]
    pub fn key(&self) -> String {
        let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        self.name.chars().map(word).collect::<String>().trim_matches('_').to_owned()
    }

    fn new(name: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { name, verdict, found: found.into(), hint: None, details: json!({}) }
    }

    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, found)
    }

    fn warn(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Warn, found)
    }

    fn missing(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Missing, found)
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
}

/// The whole report.
pub struct Report {
    /// In the order in which they are shown.
    pub checks: Vec<Check>,
    /// Why training on the CPU does not work here; nothing if it does.
    pub cpu: Option<String>,
    /// What stands between this machine and training on its GPUs; nothing if they are ready.
    pub gpu: Option<String>,
    /// How many GPUs may be used.
    pub gpus: u32,
}

impl Report {
    /// How many checks came to this.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|check| check.verdict == verdict).count()
    }
}

/// Examines this machine. *Blocks* for as long as its libraries and its name service take, within limits.
#[must_use]
pub fn examine(asked: &Doctor) -> Report {
    let seen = gpus::look(Duration::from_secs(asked.timeout.into()));
    let mut checks = host::checks();
    // What keeps the CPU from training is among these; a warning does not.
    let cpu = checks.iter().find(|check| check.verdict == Verdict::Missing);
    let cpu = cpu.map(|check| format!("{}: {}", check.name, check.found));
    checks.extend(limits::checks());
    checks.extend(network::checks(asked.master.as_deref()));
    checks.push(clock::check());
    checks.extend(seen.checks);
    Report { checks, cpu, gpu: seen.missing, gpus: seen.usable }
}

/// What `work` gives, if it does so in time. The thread of one that hangs ends with the process.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || drop(sender.send(work())));
    receiver.recv_timeout(limit).ok()
}
