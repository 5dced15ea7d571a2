//! Finds a library among candidates. It does not know where NVIDIA's packages lie: whoever does names the paths.

use crate::library::OpenError;
use crate::{NcclError, NcclLibrary};
use std::path::PathBuf;

/// Opens the first candidate that is a library of use.
///
/// *Errors*: [`NcclError::NotFound`] with each candidate and what was wrong with it; [`NcclError::Missing`] if one was
/// there but too old, and no other was right.
pub fn open(candidates: &[PathBuf]) -> Result<NcclLibrary, NcclError> {
    let (mut tried, mut too_old) = (Vec::new(), None);
    for path in candidates {
        match NcclLibrary::open(path) {
            Ok(library) => return Ok(library),
            Err(OpenError::NotOpened(why)) => tried.push((path.clone(), why)),
            Err(OpenError::TooOld(error)) => {
                too_old.get_or_insert(error);
            }
        }
    }
    Err(too_old.unwrap_or(NcclError::NotFound { tried }))
}
