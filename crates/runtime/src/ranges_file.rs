//! The file in the folder of a run that says who computes which micro-batches in the newest generations.
//!
//! It is there for whoever takes over: ranks tell it of steps that nobody has written down, and the ledger says of each who computed what.

use crate::folder_note::FolderNote;
use crate::outlives::Outlives;
use dtrain_types::{Generation, MicroRange};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

const NOTE: FolderNote = FolderNote(".ranges");

/// Ranges by rank, of each generation.
pub(crate) type Ranges = BTreeMap<Generation, Vec<MicroRange>>;

/// The file, and what it says.
pub(crate) struct RangesFile {
    run_dir: PathBuf,
    outlives: Outlives,
    ranges: Ranges,
    /// Whether the disk has not taken all of it.
    is_behind: bool,
}

impl RangesFile {
    /// One that says what the life before has written down.
    pub(crate) fn new(run_dir: &Path, outlives: Outlives, ranges: Ranges) -> Self {
        Self { run_dir: run_dir.to_owned(), outlives, ranges, is_behind: false }
    }

    /// Writes down a generation. Those before `needed` may be forgotten: all their steps are in the ledger.
    ///
    /// *Errors*: of the system; then it is known to this life alone. *Blocks* on the disk.
    pub(crate) fn add(
        &mut self,
        generation: Generation,
        ranges: Vec<MicroRange>,
        needed: Generation,
    ) -> io::Result<()> {
        self.ranges.retain(|generation, _| *generation >= needed);
        self.ranges.insert(generation, ranges);
        self.is_behind = true;
        self.catch_up()
    }

    /// Writes what the disk has not taken.
    ///
    /// *Errors*: it does not take it now. *Blocks* on the disk.
    pub(crate) fn catch_up(&mut self) -> io::Result<()> {
        if self.is_behind {
            let pairs = |(generation, ranges): (&Generation, &Vec<MicroRange>)| {
                (generation.0, ranges.iter().map(|range| (range.lo, range.hi)).collect())
            };
            let pairs: BTreeMap<u64, Vec<(u32, u32)>> = self.ranges.iter().map(pairs).collect();
            NOTE.write(&self.run_dir, &(serde_json::to_string(&pairs)? + "\n"), self.outlives)?;
            self.is_behind = false;
        }
        Ok(())
    }

    /// Who computes what in a generation, by rank; none where nobody knows any more.
    pub(crate) fn of(&self, generation: Generation) -> Option<&[MicroRange]> {
        self.ranges.get(&generation).map(Vec::as_slice)
    }
}

/// What the life before has written down.
pub(crate) fn read_ranges(run_dir: &Path) -> Ranges {
    let text = NOTE.read(run_dir).unwrap_or_default();
    let pairs: BTreeMap<u64, Vec<(u32, u32)>> = serde_json::from_str(&text).unwrap_or_default();
    let ranges = |pairs: Vec<(u32, u32)>| pairs.into_iter().map(|(lo, hi)| MicroRange { lo, hi }).collect();
    pairs.into_iter().map(|(generation, pairs)| (Generation(generation), ranges(pairs))).collect()
}

/// The run is over, or begins.
pub fn forget_ranges(run_dir: &Path) {
    NOTE.forget(run_dir);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(u32, u32)]) -> Vec<MicroRange> {
        pairs.iter().map(|(lo, hi)| MicroRange { lo: *lo, hi: *hi }).collect()
    }

    #[test]
    fn ranges_are_read_as_they_were_written_and_half_a_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_ranges(folder.path()), Ranges::new());
        for outlives in [Outlives::Process, Outlives::Power] {
            let mut file = RangesFile::new(folder.path(), outlives, read_ranges(folder.path()));
            file.add(Generation(3), ranges(&[(0, 2), (2, 4)]), Generation(0)).unwrap();
            file.add(Generation(11), ranges(&[(0, 4)]), Generation(3)).unwrap();
        }
        let text = NOTE.read(folder.path()).unwrap();
        assert_eq!(text, "{\"3\":[[0,2],[2,4]],\"11\":[[0,4]]}\n");
        let found = read_ranges(folder.path());
        assert_eq!(found[&Generation(3)], ranges(&[(0, 2), (2, 4)]));
        let mut file = RangesFile::new(folder.path(), Outlives::Process, found);
        assert_eq!(file.of(Generation(11)), Some(&ranges(&[(0, 4)])[..]));
        file.add(Generation(12), ranges(&[(0, 1)]), Generation(11)).unwrap();
        assert_eq!((file.of(Generation(3)), read_ranges(folder.path()).len()), (None, 2));
        std::fs::write(NOTE.path(folder.path()), &text[..text.len() / 2]).unwrap();
        assert_eq!(read_ranges(folder.path()), Ranges::new());
        forget_ranges(folder.path());
        assert!(!NOTE.path(folder.path()).exists());
    }

    #[test]
    fn what_the_disk_has_not_taken_is_written_later() {
        let folder = tempfile::tempdir().unwrap();
        // What has its place cannot be replaced.
        std::fs::create_dir_all(NOTE.path(folder.path()).join("inside")).unwrap();
        let mut file = RangesFile::new(folder.path(), Outlives::Process, Ranges::new());
        assert!(file.add(Generation(1), ranges(&[(0, 4)]), Generation(0)).is_err());
        assert!(file.catch_up().is_err());
        std::fs::remove_dir_all(NOTE.path(folder.path())).unwrap();
        file.catch_up().unwrap();
        assert_eq!(read_ranges(folder.path())[&Generation(1)], ranges(&[(0, 4)]));
    }
}
