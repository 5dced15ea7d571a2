//! What can be wrong with shards: archives, or Parquet files, of pictures and their labels.
//!
//! Nothing is printed here; [`ShardsError::hint`] says what a user can do about it.

use std::path::PathBuf;

/// Why an archive does not give samples.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardsError {
    /// A folder without archives.
    #[error("{} has no .tar files", folder.display())]
    NoShards {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder without Parquet files.
    #[error("{} has no .parquet files", folder.display())]
    NoTables {
        /// The folder.
        folder: PathBuf,
    },
    /// A Parquet file that does not give pictures with classes.
    #[error("{}: {problem}", file.display())]
    NotPictures {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// An archive that is compressed: its members cannot be read one by one.
    #[error("{} is compressed", file.display())]
    Compressed {
        /// The file.
        file: PathBuf,
    },
    /// An archive that stops before its end.
    #[error("{} stops at byte {at}, before the end of the archive", file.display())]
    CutOff {
        /// The file.
        file: PathBuf,
        /// Where the next header or the end should be.
        at: u64,
    },
    /// A member that is longer than what is left of the file.
    #[error("{} byte {at}: {name:?} has {size} bytes, and {left} are left", file.display())]
    PastEnd {
        /// The file.
        file: PathBuf,
        /// Where its header begins.
        at: u64,
        /// The member.
        name: String,
        /// Its bytes, as the header says.
        size: u64,
        /// The bytes after the header.
        left: u64,
    },
    /// A header that is none, or asks for what is not done here.
    #[error("{} byte {at}: {problem}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// Where it begins.
        at: u64,
        /// What is wrong.
        problem: String,
    },
    /// Something after the end of an archive: another one.
    #[error("{} byte {at}: there is something after the end of the archive", file.display())]
    AfterEnd {
        /// The file.
        file: PathBuf,
        /// Where.
        at: u64,
    },
    /// A sample with two of what it has once.
    #[error("{}: sample {key:?} has two {what}: {first:?} and {second:?}", file.display())]
    Twice {
        /// The file.
        file: PathBuf,
        /// The sample.
        key: String,
        /// What it has twice.
        what: &'static str,
        /// The first one.
        first: String,
        /// The other one.
        second: String,
    },
    /// A sample without a picture or without a label.
    #[error("{}: sample {key:?} has no {what}", file.display())]
    Lacks {
        /// The file.
        file: PathBuf,
        /// The sample.
        key: String,
        /// What it lacks.
        what: &'static str,
    },
    /// A label that is no class.
    #[error("{}: {name:?} says {text}, and a class is a whole number from 0", file.display())]
    Label {
        /// The file.
        file: PathBuf,
        /// The member.
        name: String,
        /// What it says, or why it says nothing.
        text: String,
    },
}

impl ShardsError {
    /// What to do about it, in one sentence.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoShards { .. } => "name a folder of .tar files, or one .tar file",
            Self::NoTables { .. } => "name a folder of .parquet files, or one .parquet file",
            Self::NotPictures { .. } => {
                "images of the Hub are one column of structures with bytes and one of whole numbers, which data.label names; a damaged file is to \
                 be fetched again"
            }
            Self::Compressed { .. } => "unpack it first, as with gunzip: pictures are compressed already, so it grows little",
            Self::CutOff { .. } | Self::PastEnd { .. } => "the file is cut off, perhaps half downloaded; fetch it again",
            Self::Header { .. } => "the file is damaged or no archive; write it again with tar, or with webdataset's TarWriter",
            Self::AfterEnd { .. } => "archives cannot be joined by cat: keep them as files of their own in one folder",
            Self::Twice { .. } => "members of a sample have one name up to its first dot, and it is theirs alone; rename one",
            Self::Lacks { .. } => {
                "a sample is KEY.jpg (.jpeg, .png, .webp) and KEY.cls, or KEY.json with \"label\" or \"class\"; add what is lacking, \
                 or leave the sample out"
            }
            Self::Label { .. } => "number the classes from 0; a .json has \"label\" or \"class\"",
        }
        .to_owned()
    }
}
