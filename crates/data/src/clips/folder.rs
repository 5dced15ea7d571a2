//! Which clips there are, and of which class: by the names of folders, as images are.
//!
//! It does not look into them.

use super::ffmpeg::Ffmpeg;
use crate::DataError;
use crate::images::{class_folders, entries, is_image, name};
use std::path::{Path, PathBuf};

/// What this kind of data is made of.
pub(crate) const NEEDS: &str = "kind clips needs a folder with one for each class, and in each its clips: videos (.mp4, .mov, .mkv, .webm, .avi), folders of frames (.jpg, .png, .webp), or .npy arrays";

/// Endings of videos.
const VIDEOS: [&str; 10] = ["mp4", "avi", "mov", "mkv", "webm", "m4v", "mpg", "mpeg", "wmv", "flv"];

/// All clips below the folders of the classes, each with its class.
///
/// *Errors*: a folder that is no class; a class without a clip; a video without a program that decodes it; what cannot
/// be read.
pub(crate) fn labelled(folder: &Path, classes: &[String]) -> Result<(Vec<PathBuf>, Vec<u32>), DataError> {
    let (mut files, mut targets) = (Vec::new(), Vec::new());
    for (path, class) in class_folders(folder, classes, NEEDS)? {
        let clips = below(&path)?;
        if clips.is_empty() {
            return Err(DataError::NoClips { folder: path });
        }
        files.extend(clips);
        targets.resize(files.len(), class);
    }
    decodable(&files)?;
    Ok((files, targets))
}

/// The clip that a path is, or all of a folder; nothing if it is another file.
///
/// *Errors*: a folder without clips, a video without a program that decodes it, what cannot be read.
pub(crate) fn all(path: &Path) -> Result<Option<Vec<PathBuf>>, DataError> {
    let clips = match path.is_dir() {
        false if !is_array(path) && !is_video(path) => return Ok(None),
        true if !is_clip(path)? => below(path)?,
        _ => vec![path.to_owned()],
    };
    if clips.is_empty() {
        return Err(DataError::NoClips { folder: path.to_owned() });
    }
    decodable(&clips)?;
    Ok(Some(clips))
}

/// The clips in a folder and in the folders in it.
fn below(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut clips = Vec::new();
    for path in entries(folder, NEEDS)? {
        if path.is_dir() {
            match is_clip(&path)? {
                true => clips.push(path),
                false => clips.extend(below(&path)?),
            }
        } else if is_array(&path) || is_video(&path) {
            clips.push(path);
        }
    }
    Ok(clips)
}

/// Whether a folder has frames.
fn is_clip(folder: &Path) -> Result<bool, DataError> {
    Ok(entries(folder, NEEDS)?.iter().any(|path| is_image(path)))
}

fn ending(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

fn is_array(path: &Path) -> bool {
    ending(path) == "npy"
}

/// Whether the name is that of a video.
pub(super) fn is_video(path: &Path) -> bool {
    VIDEOS.contains(&&*ending(path))
}

/// Looks for the program that videos need, if there are any: before a run begins, and not at the first that is read.
///
/// *Errors*: there is none.
fn decodable(clips: &[PathBuf]) -> Result<(), DataError> {
    let video = clips.iter().find(|clip| is_video(clip) && !clip.is_dir());
    let found =
        video.map(|video| Ffmpeg::find().map_err(|why| DataError::Video { file: video.clone(), why }));
    found.transpose().map(drop)
}

/// The frames of a clip, by the numbers in their names: 2 is before 10.
pub(super) fn frames(clip: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut frames: Vec<PathBuf> = entries(clip, NEEDS)?.into_iter().filter(|path| is_image(path)).collect();
    frames.sort_by_cached_key(|path| natural(&name(path)));
    Ok(frames)
}

/// A name as what is to be compared: texts, and numbers by their length and then their digits.
fn natural(name: &str) -> Vec<(String, usize, String)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits);
        let (number, tail) = tail.split_at(tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len()));
        let number = number.trim_start_matches('0');
        key.push((text.to_owned(), number.len(), number.to_owned()));
        rest = tail;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_by_their_numbers() {
        let mut names =
            ["f10.png", "f9.png", "f009b.png", "f1.png", "a.png", "f1_2.png", "f1_11.png", "f0.png"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(
            names,
            ["a.png", "f0.png", "f1.png", "f1_2.png", "f1_11.png", "f9.png", "f009b.png", "f10.png"]
        );
    }
}
