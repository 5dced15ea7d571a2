//! Why something cannot be written down or read.

use std::io;
use std::path::PathBuf;

/// Why a log, a metric or a reading failed.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A file or folder cannot be made or opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Writing failed: the disk is full, or the reader of a pipe is gone.
    #[error("cannot write {to}: {source}")]
    Write {
        /// The file or stream.
        to: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A record cannot be put into JSON.
    #[error("cannot put a record for {to} into JSON: {source}")]
    Encode {
        /// The file or stream.
        to: String,
        /// What the encoder says.
        source: serde_json::Error,
    },
    /// A reading of a process is not there: the process has ended, or the system does not give it.
    #[error("cannot read {what} of process {pid}: {source}")]
    Process {
        /// The reading.
        what: &'static str,
        /// The process.
        pid: u32,
        /// The system's reason.
        source: io::Error,
    },
}
