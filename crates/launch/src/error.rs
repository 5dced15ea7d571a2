//! Why a launch came to no good end, for whoever tells people.

use std::io;

/// Whose turn it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The program failed, or the system refused something.
    Failed,
    /// The user has to change the command.
    Usage,
    /// Somebody stopped it.
    Interrupted,
}

/// What went wrong, why, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct LaunchError {
    /// Of which kind.
    pub wrong: Wrong,
    /// What; lower case, no full stop.
    pub message: String,
    /// Why, if there is more to say.
    pub cause: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl LaunchError {
    pub(crate) fn new(wrong: Wrong, message: impl Into<String>) -> Self {
        Self { wrong, message: message.into(), cause: None, hint: None }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Wrong::Failed, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Wrong::Usage, message)
    }

    pub(crate) fn because(self, error: &io::Error) -> Self {
        self.cause(error.to_string())
    }

    pub(crate) fn cause(self, cause: String) -> Self {
        Self { cause: Some(cause), ..self }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}
