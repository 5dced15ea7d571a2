//! The file in the folder of a run that says which hosts were let in. Whoever takes over waits for them to call, also where the run began without
//! them: they may hold what nobody else has.

use crate::folder_note::FolderNote;
use crate::outlives::Outlives;
use dtrain_types::NodeId;
use std::collections::BTreeSet;
use std::path::Path;

const NOTE: FolderNote = FolderNote(".hosts");

/// Which hosts were let in, by this life of the supervisor and those before it.
#[must_use]
pub(crate) fn read_hosts(run_dir: &Path) -> BTreeSet<NodeId> {
    let numbers = |text: String| text.split_whitespace().map(|word| word.parse().map(NodeId).ok()).collect();
    NOTE.read(run_dir).and_then(numbers).unwrap_or_default()
}

/// Writes down one more, before it hears a word. A disk that takes nothing keeps nobody out: then whoever takes over does not wait for this host.
///
/// *Blocks* on the disk.
pub(crate) fn note_host(run_dir: &Path, node: NodeId) {
    let mut hosts = read_hosts(run_dir);
    if hosts.insert(node) {
        let words: Vec<String> = hosts.iter().map(|node| node.0.to_string()).collect();
        if let Err(error) = NOTE.write(run_dir, &(words.join(" ") + "\n"), Outlives::Power) {
            tracing::warn!(%node, %error, "that a host was let in cannot be written down");
        }
    }
}

/// The run is over, or begins.
pub fn forget_hosts(run_dir: &Path) {
    NOTE.forget(run_dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_added_once_each_and_what_is_no_list_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_hosts(folder.path()), BTreeSet::new());
        for node in [0, 11, 2, 11, 0] {
            note_host(folder.path(), NodeId(node));
        }
        assert_eq!(NOTE.read(folder.path()).as_deref(), Some("0 2 11\n"));
        assert_eq!(read_hosts(folder.path()), [0, 2, 11].map(NodeId).into());
        std::fs::write(NOTE.path(folder.path()), "0 two").unwrap();
        assert_eq!(read_hosts(folder.path()), BTreeSet::new());
        forget_hosts(folder.path());
        assert!(!NOTE.path(folder.path()).exists());
    }
}
