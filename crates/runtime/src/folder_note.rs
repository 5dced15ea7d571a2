//! A small file in the folder of a run that one life of a supervisor leaves for the next: it is there as a whole, or not at all.
//!
//! What it says is its owner's.

use crate::outlives::Outlives;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A note of this name.
#[derive(Clone, Copy, Debug)]
pub struct FolderNote(pub &'static str);

impl FolderNote {
    /// Writes it. Whoever reads meanwhile reads the one before.
    ///
    /// *Errors*: of the system; then nothing lies beside it. *Blocks* on the disk.
    pub fn write(self, run_dir: &Path, text: &str, outlives: Outlives) -> io::Result<()> {
        let fresh = run_dir.join(format!("{}.{}", self.0, std::process::id()));
        let write = || {
            let mut file = File::create(&fresh)?;
            file.write_all(text.as_bytes())?;
            if outlives == Outlives::Power {
                file.sync_all()?;
            }
            std::fs::rename(&fresh, self.path(run_dir))
        };
        write().inspect_err(|_| drop(std::fs::remove_file(&fresh)))?;
        if outlives == Outlives::Power { File::open(run_dir)?.sync_all() } else { Ok(()) }
    }

    /// What it says, if it is there and can be read.
    #[must_use]
    pub fn read(self, run_dir: &Path) -> Option<String> {
        std::fs::read_to_string(self.path(run_dir)).ok()
    }

    /// Takes it away.
    pub fn forget(self, run_dir: &Path) {
        // What stays is overwritten, or forgotten, by the next life.
        let _ = std::fs::remove_file(self.path(run_dir));
    }

    /// Where it is.
    #[must_use]
    pub fn path(self, run_dir: &Path) -> PathBuf {
        run_dir.join(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_whole_or_not_there_and_nothing_lies_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let note = FolderNote(".note");
        assert_eq!(note.read(folder.path()), None);
        for text in ["one", "another"] {
            let outlives = if text == "one" { Outlives::Process } else { Outlives::Power };
            note.write(folder.path(), text, outlives).unwrap();
            assert_eq!(note.read(folder.path()).as_deref(), Some(text));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        note.forget(folder.path());
        note.forget(folder.path());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        // What has its place cannot be replaced.
        std::fs::create_dir_all(note.path(folder.path()).join("inside")).unwrap();
        assert!(note.write(folder.path(), "one", Outlives::Power).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the draft is gone");
    }
}
