//! What can be wrong with a table of labels beside images.
//!
//! Nothing is printed here; [`LabelsError::hint`] says what a user can do about it.

use std::path::PathBuf;

/// Why a table does not say of which class images are.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabelsError {
    /// A row names a file that is not there.
    #[error("{} line {line}: {name:?} is not in {}", table.display(), folder.display())]
    NoFile {
        /// The table.
        table: PathBuf,
        /// Line in the table, from 1.
        line: u64,
        /// The name in that line.
        name: String,
        /// Where the file was looked for.
        folder: PathBuf,
    },
    /// Two rows name one file.
    #[error("{} line {line}: {name:?} has a label in line {first} already", table.display())]
    Twice {
        /// The table.
        table: PathBuf,
        /// Line in the table, from 1.
        line: u64,
        /// The name in that line.
        name: String,
        /// The line that names it first.
        first: u64,
    },
    /// A row without a name, a label or a group.
    #[error("{} line {line}, column {column}: the {what} is missing", table.display())]
    Nothing {
        /// The table.
        table: PathBuf,
        /// Line in the table, from 1.
        line: u64,
        /// The column's name, or its number from 1.
        column: String,
        /// What it is.
        what: &'static str,
    },
    /// A label of a held-out image that no training image has.
    #[error("{} line {line}: {label:?} is the label of no training image", table.display())]
    Unknown {
        /// The table.
        table: PathBuf,
        /// Line in the table, from 1.
        line: u64,
        /// The label.
        label: String,
    },
}

impl LabelsError {
    /// What to do about it, in one sentence.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoFile { .. } => {
                "names are those of files in data.path (data.val_path), with or without .jpg, .jpeg, .png or .webp; correct the \
                 name, leave the row out, or say with data.file_column which column has names"
            }
            Self::Twice { .. } => "an image has one label: leave one of the rows out",
            Self::Nothing { .. } => "write it, or leave the row out",
            Self::Unknown { .. } => "correct it, or train on images of that class too",
        }
        .to_owned()
    }
}
