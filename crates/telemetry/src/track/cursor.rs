//! How far a tracker is, in `RUN/track/NAME.json`, and the lock that lets one process at a time go on from there.

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// How a run has ended, as trackers know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndStatus {
    /// It came to its end.
    Finished,
    /// It failed.
    Failed,
    /// Somebody stopped it.
    Stopped,
}

/// What is remembered of a tracker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cursor {
    /// Bytes of `metrics.jsonl` that it has taken: whole lines.
    pub offset: u64,
    /// Rows of them.
    pub rows: u64,
    /// The name that the tracker gave the run, once it knows it.
    pub run_id: String,
    /// Where that is: the address of a server, or a project.
    pub place: String,
    /// The experiment of MLflow.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub experiment_id: String,
    /// Whether it has the configuration.
    pub is_described: bool,
    /// How the run ended, where the tracker has not been told yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_with: Option<EndStatus>,
}

/// Why a cursor cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum CursorError {
    /// Another process sends.
    #[error("another process sends what {} has", run.display())]
    Held {
        /// The run folder.
        run: PathBuf,
    },
    /// The system refused.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// The cursor of a tracker in a run folder, and ours.
#[derive(Debug)]
pub struct CursorFile {
    path: PathBuf,
    /// Held for as long as it lives.
    _lock: File,
}

impl CursorFile {
    /// Opens it, and reads how far the tracker is.
    ///
    /// *Errors*: see [`CursorError`]; one that cannot be read.
    pub fn open(run: &Path, tracker: &str) -> Result<(Self, Cursor), CursorError> {
        let folder = run.join("track");
        let path = folder.join(format!("{tracker}.json"));
        let fail = |source: io::Error| CursorError::Io { path: path.clone(), source };
        fs::create_dir_all(&folder).map_err(fail)?;
        let lock = folder.join(format!("{tracker}.lock"));
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(lock).map_err(fail)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(CursorError::Held { run: run.to_owned() }),
            Err(error) => return Err(fail(error.into())),
        }
        let cursor = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| fail(error.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Cursor::default(),
            Err(error) => return Err(fail(error)),
        };
        Ok((Self { path, _lock: lock }, cursor))
    }

    /// Writes it, whole or not at all, also where the power is cut.
    ///
    /// *Errors*: of the system.
    pub fn save(&self, cursor: &Cursor) -> io::Result<()> {
        let temporary = self.path.with_extension("tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(cursor)?)?;
        file.sync_data()?;
        fs::rename(&temporary, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_by_the_next_process_and_by_one_at_a_time() {
        let run = tempfile::tempdir().unwrap();
        let (file, cursor) = CursorFile::open(run.path(), "mlflow").unwrap();
        assert_eq!(cursor, Cursor::default());
        let cursor = Cursor { offset: 7, rows: 2, run_id: "abc".into(), ..cursor };
        file.save(&cursor).unwrap();
        assert!(matches!(CursorFile::open(run.path(), "mlflow"), Err(CursorError::Held { .. })));
        CursorFile::open(run.path(), "wandb").unwrap();
        drop(file);
        assert_eq!(CursorFile::open(run.path(), "mlflow").unwrap().1, cursor);
        fs::write(run.path().join("track/mlflow.json"), "{").unwrap();
        assert!(matches!(CursorFile::open(run.path(), "mlflow"), Err(CursorError::Io { .. })));
    }
}
