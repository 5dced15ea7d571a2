//! A file that is whole or not there: it is written without a name and takes its own when it is finished. Whoever dies before leaves nothing.

use crate::error::CliError;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A file on its way. Dropped before it is finished, it leaves nothing.
#[derive(Debug)]
pub struct WholeFile {
    file: BufWriter<File>,
    /// The name that it has until it is finished, where the file system knows no files without one.
    temporary: Option<PathBuf>,
    path: PathBuf,
}

/// The name under which a file or folder is written before it takes its own, on the same disk.
///
/// *Errors*: a path that ends with no name.
pub fn name_beside(path: &Path) -> Result<PathBuf, CliError> {
    let name = path.file_name();
    let name =
        name.ok_or_else(|| CliError::usage(format!("{} is not the name of a file", path.display())))?;
    Ok(path.with_file_name(format!(".{}.tmp-{}", name.to_string_lossy(), std::process::id())))
}

/// The error about a path that cannot be written.
#[must_use]
pub fn unwritable(path: &Path, error: &(dyn std::error::Error + 'static)) -> CliError {
    CliError::failed(format!("cannot write {}", path.display())).because(error)
}

impl WholeFile {
    /// Begins a file.
    ///
    /// *Errors*: it cannot be written there.
    pub fn create(path: &Path) -> Result<Self, CliError> {
        let beside = name_beside(path)?;
        let (file, temporary) = match without_name(path) {
            Some(file) => (file, None),
            None => (File::create(&beside).map_err(|error| unwritable(path, &error))?, Some(beside)),
        };
        Ok(Self { file: BufWriter::new(file), temporary, path: path.to_owned() })
    }

    /// Adds bytes. *Errors*: the disk is full, or the like.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.file.write_all(bytes).map_err(|error| unwritable(&self.path, &error))
    }

    /// Writes over what was written first. *Errors*: as [`WholeFile::write`].
    pub fn overwrite_start(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let written = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| unwritable(&self.path, &error))
    }

    /// Gives it its name. *Errors*: as [`WholeFile::write`]; then there is no such file, or the one that was there before.
    pub fn finish(mut self) -> Result<(), CliError> {
        self.try_finish().map_err(|error| unwritable(&self.path, &error))
    }

    fn try_finish(&mut self) -> io::Result<()> {
        self.file.flush()?;
        let file = self.file.get_ref();
        file.sync_all()?;
        let named = match self.temporary.take() {
            Some(named) => named,
            None => {
                // A file gets a new name alone, and only one that has a name takes that of another.
                let named = name_beside(&self.path).map_err(|error| io::Error::other(error.to_string()))?;
                let _ = fs::remove_file(&named);
                let open = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::fs::linkat(CWD, &open, CWD, &named, AtFlags::SYMLINK_FOLLOW)?;
                named
            }
        };
        fs::rename(&named, &self.path).inspect_err(|_| {
            let _ = fs::remove_file(&named);
        })
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // What cannot be removed is named like nothing that anybody looks for.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// A file without a name on the disk of this path, if its file system knows such.
fn without_name(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666)).ok().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names in a folder.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_file_is_there_when_it_is_finished_with_or_without_a_name_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let named = |path: &Path| {
            let temporary = name_beside(path).unwrap();
            let file = BufWriter::new(File::create(&temporary).unwrap());
            WholeFile { file, temporary: Some(temporary), path: path.to_owned() }
        };
        for (turn, is_named) in [false, true, false].into_iter().enumerate() {
            let begin = || if is_named { named(&path) } else { WholeFile::create(&path).unwrap() };
            let mut dropped = begin();
            dropped.write(b"nothing").unwrap();
            drop(dropped);
            let mut file = begin();
            file.write(b"0 and more").unwrap();
            file.overwrite_start(turn.to_string().as_bytes()).unwrap();
            assert_eq!(names(folder.path()).contains(&"a".to_owned()), turn > 0);
            file.finish().unwrap();
            assert_eq!(fs::read(&path).unwrap(), format!("{turn} and more").as_bytes());
            assert_eq!(names(folder.path()), ["a"]);
        }
        // A folder in its place stays, and nothing else.
        let taken = folder.path().join("b");
        fs::create_dir(&taken).unwrap();
        assert!(WholeFile::create(&taken).unwrap().finish().is_err());
        assert_eq!(names(folder.path()).len(), 2);
        assert!(WholeFile::create(&folder.path().join("none/c")).is_err());
    }
}
