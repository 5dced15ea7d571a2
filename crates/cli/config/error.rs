//! What is wrong with a configuration: one problem or several, each with its key, its place and a hint.
//!
//! It only carries facts and renders them as text; it does not know colours, terminals or exit codes.

use super::origin::Origin;
use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The dotted key, where one is at fault.
    pub key: Option<String>,
    /// What was expected and what was found.
    pub message: String,
    /// Where it was written.
    pub origin: Origin,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Problem {
    /// A problem with nothing but its message.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { key: None, message: message.into(), origin: Origin::Default, hint: None }
    }

    /// Names the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Names the place.
    #[must_use]
    pub fn at(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File { source, line, column } => {
                write!(f, "{}:{line}:{column}: ", source.path.display())?;
            }
            Origin::Argument(text) => write!(f, "argument `{text}`: ")?,
            Origin::Default => {}
        }
        match &self.key {
            Some(key) => write!(f, "{key}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// All that is wrong with a configuration; at least one problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError {
    /// In the order in which they were found.
    pub problems: Vec<Problem>,
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

impl ConfigError {
    /// `Ok` when nothing was found.
    ///
    /// *Errors*: the problems, if there is one.
    pub fn check(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }

    /// The same problems, said to stand at `origin`.
    #[must_use]
    pub fn moved_to(mut self, origin: &Origin) -> Self {
        for problem in &mut self.problems {
            problem.origin = origin.clone();
        }
        self
    }

    /// The hints, each once.
    #[must_use]
    pub fn hints(&self) -> Vec<&str> {
        let mut hints: Vec<&str> = Vec::new();
        for hint in self.problems.iter().filter_map(|problem| problem.hint.as_deref()) {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
        hints
    }
}
