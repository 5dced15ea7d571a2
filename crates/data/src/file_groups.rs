//! Which group a file is of, by its place or its name.
//!
//! It does not know what lies in a file.

use crate::DataError;
use crate::groups::Groups;
use std::path::{Path, PathBuf};

/// What a pattern has in the place of the group.
const PLACE: &str = "GROUP";

/// What says of which group a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileGroup {
    /// The folder that it lies in, below that of its class.
    Folder,
    /// Its name: `GROUP` once, and `*` for what does not matter, as in `GROUP_*.jpg`.
    Pattern(String),
}

/// What the folders in that of a data set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folders {
    /// One for each class, and in it those of groups.
    OfClasses,
    /// Those of groups: a table says which class.
    OfGroups,
}

impl FileGroup {
    /// A pattern, if it has one place for the group.
    #[must_use]
    pub fn pattern(text: &str) -> Option<Self> {
        (text.matches(PLACE).count() == 1).then(|| Self::Pattern(text.to_owned()))
    }

    /// The groups of files in `folder`.
    ///
    /// *Errors*: a file that lies in no folder of a group, or that the pattern does not fit.
    pub(crate) fn groups(
        &self,
        folder: &Path,
        files: &[PathBuf],
        folders: Folders,
    ) -> Result<Groups, DataError> {
        let mut groups = Groups::default();
        for file in files {
            match self.of(folder, file, folders) {
                Some(group) => groups.push(&group),
                None => return Err(DataError::NoGroup { file: file.clone(), wanted: self.wanted(folders) }),
            }
        }
        Ok(groups)
    }

    fn of(&self, folder: &Path, file: &Path, folders: Folders) -> Option<String> {
        match self {
            Self::Folder => {
                let parent = file.parent()?;
                let is_class = folders == Folders::OfClasses && parent.parent() == Some(folder);
                (!is_class && parent != folder)
                    .then(|| parent.file_name().unwrap_or_default().to_string_lossy().into_owned())
            }
            Self::Pattern(pattern) => {
                let name = file.file_name()?.to_string_lossy();
                let (before, after) = pattern.split_once(PLACE)?;
                let places: Vec<usize> = name.char_indices().map(|(at, _)| at).chain([name.len()]).collect();
                let starts = places.iter().filter(|start| fits(before, &name[..**start]));
                let mut ends = starts.flat_map(|start| places.iter().map(move |end| (*start, *end)));
                let found = ends.find(|(start, end)| start < end && fits(after, &name[*end..]));
                found.map(|(start, end)| name[start..end].to_owned())
            }
        }
    }

    fn wanted(&self, folders: Folders) -> String {
        match self {
            Self::Folder if folders == Folders::OfGroups => "it lies in no folder of a group".to_owned(),
            Self::Folder => "it lies in the folder of its class, and not in one of a group below".to_owned(),
            Self::Pattern(pattern) => format!("its name is not as {pattern:?}"),
        }
    }
}

/// Whether a text is as a pattern with `*` in it.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, rest)) => text.strip_prefix(before).is_some_and(|text| {
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| fits(rest, &text[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_what_stands_in_its_place_or_the_folder_below_the_class() {
        let named = |pattern: &str, name: &str| {
            FileGroup::pattern(pattern).unwrap().of(
                Path::new("d"),
                &Path::new("d/cat").join(name),
                Folders::OfClasses,
            )
        };
        assert_eq!(named("GROUP_*", "p07_003.jpg").as_deref(), Some("p07"));
        assert_eq!(named("*-GROUP.jpg", "a-b-ünal.jpg").as_deref(), Some("b-ünal"));
        assert_eq!(named("scan*_GROUP_*.png", "scan9_x_1.png").as_deref(), Some("x"));
        assert_eq!(named("GROUP_*", "003.jpg"), None);
        assert_eq!(FileGroup::pattern("GROUPGROUP"), None);
        let folder = |file: &str| FileGroup::Folder.of(Path::new("d"), Path::new(file), Folders::OfClasses);
        assert_eq!(folder("d/cat/p07/1.jpg").as_deref(), Some("p07"));
        assert_eq!(folder("d/cat/1.jpg"), None);
    }
}
