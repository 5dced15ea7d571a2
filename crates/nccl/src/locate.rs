//! Finds a library among candidates. It does not know where NVIDIA's packages lie: whoever does names the paths.

use crate::library::OpenError;
use crate::{Library, NcclError};
use std::path::{Path, PathBuf};

/// What is tried where nobody knows better: a path that the user named, and it alone; else the names that the loader of
/// the system may know.
#[must_use]
pub fn candidates(named: Option<&Path>) -> Vec<PathBuf> {
    match named {
        Some(path) => vec![path.to_owned()],
        None => ["libnccl.so.2", "librccl.so.1"].map(PathBuf::from).to_vec(),
    }
}

/// Opens the first candidate that is a library of use.
///
/// *Errors*: [`NcclError::NotFound`] with each candidate and what was wrong with it; [`NcclError::Missing`] if one was
/// there but too old, and no other was right.
pub fn open(candidates: &[PathBuf]) -> Result<Library, NcclError> {
    let (mut tried, mut too_old) = (Vec::new(), None);
    for path in candidates {
        match Library::open(path) {
            Ok(library) => return Ok(library),
            Err(OpenError::NotOpened(why)) => tried.push((path.clone(), why)),
            Err(OpenError::TooOld(error)) => {
                too_old.get_or_insert(error);
            }
        }
    }
    Err(too_old.unwrap_or(NcclError::NotFound { tried }))
}
