//! Which files are recordings: one, or those of a folder and of the folders in it, in the order of their paths.

use super::error::RecordingError;
use super::options::NEEDS;
use crate::DataError;
use crate::bytes::plain_name;
use std::fs;
use std::path::{Path, PathBuf};

/// The files that a path names.
///
/// *Errors*: a folder without recordings, a file of another kind, what cannot be read.
pub(super) fn all(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return match kind(path) {
            Some(Kind::Other(kind)) => Err(RecordingError::OtherKind { file: path.to_owned(), kind }.into()),
            _ => Ok(vec![path.to_owned()]),
        };
    }
    let mut files = Vec::new();
    add(path, &mut files)?;
    match files.is_empty() {
        true => Err(RecordingError::NoRecordings { folder: path.to_owned() }.into()),
        false => Ok(files),
    }
}

fn add(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let listed = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()
    });
    let mut listed = listed.map_err(|error| DataError::io(folder, NEEDS, error))?;
    listed.retain(|path| !path.file_name().unwrap_or_default().to_string_lossy().starts_with('.'));
    listed.sort();
    for path in listed {
        match kind(&path) {
            _ if path.is_dir() => add(&path, files)?,
            Some(Kind::Table) => files.push(path),
            Some(Kind::Other(kind)) => return Err(RecordingError::OtherKind { file: path, kind }.into()),
            None => {}
        }
    }
    Ok(())
}

enum Kind {
    Table,
    /// One that has recordings, and is not read.
    Other(&'static str),
}

fn kind(path: &Path) -> Option<Kind> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let name = plain_name(&name);
    match name.rsplit_once('.')?.1 {
        "csv" | "tsv" => Some(Kind::Table),
        "parquet" | "pq" => Some(Kind::Other("Parquet")),
        _ => None,
    }
}

/// The path of a file in its folder; of a file that is alone its name.
pub(super) fn relative(folder: &Path, file: &Path) -> String {
    let inside = file.strip_prefix(folder).ok().filter(|path| !path.as_os_str().is_empty());
    let name = inside.unwrap_or_else(|| Path::new(file.file_name().unwrap_or_default()));
    name.to_string_lossy().into_owned()
}

/// The folder of a file in the folder of all, as a group is called.
///
/// *Errors*: it lies in the folder of all.
pub(super) fn folder_of(folder: &Path, file: &Path) -> Result<String, DataError> {
    let parent = Path::new(&relative(folder, file)).parent().map(|path| path.to_string_lossy().into_owned());
    parent.filter(|name| !name.is_empty()).ok_or_else(|| {
        let wanted = "it lies in no folder of a group".to_owned();
        DataError::NoGroup { file: file.to_owned(), wanted }
    })
}
