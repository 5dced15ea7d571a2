//! Who works in a run folder, asked by somebody who does not want to: nothing is locked for the question.

use crate::lock::{Holder, LOCK, read_holder};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The process of this host that holds the lock on a run folder. The kernel's list of locks says whether somebody does, and the file
/// who it is. None where another host holds it, or nobody.
#[must_use]
pub fn held_by(run: &Path) -> Option<Holder> {
    let file = File::open(run.join(LOCK)).ok()?;
    let data = file.metadata().ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let holder = read_holder(&file).ok().flatten()?;
    let (major, minor) = (rustix::fs::major(data.dev()), rustix::fs::minor(data.dev()));
    // File systems in layers tell a device of their own: there the process has to be the one that the file names.
    let (device, pid) = (format!("{major:02x}:{minor:02x}"), holder.pid.to_string());
    let holds = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, owner, place, ..] = words.as_slice() else { return false };
        let Some((on, inode)) = place.rsplit_once(':') else { return false };
        inode == data.ino().to_string() && (on == device || *owner == pid)
    };
    locks.lines().any(holds).then_some(holder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunLock;
    use dtrain_types::Instance;

    #[test]
    fn who_holds_a_folder_is_known_without_a_lock_of_ones_own() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(held_by(run.path()), None);
        let lock = RunLock::acquire(run.path(), Instance(7)).unwrap();
        assert_eq!(held_by(run.path()), Some(lock.holder()));
        drop(lock);
        assert_eq!(held_by(run.path()), None, "the file still names who held it");
    }
}
