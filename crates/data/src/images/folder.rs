//! Which files there are, and of which class: by the names of folders. The order is that of names, whatever the file system says.

use crate::DataError;
use std::fs;
use std::path::{Path, PathBuf};

/// What this kind of data is made of.
pub(crate) const NEEDS: &str =
    "kind images needs a folder with one for each class, and in each its images (.jpg, .png, .webp)";

/// Names that a folder of validation has beside one called `train`.
const VALIDATION: [&str; 3] = ["val", "valid", "validation"];

/// The folders for training and for validation.
pub(super) fn parts(path: &Path, val: Option<&Path>) -> (PathBuf, Option<PathBuf>) {
    let train = path.join("train");
    if !train.is_dir() {
        return (path.to_owned(), val.map(Path::to_owned));
    }
    let beside = VALIDATION.iter().map(|name| path.join(name)).find(|folder| folder.is_dir());
    (train, val.map(Path::to_owned).or(beside))
}

/// The names of the classes: those of the folders, in their order.
///
/// *Errors*: there are none, or the folder cannot be read.
pub(super) fn classes(folder: &Path) -> Result<Vec<String>, DataError> {
    let folders: Vec<PathBuf> = entries(folder)?.into_iter().filter(|path| path.is_dir()).collect();
    match folders.is_empty() {
        true => Err(DataError::NoClassFolders { folder: folder.to_owned() }),
        false => Ok(folders.iter().map(|path| name(path)).collect()),
    }
}

/// All images below the folders of the classes, each with its class.
///
/// *Errors*: a folder that is no class; a class without an image where there are others; what cannot be read.
pub(super) fn labelled(folder: &Path, classes: &[String]) -> Result<(Vec<PathBuf>, Vec<u32>), DataError> {
    let (mut files, mut targets) = (Vec::new(), Vec::new());
    let folders: Vec<PathBuf> = entries(folder)?.into_iter().filter(|path| path.is_dir()).collect();
    if folders.is_empty() {
        return Err(DataError::NoClassFolders { folder: folder.to_owned() });
    }
    for path in folders {
        let own = name(&path);
        let class = classes.iter().position(|class| *class == own);
        let class = class.ok_or_else(|| DataError::UnknownClassFolder { folder: path.clone() })?;
        let before = files.len();
        files.extend(all(&path)?);
        if files.len() == before {
            return Err(DataError::NoImages { folder: path });
        }
        targets.resize(files.len(), class as u32);
    }
    Ok((files, targets))
}

/// All images of a folder and of the folders in it.
pub(super) fn all(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for path in entries(folder)? {
        if path.is_dir() {
            files.extend(all(&path)?);
        } else if is_image(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Whether the name is that of an image.
pub(super) fn is_image(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    matches!(&*ending, "jpg" | "jpeg" | "png" | "webp")
}

/// What lies in a folder, hidden files left out, in the order of names.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let listed = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()
    });
    let mut listed = listed.map_err(|error| DataError::io(folder, NEEDS, error))?;
    listed.retain(|path| !name(path).starts_with('.'));
    listed.sort();
    Ok(listed)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
