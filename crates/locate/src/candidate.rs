//! The files of a place that could be a library, the one to try first in front.

use crate::place::is_library;
use crate::{Library, Place};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A file that could be the library, links resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The file itself.
    pub path: PathBuf,
    stem: usize,
    numbers: Vec<u32>,
}

/// The candidates of a place.
///
/// *Errors*: the place is there and cannot be read. *Order*: by preferred name, then the highest number in the name of
/// the file that a link leads to, then by path. Names that lead to one file are one candidate.
pub(crate) fn candidates(library: Library, place: &Place) -> io::Result<Vec<Candidate>> {
    if place.path.is_file() {
        // A file that somebody named is tried for the library that its name says, whatever stands behind a link.
        return Ok(candidate(library, &place.path).into_iter().collect());
    }
    let entries = match fs::read_dir(&place.path) {
        // Most places of the list are not on this machine.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries?,
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<Candidate> = paths.filter_map(|path| candidate(library, &path)).collect();
    found.sort_by(|a, b| (a.stem, &b.numbers, &a.path).cmp(&(b.stem, &a.numbers, &b.path)));
    found.dedup_by(|a, b| a.path == b.path);
    Ok(found)
}

fn candidate(library: Library, path: &Path) -> Option<Candidate> {
    let name = path.file_name()?.to_str()?;
    let stem = library.stems().iter().position(|stem| is_library(name, stem))?;
    // A link that leads nowhere is tried under its own name, so that it is told why it does not do.
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let numbers = match numbers(&real) {
        none if none.is_empty() => numbers(path),
        some => some,
    };
    Some(Candidate { path: real, stem, numbers })
}

/// `libnccl.so.2.32.3` has 2, 32 and 3.
fn numbers(path: &Path) -> Vec<u32> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((_, numbers)) = name.split_once(".so.") else { return Vec::new() };
    numbers.split('.').map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origin;
    use std::os::unix::fs::symlink;

    fn names(library: Library, path: &Path) -> Vec<String> {
        let place = Place { path: path.to_owned(), origin: Origin::Standard };
        let found = candidates(library, &place).unwrap();
        found.iter().map(|file| file.path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_highest_number_comes_first_and_links_count_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in [
            "libnccl.so.2.9.1",
            "libnccl.so.2.32.3",
            "librccl.so.1.0",
            "libnccl-net.so",
            "libnccl.so.2.32.3.bak",
        ] {
            fs::write(at(name), "").unwrap();
        }
        symlink("libnccl.so.2.32.3", at("libnccl.so.2")).unwrap();
        symlink("libnccl.so.2", at("libnccl.so")).unwrap();
        symlink("gone", at("libnccl.so.1")).unwrap();
        let wanted = ["libnccl.so.2.32.3", "libnccl.so.2.9.1", "libnccl.so.1", "librccl.so.1.0"];
        assert_eq!(names(Library::Nccl, folder.path()), wanted);
        assert_eq!(names(Library::Nccl, &at("libnccl.so")), ["libnccl.so.2.32.3"], "a file that is named");
        assert!(names(Library::Cudnn, &at("libnccl.so")).is_empty());
        assert!(names(Library::Nccl, &at("nowhere")).is_empty());
    }

    #[test]
    fn a_number_in_the_name_of_a_link_counts_where_its_file_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (link, file) in [("libnvrtc.so.12", "store-a"), ("libnvrtc.so.13", "store-b")] {
            fs::write(at(file), "").unwrap();
            symlink(file, at(link)).unwrap();
        }
        assert_eq!(names(Library::Nvrtc, folder.path()), ["store-b", "store-a"]);
    }
}
