//! Files of ids on their way, what was written of texts, and what is said meanwhile.

use crate::error::CliError;
use crate::predict::{Unit, progress};
use crate::report::Voice;
use crate::whole_file::WholeFile;
use indicatif::ProgressBar;
use std::fs;
use std::path::{Path, PathBuf};

/// What was written of some texts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    pub texts: u64,
    pub bytes: u64,
    pub tokens: u64,
    /// Tokens of answers, where there are conversations.
    pub learnt: Option<u64>,
    /// Examples that were made of conversations.
    pub examples: u64,
    /// Conversations without an answer.
    pub unanswered: u64,
    /// Examples with an answer that is asked for otherwise.
    pub asked_otherwise: u64,
    /// Whether an answer has the token that ends a text.
    pub has_end: bool,
}

/// Files on their way: the ids, and the mask of examples.
pub struct IdFiles {
    pub ids: WholeFile,
    pub mask: Option<WholeFile>,
}

impl IdFiles {
    /// Gives them their names, the ids last.
    pub fn finish(self) -> Result<(), CliError> {
        self.mask.map_or(Ok(()), WholeFile::finish)?;
        self.ids.finish()
    }
}

/// A bar over the bytes of files, as far as their sizes are known.
pub fn bar(files: &[PathBuf], voice: Voice) -> ProgressBar {
    let sizes = files.iter().map(|file| fs::metadata(file).ok().filter(fs::Metadata::is_file));
    progress(voice, sizes.map(|about| about.map(|about| about.len())).sum(), Unit::Bytes)
}

/// Whether it is a pipe or the like.
pub fn is_read_once(file: &Path) -> bool {
    file == Path::new("-") || fs::metadata(file).is_ok_and(|about| !about.is_file())
}
