//! What people see of a run: what happens goes to standard error, what it came to to standard output. Programs read `--json`
//! instead, which the runtime writes; standard output is theirs then, and the result goes to standard error too.
//!
//! On a terminal there is a progress bar; elsewhere plain lines, one an epoch and one every few seconds. Nothing here
//! decides anything, and nothing else in dtrain prints while a run goes on.

mod banner;
mod human;
mod numbers;
mod profile;
mod summary;
mod time;

pub use banner::{banner, held_out_groups, notes_of_cuts, notes_of_examples};
pub use human::Human;
pub use numbers::{amount, bytes, duration, grouped, loss, measure, percent};
pub use profile::profile;
pub use summary::{end, fault_report};
pub use time::{age, utc};

use crate::arguments::Output;
use console::{Term, style};

/// Where a text goes; colours depend on whether that is a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

impl Stream {
    /// Text that stands out, where the stream shows colours.
    #[must_use]
    pub fn bold(self, text: &str) -> String {
        let styled = match self {
            Self::Output => style(text).for_stdout(),
            Self::Error => style(text).for_stderr(),
        };
        styled.bold().to_string()
    }
}

/// Who reads standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Somebody at a terminal: lines in words.
    Person,
    /// What asked for JSON: one object a line.
    Program,
}

impl Reader {
    /// Who reads what a command line asks for.
    #[must_use]
    pub fn of(output: Output) -> Self {
        if output.json { Self::Program } else { Self::Person }
    }
}

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
    /// The voice that a command line asks for.
    #[must_use]
    pub fn of(output: Output) -> Self {
        if output.quiet { Self::Quiet } else { Self::here() }
    }

    /// The voice for this process's standard error.
    #[must_use]
    pub fn here() -> Self {
        if Term::stderr().is_term() { Self::Terminal } else { Self::Log }
    }

    /// Shows the result of a run unless nobody listens: on standard output, or on standard error where programs read that.
    pub fn show(self, reader: Reader, result: impl Fn(Stream) -> String) {
        if self == Self::Quiet {
            return;
        }
        let written = match reader {
            Reader::Program => false,
            Reader::Person => Term::stdout().write_line(result(Stream::Output).trim_end()).is_ok(),
        };
        // A reader of standard output that went away, or a full disk, does not undo the run.
        if !written {
            self.say(&result(Stream::Error));
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
