//! A file that is whole or not there: it is written under another name and takes its own when it is finished.

use crate::error::CliError;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file on its way. Dropped before it is finished, it leaves nothing.
#[derive(Debug)]
pub struct WholeFile {
    file: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    finished: bool,
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
        let temporary = name_beside(path)?;
        let file = File::create(&temporary).map_err(|error| unwritable(path, &error))?;
        Ok(Self { file: BufWriter::new(file), temporary, path: path.to_owned(), finished: false })
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
        let named = self.try_finish();
        self.finished = named.is_ok();
        named.map_err(|error| unwritable(&self.path, &error))
    }

    fn try_finish(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.path)
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed is named like nothing that anybody looks for.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
