//! The few file operations that a checkpoint is made of, as a seam.
//!
//! Durability is a promise of the disk, and promises are tested on a disk that breaks them: see [`crate::fault`].
//! This file does not know in which order the operations must come.

use rustix::fs::OFlags;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A file being written.
pub trait DiskWrite: Write + Send {
    /// Waits until all that was written is on the disk.
    ///
    /// *Errors*: after an error nothing is known of the file's content, and a second call that succeeds proves
    /// nothing; the file must be given up.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file being read.
pub trait DiskRead: Read + Seek + Send {}

impl<T: Read + Seek + Send> DiskRead for T {}

/// File operations. Names inside a directory become durable by [`Disk::sync_dir`] of that directory only.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a directory with its parents; one that exists is fine.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes a new file. *Errors*: if it exists.
    fn create(&self, file: &Path) -> io::Result<Box<dyn DiskWrite>>;
    /// Opens a plain file and gives its size. *Errors*: `InvalidInput` for a link, a pipe or a directory.
    fn open(&self, file: &Path) -> io::Result<(Box<dyn DiskRead>, u64)>;
    /// The names in a directory, sorted.
    fn names(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Waits until the names in a directory are on the disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Renames inside one directory. A file or a link replaces another; a directory replaces none that has entries.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file or a link.
    fn remove_file(&self, file: &Path) -> io::Result<()>;
    /// Removes a directory with all that is in it.
    fn remove_tree(&self, dir: &Path) -> io::Result<()>;
    /// Makes a symbolic link at `at` that says `target`.
    fn link(&self, target: &str, at: &Path) -> io::Result<()>;
    /// What the symbolic link at `at` says.
    fn read_link(&self, at: &Path) -> io::Result<String>;
}

/// The disk of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl DiskWrite for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn DiskWrite>> {
        Ok(Box::new(OpenOptions::new().write(true).create_new(true).open(file)?))
    }

    fn open(&self, file: &Path) -> io::Result<(Box<dyn DiskRead>, u64)> {
        // NOFOLLOW: a link could lead out of the folder. NONBLOCK: opening a pipe would wait for a writer for ever.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let opened = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(file);
        let not_a_file = || io::Error::new(io::ErrorKind::InvalidInput, "not a plain file");
        let opened = opened.map_err(|error| match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => not_a_file(),
            _ => error,
        })?;
        let metadata = opened.metadata()?;
        if !metadata.is_file() {
            return Err(not_a_file());
        }
        Ok((Box::new(opened), metadata.len()))
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, file: &Path) -> io::Result<()> {
        fs::remove_file(file)
    }

    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir_all(dir)
    }

    fn link(&self, target: &str, at: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, at)
    }

    fn read_link(&self, at: &Path) -> io::Result<String> {
        Ok(fs::read_link(at)?.to_string_lossy().into_owned())
    }
}
