//! One supervisor per run folder.
//!
//! The lock is `flock` on `RUN/run.lock`: the kernel drops it when its holder dies, so a crash leaves nothing to
//! clean up. The file says who holds it, for people, and is read again before each manifest is renamed: on a shared
//! file system whose locks were lost, or after someone deleted the file, the older supervisor finds out before it
//! does harm.

use dtrain_types::Instance;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

pub(crate) const LOCK: &str = "run.lock";
/// For so long a lock may be held by somebody who only asks for it.
const ASKED: Duration = Duration::from_millis(300);

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The supervisor's life.
    pub instance: Instance,
    /// Its process.
    pub pid: u32,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} (instance {:016x})", self.pid, self.instance.0)
    }
}

/// Why a run folder cannot be had, or is no longer ours.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another supervisor works in the folder.
    #[error("{} is in use by {}", run.display(), holder.map_or("another process".to_owned(), |h| h.to_string()))]
    Held {
        /// The run folder.
        run: PathBuf,
        /// Who holds it, where the file says so.
        holder: Option<Holder>,
    },
    /// The lock file was replaced, emptied or removed under us.
    #[error("{} no longer belongs to {ours}: the lock {found}", run.display())]
    Lost {
        /// The run folder.
        run: PathBuf,
        /// Who we are.
        ours: Holder,
        /// What the lock file says now.
        found: String,
    },
    /// The system refused.
    #[error("cannot lock {}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Whoever may change a run folder.
pub trait Owner {
    /// Asks whether that is still so. *Errors*: it is not, or cannot be known.
    fn confirm(&self) -> Result<(), LockError>;
}

/// The lock on a run folder; dropping it lets go.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    run: PathBuf,
    ours: Holder,
}

impl RunLock {
    /// Locks the run folder for this process. It does not wait.
    ///
    /// *Errors*: [`LockError::Held`] with the holder's process if another has it.
    pub fn acquire(run: &Path, instance: Instance) -> Result<Self, LockError> {
        let path = run.join(LOCK);
        let fail = |source: io::Error| LockError::Io { path: path.clone(), source };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(fail)?;
        // Whoever only asks whether it is free holds it for an instant.
        let begun = Instant::now();
        let taken = loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < ASKED => {
                    std::thread::sleep(ASKED / 100)
                }
                taken => break taken,
            }
        };
        match taken {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let holder = read_holder(&file).ok().flatten();
                return Err(LockError::Held { run: run.to_owned(), holder });
            }
            Err(error) => return Err(fail(error.into())),
        }
        let ours = Holder { instance, pid: std::process::id() };
        let lock = Self { file, run: run.to_owned(), ours };
        lock.write_holder().map_err(fail)?;
        // Between our open and our flock another may have removed the file: then we hold a lock that nobody sees.
        lock.confirm()?;
        Ok(lock)
    }

    /// Whether nobody holds the lock of this folder, as far as this host can tell; false where it cannot be asked.
    #[must_use]
    pub fn is_free(run: &Path) -> bool {
        // A shared lock for a moment: whoever asks beside us is not told that it is held.
        File::open(run.join(LOCK))
            .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
    }

    /// Whether somebody holds the lock of this folder, as far as this host can tell; false where it cannot be asked.
    #[must_use]
    pub fn is_held(run: &Path) -> bool {
        let asked =
            File::open(run.join(LOCK)).map(|file| flock(&file, FlockOperation::NonBlockingLockShared));
        asked.is_ok_and(|asked| asked == Err(rustix::io::Errno::WOULDBLOCK))
    }

    /// Who we are.
    #[must_use]
    pub fn holder(&self) -> Holder {
        self.ours
    }

    fn write_holder(&self) -> io::Result<()> {
        let text = serde_json::to_string(&self.ours)? + "\n";
        self.file.set_len(0)?;
        (&self.file).write_all(text.as_bytes())?;
        self.file.sync_all()
    }
}

impl Owner for RunLock {
    fn confirm(&self) -> Result<(), LockError> {
        let path = self.run.join(LOCK);
        let lost = |found: String| LockError::Lost { run: self.run.clone(), ours: self.ours, found };
        let fail = |source: io::Error| LockError::Io { path: path.clone(), source };
        let named = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(lost("was removed".to_owned()));
            }
            named => named.map_err(fail)?,
        };
        let (theirs, mine) = (named.metadata().map_err(fail)?, self.file.metadata().map_err(fail)?);
        if (theirs.dev(), theirs.ino()) != (mine.dev(), mine.ino()) {
            return Err(lost("is another file".to_owned()));
        }
        match read_holder(&named).map_err(fail)? {
            Some(holder) if holder == self.ours => Ok(()),
            Some(holder) => Err(lost(format!("names {holder}"))),
            None => Err(lost("names nobody".to_owned())),
        }
    }
}

/// Reads who the lock file names; a hostile or torn one names nobody.
pub(crate) fn read_holder(file: &File) -> io::Result<Option<Holder>> {
    let mut bytes = [0; 256];
    let n = file.read_at(&mut bytes, 0)?;
    Ok(serde_json::from_slice(&bytes[..n]).ok())
}
