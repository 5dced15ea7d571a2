//! What people see of a run, on standard error. Programs read `--json` instead, which the runtime writes.
//!
//! On a terminal there is a progress bar; elsewhere plain lines, one an epoch and one every few seconds. Nothing here
//! decides anything, and nothing else in dtrain prints while a run goes on.

mod banner;
mod human;
mod numbers;
mod profile;
mod summary;

pub use banner::banner;
pub use human::Human;
pub use numbers::{bytes, grouped, loss, percent};
pub use profile::profile;
pub use summary::{end, fault_report};

use console::Term;

/// Who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// A person at a terminal: colours, a progress bar.
    Terminal,
    /// A log: plain lines.
    Log,
    /// Nobody: errors only.
    Quiet,
}

impl Voice {
    /// The voice for this process's standard error.
    #[must_use]
    pub fn new(quiet: bool) -> Self {
        match (quiet, Term::stderr().is_term()) {
            (true, _) => Self::Quiet,
            (false, true) => Self::Terminal,
            (false, false) => Self::Log,
        }
    }

    /// Says one line, or several, unless nobody listens.
    pub fn say(self, text: &str) {
        if self != Self::Quiet {
            // A reader that went away is no reason to stop a run.
            let _ = Term::stderr().write_line(text.trim_end());
        }
    }
}
