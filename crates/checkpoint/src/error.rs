//! Why a checkpoint could not be written, or none could be read.

use crate::{Damage, LockError, ManifestError};
use dtrain_types::CheckpointId;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a checkpoint could not be written, listed or removed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The disk is full.
    #[error("the disk is full: {}", path.display())]
    Full {
        /// What was being written.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A checkpoint of this name exists; a name is used once.
    #[error("checkpoint {0} exists already")]
    Exists(CheckpointId),
    /// There is no checkpoint of this name.
    #[error("there is no checkpoint {0}")]
    NoSuch(CheckpointId),
    /// The manifest to be committed contradicts itself.
    #[error("the manifest of {id} is refused: {source}")]
    Manifest {
        /// The checkpoint.
        id: CheckpointId,
        /// The contradiction.
        source: ManifestError,
    },
    /// The files that lie there are not those of the manifest.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A file lies in the folder that the manifest does not name.
    #[error("checkpoint {id} not committed: {file} is not in its manifest")]
    Stray {
        /// The checkpoint.
        id: CheckpointId,
        /// The file.
        file: String,
    },
    /// This process no longer owns the run.
    #[error(transparent)]
    NotOwner(#[from] LockError),
}

impl StoreError {
    /// Tells a full disk from any other failure, because a person can do something about it.
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path: path.to_owned() },
            _ => Self::Io { doing, path: path.to_owned(), source },
        }
    }
}
