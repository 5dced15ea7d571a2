//! What `dtrain doctor` looks at: a check is one line with a verdict, what was found, and what to do about it.
//!
//! Foreign libraries are only opened in child processes (`probe`), so that one that crashes or hangs is a line of the
//! report and not the end of it. Nothing here prints.

mod amd;
mod check;
mod clock;
mod gpus;
mod host;
mod limits;
mod network;
mod probe;
mod videos;

pub use check::{Check, Verdict};
pub(crate) use limits::free_memory;
pub use probe::answer;

use crate::arguments::Doctor;
use crate::gpus::Asking;
use std::time::Duration;

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
    // A test takes longer than a look: only who asks for GPUs waits for it.
    let asking = if asked.gpu { Asking::Tests } else { Asking::Remembers };
    let seen = gpus::look(Duration::from_secs(asked.timeout.into()), asking);
    let mut checks = host::checks();
    // What keeps the CPU from training is among these; a warning does not.
    let cpu = checks.iter().find(|check| check.verdict == Verdict::Missing);
    let cpu = cpu.map(|check| format!("{}: {}", check.name, check.found));
    checks.extend(limits::checks());
    checks.extend(network::checks(asked.master.as_deref()));
    checks.push(clock::check());
    checks.push(videos::check());
    checks.extend(seen.checks);
    checks.extend(amd::checks());
    Report { checks, cpu, gpu: seen.missing, gpus: seen.usable }
}
