//! What was looked at and what was found: one line of the report.

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

    pub(super) fn new(name: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { name, verdict, found: found.into(), hint: None, details: json!({}) }
    }

    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Ok, found)
    }

    pub(super) fn warn(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Warn, found)
    }

    pub(super) fn missing(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Missing, found)
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
}

/// What `work` gives, if it does so in time. The thread of one that hangs ends with the process.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || drop(sender.send(work())));
    receiver.recv_timeout(limit).ok()
}
