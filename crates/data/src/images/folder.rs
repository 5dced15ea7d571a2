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
pub(crate) fn parts(path: &Path, val: Option<&Path>) -> (PathBuf, Option<PathBuf>) {
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
pub(crate) fn classes(folder: &Path, needs: &'static str) -> Result<Vec<String>, DataError> {
    let folders: Vec<PathBuf> = entries(folder, needs)?.into_iter().filter(|path| path.is_dir()).collect();
    match folders.is_empty() {
        true => Err(DataError::NoClassFolders { folder: folder.to_owned() }),
        false => Ok(folders.iter().map(|path| name(path)).collect()),
    }
}

/// The folders of the classes, each with its class.
///
/// *Errors*: there are none; a folder that is no class; what cannot be read.
pub(crate) fn class_folders(
    folder: &Path,
    classes: &[String],
    needs: &'static str,
) -> Result<Vec<(PathBuf, u32)>, DataError> {
    let folders: Vec<PathBuf> = entries(folder, needs)?.into_iter().filter(|path| path.is_dir()).collect();
    if folders.is_empty() {
        return Err(DataError::NoClassFolders { folder: folder.to_owned() });
    }
    let class = |path: PathBuf| match classes.iter().position(|class| *class == name(&path)) {
        Some(class) => Ok((path, class as u32)),
        None => Err(DataError::UnknownClassFolder { folder: path }),
    };
    folders.into_iter().map(class).collect()
}

/// All images below the folders of the classes, each with its class.
///
/// *Errors*: a folder that is no class; a class without an image where there are others; what cannot be read.
pub(crate) fn labelled(folder: &Path, classes: &[String]) -> Result<(Vec<PathBuf>, Vec<u32>), DataError> {
    let (mut files, mut targets) = (Vec::new(), Vec::new());
    for (path, class) in class_folders(folder, classes, NEEDS)? {
        let before = files.len();
        add(&path, &mut files)?;
        if files.len() == before {
            return Err(DataError::NoImages { folder: path });
        }
        targets.resize(files.len(), class);
    }
    Ok((files, targets))
}

/// The image that a path is, or all of a folder and of the folders in it; nothing if it is another file.
///
/// *Errors*: a folder without images, or that cannot be read.
pub(crate) fn all(path: &Path) -> Result<Option<Vec<PathBuf>>, DataError> {
    if !path.is_dir() {
        return Ok(is_image(path).then(|| vec![path.to_owned()]));
    }
    let mut files = Vec::new();
    add(path, &mut files)?;
    match files.is_empty() {
        true => Err(DataError::NoImages { folder: path.to_owned() }),
        false => Ok(Some(files)),
    }
}

fn add(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    for path in entries(folder, NEEDS)? {
        if path.is_dir() {
            add(&path, files)?;
        } else if is_image(&path) {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether the name is that of an image.
pub(crate) fn is_image(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    matches!(&*ending, "jpg" | "jpeg" | "png" | "webp")
}

/// What lies in a folder, hidden files left out, in the order of names.
pub(crate) fn entries(folder: &Path, needs: &'static str) -> Result<Vec<PathBuf>, DataError> {
    let listed = fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()
    });
    let mut listed = listed.map_err(|error| DataError::io(folder, needs, error))?;
    listed.retain(|path| !name(path).starts_with('.'));
    listed.sort();
    Ok(listed)
}

/// The last part of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
