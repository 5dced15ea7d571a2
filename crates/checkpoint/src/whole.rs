//! A file that appears whole or not at all: it is written beside its place, synced, and renamed.
//!
//! It does not know what is in it.

use crate::{Disk, RealDisk, StoreError};
use std::io;
use std::path::{Path, PathBuf};

/// Has `write` write a file beside `out`, durably, and puts it there.
///
/// *Blocks* on the disk. *Errors*: those of `write`, or of the disk; an existing `out` is then untouched.
pub(crate) fn write_whole<T>(
    out: &Path,
    write: impl FnOnce(&Path) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let name = out.file_name().ok_or_else(|| {
        StoreError::io("write", out, io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))
    })?;
    let folder = match out.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let temporary = folder.join(format!(".{}.tmp-{}", name.to_string_lossy(), std::process::id()));
    let written = write(&temporary).and_then(|written| {
        RealDisk.rename(&temporary, out).map_err(|error| StoreError::io("write", out, error))?;
        RealDisk.sync_dir(&folder).map_err(|error| StoreError::io("sync", &folder, error))?;
        Ok(written)
    });
    if written.is_err() {
        // The first error is the one to report; a leftover that cannot be removed changes nothing about it.
        let _ = RealDisk.remove_file(&temporary);
    }
    written
}
