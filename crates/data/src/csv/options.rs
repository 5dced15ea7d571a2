//! Which table is read, and how.

use crate::preparation::Unseen;
use crate::{Augment, Normalise, ValSplit};
use std::fmt;
use std::path::PathBuf;

/// A column of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// The last one.
    #[default]
    Last,
    /// By its number, from 0.
    Index(usize),
    /// By its name in the header.
    Name(String),
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Last => f.write_str("last"),
            Self::Index(index) => index.fmt(f),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// What the configuration says about one column of inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnRule {
    /// Which one.
    pub column: Column,
    /// What it is used for.
    pub wish: Wish,
}

/// What a column is to be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// As its values suggest; columns that are not named are left out then.
    Only,
    /// As a category, whatever its values are.
    Category,
    /// For nothing.
    LeaveOut,
}

impl std::str::FromStr for ColumnRule {
    type Err = std::convert::Infallible;

    /// `name`, `name:category` or `-name`; a whole number is the number of a column.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (wish, name) = match (text.strip_prefix('-'), text.strip_suffix(":category")) {
            (Some(name), _) => (Wish::LeaveOut, name),
            (None, Some(name)) => (Wish::Category, name),
            (None, None) => (Wish::Only, text),
        };
        let name = name.trim();
        let column = name.parse().map_or_else(|_| Column::Name(name.to_owned()), Column::Index);
        Ok(Self { column, wish })
    }
}

/// What a missing value of an input comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// An error that names its line and column.
    #[default]
    Refuse,
    /// A number: the mean of the training rows that have one. A word: none.
    Fill,
}

/// What the label column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsvTarget {
    /// A class: whole numbers from 0, or words, which are numbered in alphabetical order.
    Class {
        /// The number of classes; by default what the labels say.
        classes: Option<u32>,
    },
    /// A number to be predicted.
    Value,
}

/// How a table is written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Written {
    /// As text, plain, .gz or .zst.
    #[default]
    Text,
    /// As a Parquet file.
    Parquet,
}

/// Which table, and how it is read.
#[derive(Clone, Debug, PartialEq)]
pub struct CsvOptions {
    /// The file.
    pub path: PathBuf,
    /// How the file is written.
    pub written: Written,
    /// A second table for validation; without it `val_split` says what is held out.
    pub val_path: Option<PathBuf>,
    /// What is held out if there is no second table.
    pub val_split: ValSplit,
    /// The label column; all others are inputs.
    pub label: Column,
    /// What the label is.
    pub target: CsvTarget,
    /// The column that says which rows are held out together; it is no input.
    pub group: Option<Column>,
    /// The column of the time, where rows are moments; it is no input.
    pub time: Option<Column>,
    /// Whether the first line has names; by default it has if none of its fields is a number, or if
    /// one is the name of the label.
    pub header: Option<bool>,
    /// Lines to pass over before the header or the first row.
    pub skip: u64,
    /// What separates columns; by default the first of `,`, `;` and tab that occurs in the first line, else spaces.
    pub delimiter: Option<char>,
    /// The shape of the inputs, such as `[1, 28, 28]`; by default one dimension.
    pub shape: Option<Vec<usize>>,
    /// Variations of the training rows, if the shape is an image.
    pub augment: Augment,
    /// Scaling of the columns.
    pub normalise: Normalise,
    /// Whether targets that are numbers are brought to mean 0 and deviation 1.
    pub normalise_targets: bool,
    /// Which columns are inputs, and of which kind; by default all, of the kind that their values suggest.
    pub columns: Vec<ColumnRule>,
    /// What a missing value comes to.
    pub missing: Missing,
    /// What a word comes to that no training row has.
    pub unseen: Unseen,
}

impl CsvOptions {
    /// A table whose last column is a class; nothing is held out.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            written: Written::default(),
            val_path: None,
            val_split: ValSplit::default(),
            label: Column::Last,
            target: CsvTarget::Class { classes: None },
            group: None,
            time: None,
            header: None,
            skip: 0,
            delimiter: None,
            shape: None,
            augment: Augment::default(),
            normalise: Normalise::default(),
            normalise_targets: false,
            columns: Vec::new(),
            missing: Missing::default(),
            unseen: Unseen::default(),
        }
    }

    /// With what follows from how the file is written: the text of a Parquet file has names and commas.
    pub(super) fn as_written(&self) -> Self {
        match self.written {
            Written::Text => self.clone(),
            Written::Parquet => Self { header: Some(true), skip: 0, delimiter: Some(','), ..self.clone() },
        }
    }

    /// How many classes there are, if it was said.
    #[must_use]
    pub fn classes(&self) -> Option<u32> {
        match self.target {
            CsvTarget::Class { classes } => classes,
            CsvTarget::Value => None,
        }
    }
}
