//! The file in the folder of a run that says what it ended with, from that moment until everybody has heard it.
//!
//! It is there for whoever takes over from a supervisor that dies meanwhile: the ranks that leave take the state with them.

use crate::folder_note::FolderNote;
use crate::outlives::Outlives;
use dtrain_protocol::Ending;
use std::io;
use std::path::Path;

const NOTE: FolderNote = FolderNote(".ending");

/// Writes down what the run ended with: all of it, or nothing.
///
/// *Errors*: of the system. *Blocks* on the disk.
pub(crate) fn write_ending(run_dir: &Path, ending: &Ending, outlives: Outlives) -> io::Result<()> {
    NOTE.write(run_dir, &(serde_json::to_string(ending)? + "\n"), outlives)
}

/// What the run has ended with, where its supervisor died before everybody had heard it.
pub(crate) fn read_ending(run_dir: &Path) -> Option<Ending> {
    serde_json::from_str(&NOTE.read(run_dir)?).ok()
}

/// Everybody has heard it, or the run goes on.
pub fn forget_ending(run_dir: &Path) {
    NOTE.forget(run_dir);
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
            write_ending(folder.path(), &ending, Outlives::Process).unwrap();
            assert_eq!(read_ending(folder.path()), Some(ending));
            let text = std::fs::read_to_string(NOTE.path(folder.path())).unwrap();
            std::fs::write(NOTE.path(folder.path()), &text[..text.len() / 2]).unwrap();
            assert_eq!(read_ending(folder.path()), None);
        }
        forget_ending(folder.path());
        assert_eq!(read_ending(folder.path()), None);
    }
}
