//! Drills: a run of the user's own configuration, disturbed on purpose, and what came of it.
//!
//! Every drill has the same course (see [`crate::commands::drill`]): an undisturbed run gives the digest that is
//! expected; a second run with the same settings is disturbed; an audit reads its books. All of them are child processes
//! of this very program, in a temporary folder. A drill judges from outside, by pids, by wall time, by exit codes and
//! by the lines of `--json`: what a run believes of itself is no evidence.

mod cut;
mod described;
mod disk_full;
mod network;
mod partition;
mod ranks;
mod report;
mod run;
mod seen;
mod setup;
mod sigterm;

pub use described::Described;
pub use disk_full::{SmallDisk, disk_full};
pub use partition::{TwoHosts, partition};
pub use ranks::{hang, kill};
pub use report::{Reporter, table};
pub use run::{EndedRun, Run, Stop, this_program};
pub use seen::Seen;
pub use setup::{Pace, Setup};
pub use sigterm::sigterm;

use std::time::Duration;

/// A rank that was disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Which.
    pub member: u64,
    /// Its process then.
    pub pid: u32,
}

/// One thing that was done to a run, and what it cost.
#[derive(Clone, Debug, Default)]
pub struct InjectedFault {
    /// What was done, in words.
    pub what: String,
    /// At which moment of the run, in words.
    pub moment: &'static str,
    /// The newest step then.
    pub step: u64,
    /// Since the run was started.
    pub at: Duration,
    /// Who was disturbed, where it was ranks.
    pub victims: Vec<Victim>,
    /// From the fault to the news of it.
    pub news: Option<Duration>,
    /// From the fault to the first step after the news; none when the run ended first.
    pub recovery: Option<Duration>,
    /// From the end of the fault until all ranks took part again, where it is one that ends.
    pub returned: Option<Duration>,
    /// Processes of the ranks that were not disturbed.
    pub survivors: Vec<u32>,
    /// Survivors that did not live on, or were replaced.
    pub not_kept: Vec<u32>,
    /// What the run said about it.
    pub cause: String,
}

/// Something that dtrain promises, and whether it held.
#[derive(Clone, Debug)]
pub struct Promise {
    /// In words.
    pub what: &'static str,
    /// Whether it did.
    pub held: bool,
    /// The numbers.
    pub detail: String,
}

impl Promise {
    /// A promise with its numbers.
    #[must_use]
    pub fn new(what: &'static str, held: bool, detail: impl Into<String>) -> Self {
        Self { what, held, detail: detail.into() }
    }
}

/// A run that was disturbed, at its end.
#[derive(Debug)]
pub struct Disturbed {
    /// What was done to it.
    pub faults: Vec<InjectedFault>,
    /// Its last life.
    pub ended: EndedRun,
    /// Steps that were computed again, over all its lives.
    pub lost_steps: u64,
    /// What is promised for this kind of fault alone.
    pub promises: Vec<Promise>,
    /// Where its folder lies, if that is a file system of its own.
    pub disk: Option<SmallDisk>,
}

/// Numbers to choose moments and victims with. Nothing that is computed depends on them.
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    /// From a seed of the system.
    ///
    /// *Errors*: of the system call.
    pub fn new() -> Result<Self, crate::CliError> {
        crate::random::u64()
            .map(Self)
            .map_err(|error| crate::CliError::failed("cannot draw a random number").because(&error))
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The bound is the length of a short list: it fits.
        ((self.0 >> 33) % bound as u64) as usize
    }

    /// Some time, at most so long.
    pub fn time(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.below(1 << 20) as f64 / f64::from(1 << 20))
    }
}
