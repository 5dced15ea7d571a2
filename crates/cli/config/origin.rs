//! Where a value was written: a place in a file, an argument, or nowhere.

use std::path::PathBuf;
use std::sync::Arc;

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where it was read from, as the user named it.
    pub path: PathBuf,
    /// All of its text.
    pub text: String,
}

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody wrote it: the default of the key.
    Default,
    /// A place in a file.
    File {
        /// The file.
        source: Arc<Source>,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// A `key=value` argument, as typed.
    Argument(Arc<str>),
}
