//! The search: place by place, file by file, until one works.

use crate::candidate::candidates;
use crate::open::{Refusal, open};
use crate::{Environment, Library, Origin, Place, Version, places};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What a search came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked for.
    pub library: Library,
    /// What was found.
    pub found: Option<Found>,
    /// The files that were tried before and did not do, in order.
    pub refused: Vec<Refused>,
    /// Every place that was looked at, in order; the last one is that of the library, if it was found.
    pub looked: Vec<Place>,
}

/// A library that works. It stays open as long as the process that found it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Its file, links resolved.
    pub path: PathBuf,
    /// Why it was looked for there.
    pub origin: Origin,
    /// What it says of itself.
    pub version: Version,
}

/// A file that does not do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The file, or the folder that cannot be read.
    pub path: PathBuf,
    /// Why.
    pub why: Refusal,
}

/// Looks for libraries.
#[derive(Clone, Debug)]
pub struct Finder {
    environment: Environment,
    avoided: Vec<Refused>,
}

impl Finder {
    /// A finder for an environment.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment, avoided: Vec::new() }
    }

    /// Does not open this file again: it is listed as refused where it would have been tried.
    #[must_use]
    pub fn avoiding(mut self, file: Refused) -> Self {
        self.avoided.push(file);
        self
    }

    /// Looks for a library that is at least this version.
    ///
    /// *Order*: that of [`places`]; within a place the highest number in a file's name first. *Blocks* on the disk and
    /// while libraries start.
    #[must_use]
    pub fn find(&self, library: Library, least: Option<&Version>) -> Finding {
        self.find_telling(library, least, |_| {})
    }

    /// As [`Finder::find`], and tells each file just before it is opened: if the process dies, this was the one.
    pub fn find_telling(
        &self,
        library: Library,
        least: Option<&Version>,
        mut opening: impl FnMut(&Path),
    ) -> Finding {
        let mut finding = Finding { library, found: None, refused: Vec::new(), looked: Vec::new() };
        for place in places(library, &self.environment) {
            finding.looked.push(place.clone());
            let files = match candidates(library, &place) {
                Ok(files) => files,
                Err(error) => {
                    let why = Refusal::Unreadable { error: error.to_string() };
                    finding.refused.push(Refused { path: place.path, why });
                    continue;
                }
            };
            for file in files {
                // Several places may lead to one file.
                if finding.refused.iter().any(|refused| refused.path == file.path) {
                    continue;
                }
                let known = self.avoided.iter().find(|avoided| avoided.path == file.path);
                let opened = match known {
                    Some(avoided) => Err(avoided.why.clone()),
                    None => {
                        opening(&file.path);
                        open(library, &file.path, least)
                    }
                };
                match opened {
                    Ok(version) => {
                        finding.found = Some(Found { path: file.path, origin: place.origin, version });
                        return finding;
                    }
                    Err(why) => finding.refused.push(Refused { path: file.path, why }),
                }
            }
        }
        finding
    }
}

impl Finding {
    /// In one line: the version and the file, or why there is none.
    #[must_use]
    pub fn sentence(&self) -> String {
        match (&self.found, self.refused.as_slice()) {
            (Some(found), _) => format!("{} at {}", found.version, found.path.display()),
            (None, []) => format!("not found in {} places", self.looked.len()),
            (None, [only]) => format!("{} {}", only.path.display(), only.why),
            (None, [first, others @ ..]) => {
                format!("{} {}, and {} more do not do", first.path.display(), first.why, others.len())
            }
        }
    }
}
