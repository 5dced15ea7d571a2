//! The file in the folder of a run that says what it ended with, from that moment until everybody has heard it.
//!
//! It is there for whoever takes over from a supervisor that dies meanwhile: the ranks that leave take the state with them.

use dtrain_protocol::Ending;
use std::io;
use std::path::{Path, PathBuf};

const FILE: &str = ".ending";

/// Writes down what the run ended with: all of it, or nothing.
///
/// *Errors*: of the system. *Blocks* on the disk.
pub(crate) fn write_ending(run_dir: &Path, ending: &Ending) -> io::Result<()> {
    let fresh = run_dir.join(format!("{FILE}.{}", std::process::id()));
    let text = serde_json::to_string(ending)?;
    let written = std::fs::write(&fresh, text + "\n").and_then(|()| std::fs::rename(&fresh, file(run_dir)));
    written.inspect_err(|_| drop(std::fs::remove_file(&fresh)))
}

/// What the run has ended with, where its supervisor died before everybody had heard it.
pub(crate) fn read_ending(run_dir: &Path) -> Option<Ending> {
    // Half a file is none: it is renamed into place as a whole.
    serde_json::from_str(&std::fs::read_to_string(file(run_dir)).ok()?).ok()
}

/// Everybody has heard it, or the run goes on.
pub fn forget_ending(run_dir: &Path) {
    // What stays is forgotten by the next life that begins.
    let _ = std::fs::remove_file(file(run_dir));
}

fn file(run_dir: &Path) -> PathBuf {
    run_dir.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::Digest;
    use dtrain_types::{Bytes, CheckpointId, Generation, Step};

    #[test]
    fn an_ending_is_read_as_it_was_written_and_half_a_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_ending(folder.path()), None);
        let id = CheckpointId { generation: Generation(3), step: Step(20) };
        for (checkpoint, device_peak) in [(None, None), (Some(id), Some(Bytes(1 << 40)))] {
            let (digest, state_digest) = (Digest([1; 32]), Digest([2; 32]));
            let ending = Ending { step: Step(30), digest, state_digest, checkpoint, device_peak };
            write_ending(folder.path(), &ending).unwrap();
            assert_eq!(read_ending(folder.path()), Some(ending));
            let text = std::fs::read_to_string(file(folder.path())).unwrap();
            std::fs::write(file(folder.path()), &text[..text.len() / 2]).unwrap();
            assert_eq!(read_ending(folder.path()), None);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing lies beside it");
        forget_ending(folder.path());
        assert_eq!(read_ending(folder.path()), None);
    }
}
