//! The file in the folder of a run that says where its supervisor listens for other hosts, and on which of them it is.
//!
//! Hosts that see the folder find by it a supervisor that took the place of another one. Who leads is decided by the lock of the folder;
//! this is only where.

use dtrain_runtime::{FolderNote, Outlives};
use std::net::SocketAddr;
use std::path::Path;

const NOTE: FolderNote = FolderNote(".supervisor");

/// A supervisor that leads, or led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadingHost {
    /// The number of its host.
    pub host: u32,
    /// Where it listens.
    pub at: SocketAddr,
}

impl LeadingHost {
    /// The newest supervisor of this run, if it was one of several hosts.
    #[must_use]
    pub fn of(run_dir: &Path) -> Option<Self> {
        let text = NOTE.read(run_dir)?;
        let (host, at) = text.strip_suffix('\n')?.split_once(' ')?;
        Some(Self { host: host.parse().ok()?, at: at.parse().ok()? })
    }

    /// Says that it leads from now on. Whoever reads meanwhile reads the one before.
    ///
    /// *Errors*: of the system.
    pub fn write(&self, run_dir: &Path) -> std::io::Result<()> {
        NOTE.write(run_dir, &format!("{} {}\n", self.host, self.at), Outlives::Power)
    }
}

/// The run is over.
pub fn forget_leader(run_dir: &Path) {
    // What stays is the address of nobody.
    NOTE.forget(run_dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_read_as_it_was_written_and_half_a_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(LeadingHost::of(folder.path()), None);
        for at in ["10.0.0.7:29400", "[fd00::1]:80"] {
            let leader = LeadingHost { host: 3, at: at.parse().unwrap() };
            leader.write(folder.path()).unwrap();
            assert_eq!(LeadingHost::of(folder.path()), Some(leader));
        }
        std::fs::write(NOTE.path(folder.path()), "3 10.0.0.7:29").unwrap();
        assert_eq!(LeadingHost::of(folder.path()), None, "its end is missing");
    }
}
