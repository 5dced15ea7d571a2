//! Tables of numbers in text files, one row a line, with one column as the label.
//!
//! The delimiter and the header are found out if they are not given. It does not know dates, units or missing values:
//! a field that is no number is an error that names its line and column.

mod labels;
mod lines;

use crate::bytes::open_lines;
use crate::rows::{Recipe, Store, Table, assemble};
use crate::{Augment, DataError, Normalise, Opened, ValSplit};
use dtrain_types::counted;
use labels::Labels;
use lines::{Line, Lines};
use std::fmt;
use std::io::BufRead;
use std::path::PathBuf;

const NEEDS: &str = "kind csv needs `path`, a table of numbers with a label column (plain or gzip)";

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

/// Which table, and how it is read.
#[derive(Clone, Debug, PartialEq)]
pub struct CsvOptions {
    /// The file, plain or gzip.
    pub path: PathBuf,
    /// A second table for validation; without it `val_split` says what is held out.
    pub val_path: Option<PathBuf>,
    /// What is held out if there is no second table.
    pub val_split: ValSplit,
    /// The label column; all others are inputs.
    pub label: Column,
    /// What the label is.
    pub target: CsvTarget,
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
}

impl CsvOptions {
    /// A table whose last column is a class; nothing is held out.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            val_path: None,
            val_split: ValSplit::default(),
            label: Column::Last,
            target: CsvTarget::Class { classes: None },
            header: None,
            skip: 0,
            delimiter: None,
            shape: None,
            augment: Augment::default(),
            normalise: Normalise::default(),
        }
    }

    fn classes(&self) -> Option<u32> {
        match self.target {
            CsvTarget::Class { classes } => classes,
            CsvTarget::Value => None,
        }
    }
}

pub(crate) fn open(options: &CsvOptions) -> Result<Opened, DataError> {
    let mut labels = Labels::new(options.target);
    let mut train = read(open_lines(&options.path, NEEDS)?, options, &mut labels)?;
    let mut val = match &options.val_path {
        Some(path) => {
            let options = CsvOptions { path: path.clone(), ..options.clone() };
            Some(read(open_lines(path, NEEDS)?, &options, &mut labels)?)
        }
        None => None,
    };
    let class_names = labels.finish([Some(&mut train), val.as_mut()].into_iter().flatten());
    let named = u32::try_from(class_names.len()).ok().filter(|names| *names > 0);
    let recipe = Recipe {
        classes: options.classes().or(named),
        split: options.val_split,
        normalise: options.normalise,
        augment: options.augment,
        class_names,
    };
    assemble(train, val, recipe)
}

/// Reads a single table; its classes' names if they are words.
pub(crate) fn read_one(text: impl BufRead, options: &CsvOptions) -> Result<(Table, Vec<String>), DataError> {
    let mut labels = Labels::new(options.target);
    let mut table = read(text, options, &mut labels)?;
    let names = labels.finish(std::iter::once(&mut table));
    Ok((table, names))
}

fn read(text: impl BufRead, options: &CsvOptions, labels: &mut Labels) -> Result<Table, DataError> {
    let mut lines = Lines::new(text, &options.path, options.skip, options.delimiter)?;
    let mut inputs = Vec::new();
    let mut targets = labels.column();
    let mut layout: Option<Layout> = None;
    let mut rows = 0u64;
    while let Some(line) = lines.next_line()? {
        let place = match &layout {
            Some(layout) => layout,
            None => {
                let place = layout.insert(Layout::of(&line, options)?);
                if !place.names.is_empty() {
                    continue;
                }
                place
            }
        };
        let fields = line.fields();
        if fields.len() != place.columns {
            let (expected, got) = (place.columns, fields.len());
            return Err(DataError::RaggedRow {
                file: options.path.clone(),
                line: line.number,
                expected,
                got,
            });
        }
        for (column, field) in fields.iter().enumerate() {
            if column == place.label {
                labels.read(&options.path, &line, place.at(column), &mut targets)?;
            } else {
                inputs.push(line.number_in(&options.path, place.at(column), field)?);
            }
        }
        rows += 1;
    }
    let width = match layout {
        Some(layout) if rows > 0 => layout.columns - 1,
        _ => return Err(DataError::Empty { file: options.path.clone() }),
    };
    let shape = options.shape.clone().unwrap_or_else(|| vec![width]);
    let elements = shape.iter().try_fold(1usize, |all, dim| all.checked_mul(*dim));
    if elements != Some(width) || width == 0 {
        return Err(DataError::Shape { file: options.path.clone(), expected: shape, got: vec![width] });
    }
    Ok(Table { file: options.path.clone(), rows, shape, store: Store::Floats(inputs), targets })
}

/// Where the label is among how many columns.
struct Layout {
    columns: usize,
    label: usize,
    /// What the header calls the columns; empty without a header.
    names: Vec<String>,
}

/// A column of a table, as messages show it.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// From 0.
    column: usize,
    /// Its name in the header.
    name: Option<&'a str>,
}

impl Layout {
    /// What the first line says.
    fn of(first: &Line<'_>, options: &CsvOptions) -> Result<Self, DataError> {
        let fields = first.fields();
        let is_header = options.header.unwrap_or_else(|| {
            let named = matches!(&options.label, Column::Name(name) if fields.contains(&name.as_str()));
            named || fields.iter().all(|field| field.parse::<f64>().is_err())
        });
        let label = match &options.label {
            Column::Last => fields.len().checked_sub(1),
            Column::Index(index) => Some(*index).filter(|index| *index < fields.len()),
            Column::Name(name) => fields.iter().position(|field| is_header && *field == name),
        };
        let columns = match (&options.label, is_header) {
            (Column::Name(_), true) => fields.join(", "),
            (Column::Name(_), false) => format!("{} without names", counted(fields.len(), "column")),
            _ => counted(fields.len(), "column"),
        };
        let column = options.label.to_string();
        let label =
            label.ok_or_else(|| DataError::NoSuchColumn { file: options.path.clone(), column, columns })?;
        let names =
            if is_header { fields.iter().map(|name| (*name).to_owned()).collect() } else { Vec::new() };
        Ok(Self { columns: fields.len(), label, names })
    }

    fn at(&self, column: usize) -> Place<'_> {
        Place { column, name: self.names.get(column).map(String::as_str) }
    }
}
