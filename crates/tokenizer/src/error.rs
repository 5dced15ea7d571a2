//! What can be wrong with a tokenizer.

use std::path::PathBuf;

/// Why a tokenizer cannot be had, or cannot do what it is asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is something else.
    #[error("{} is no tokenizer of Hugging Face: {problem}", file.display())]
    Other {
        /// The file.
        file: PathBuf,
        /// What is not understood.
        problem: String,
    },
    /// A text has no tokens, or tokens no text.
    #[error("the tokenizer fails: {0}")]
    Fails(String),
    /// The template of conversations is none, or does not take one.
    #[error("{0}")]
    Template(String),
}
