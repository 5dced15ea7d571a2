//! Read-only mappings of files, so that the ranks of a host share one copy in the page cache.
//!
//! It does not know what is in the file.

use std::fs::File;
use std::io;
use std::ops::Deref;

/// A file in memory, read-only.
#[derive(Debug)]
pub struct Mapping(memmap2::Mmap);

impl Mapping {
    /// Maps a whole regular file, which must stay as it is as long as this is there. *Errors*: of the system.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is read-only and is lent as bytes, for which every bit pattern is valid. What nobody
        // can rule out is another program that changes the file meanwhile: then samples change or, if it is cut off,
        // the process gets SIGBUS and dies. docs/design/ASSUMPTIONS.md states that data files stay as they are during a run.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Self(map))
    }
}

impl Deref for Mapping {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
