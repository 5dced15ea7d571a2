//! Tables in text files, one row a line, with one column as the label.
//!
//! The delimiter, the header and what each column is are found out if they are not given. A table of numbers is read in
//! one go; only one with words, holes or ids is surveyed first. It does not know units.

mod dates;
pub(crate) mod encoder;
pub(crate) mod labels;
mod layout;
pub(crate) mod lines;
pub(crate) mod missing;
mod options;
pub(crate) mod parser;
mod quotes;
pub(crate) mod survey;

use crate::bytes::open_lines;
use crate::groups::Groups;
use crate::parquet_text::ParquetText;
use crate::preparation::{ColumnUse, Role};
use crate::rows::{Feature, Recipe, Store, Table, assemble};
use crate::{DataError, Opened};
use encoder::{Encoder, Fill};
use labels::Labels;
use layout::Layout;
use lines::Lines;
use missing::{Nothing, nothing};

pub use options::{Column, ColumnRule, CsvOptions, CsvTarget, Missing, Wish, Written};
pub use parser::{RowParser, Rows};
pub use quotes::{LONGEST_ROW, RowEnds};
use std::fs::File;
use std::io::{BufRead, BufReader};
pub use survey::MOST_WORDS;
use survey::{Survey, is_id};

const NEEDS: &str = "kind csv needs `path`, a table with a label column (plain, .gz or .zst)";
const NEEDS_PARQUET: &str = "kind parquet needs `path`, a Parquet file with a label column";

pub(crate) fn open(options: &CsvOptions) -> Result<Opened, DataError> {
    let options = &options.as_written();
    let read = match options.columns.is_empty() {
        true => open_as(options, None),
        false => Err(Unread::NeedsSurvey),
    };
    match read {
        Ok(opened) => Ok(opened),
        Err(Unread::Broken(error)) => Err(error),
        Err(Unread::NeedsSurvey) => {
            let mut survey = Survey::new(options);
            survey.add(text(options)?, &options.path)?;
            open_as(options, Some(survey.finish()?)).map_err(|error| match error {
                Unread::Broken(error) => error,
                Unread::NeedsSurvey => unreachable!("a surveyed table is known"),
            })
        }
    }
}

/// The table as text.
fn text(options: &CsvOptions) -> Result<Box<dyn BufRead>, DataError> {
    let path = &options.path;
    if options.written == Written::Text {
        return open_lines(path, NEEDS);
    }
    let text = File::open(path).and_then(ParquetText::of);
    match text.map_err(|source| DataError::io(path, NEEDS_PARQUET, source))? {
        Ok(text) => Ok(Box::new(BufReader::new(text))),
        Err(_) => {
            let (file, got) = (path.clone(), "something else".to_owned());
            Err(DataError::WrongMagic { file, expected: "PAR1, as a Parquet file does", got })
        }
    }
}

/// Why a table cannot be read as numbers alone.
enum Unread {
    /// It may be more than numbers.
    NeedsSurvey,
    /// It is wrong.
    Broken(DataError),
}

impl From<DataError> for Unread {
    fn from(error: DataError) -> Self {
        Self::Broken(error)
    }
}

fn open_as(options: &CsvOptions, columns: Option<Vec<ColumnUse>>) -> Result<Opened, Unread> {
    let mut labels = Labels::new(options.target);
    let mut columns = columns;
    let mut train = read(text(options)?, options, &mut columns, &mut labels)?;
    let mut val = match &options.val_path {
        Some(path) => {
            let options = CsvOptions { path: path.clone(), ..options.clone() };
            Some(read(text(&options)?, &options, &mut columns, &mut labels)?)
        }
        None => None,
    };
    let class_names = labels.finish([Some(&mut train), val.as_mut()].into_iter().flatten());
    let named = u32::try_from(class_names.len()).ok().filter(|names| *names > 0);
    let recipe = Recipe {
        classes: options.classes().or(named),
        split: options.val_split.clone(),
        normalise: options.normalise,
        normalise_targets: options.normalise_targets,
        augment: options.augment,
        class_names,
        columns: columns.unwrap_or_default(),
    };
    Ok(assemble(train, val, recipe)?)
}

/// Reads a single table of numbers; its classes' names if they are words.
pub(crate) fn read_one(text: impl BufRead, options: &CsvOptions) -> Result<(Table, Vec<String>), DataError> {
    let mut labels = Labels::new(options.target);
    let mut table = read(text, options, &mut None, &mut labels).map_err(|error| match error {
        Unread::Broken(error) => error,
        Unread::NeedsSurvey => unreachable!("a built-in table is numbers without an id"),
    })?;
    let names = labels.finish(std::iter::once(&mut table));
    Ok((table, names))
}

/// Reads rows whose columns are used so; where nobody knows yet, all of them must be numbers.
fn read(
    text: impl BufRead,
    options: &CsvOptions,
    columns: &mut Option<Vec<ColumnUse>>,
    labels: &mut Labels,
) -> Result<Table, Unread> {
    let mut lines = Lines::new(text, &options.path, options.skip, options.delimiter)?;
    let mut inputs = Vec::new();
    let mut targets = labels.column();
    let surveyed = columns.is_some();
    let mut known: Option<(Layout, Encoder)> = None;
    let mut groups = options.group.as_ref().map(|_| Groups::default());
    let mut rows = 0u64;
    while let Some(line) = lines.next_line()? {
        let (layout, encoder) = match &known {
            Some(known) => known,
            None => {
                let layout = Layout::of(&line, options)?;
                if !surveyed && layout.names.iter().any(|name| is_id(name)) {
                    return Err(Unread::NeedsSurvey);
                }
                let columns = columns.get_or_insert_with(|| layout.numbers(options.missing));
                if columns.len() != layout.columns {
                    let (file, expected, got) = (options.path.clone(), columns.len(), layout.columns);
                    return Err(DataError::RaggedRow { file, line: line.number, expected, got }.into());
                }
                let is_header = !layout.names.is_empty();
                let encoder = match surveyed {
                    true => Encoder::new(columns.iter(), Fill::Later),
                    false => Encoder::new(layout.numbers(Missing::Refuse).iter(), Fill::Later),
                };
                let known = known.insert((layout, encoder));
                if is_header {
                    continue;
                }
                known
            }
        };
        let fields = line.fields();
        if fields.len() != layout.columns {
            let (expected, got) = (layout.columns, fields.len());
            let (file, line) = (options.path.clone(), line.number);
            return Err(DataError::RaggedRow { file, line, expected, got }.into());
        }
        for (column, field) in fields.iter().enumerate() {
            let at = layout.at(column);
            if column == layout.label {
                labels.read(&options.path, &line, at, &mut targets)?;
                continue;
            }
            if let (Some(groups), true) = (&mut groups, layout.group == Some(column)) {
                if nothing(field) == Nothing::Missing {
                    let (file, column) = (options.path.clone(), at.shown());
                    return Err(DataError::MissingGroup { file, line: line.number, column }.into());
                }
                groups.push(field);
            }
            match encoder.encode(column, field, (&options.path, line.number, at), &mut inputs) {
                Ok(()) => {}
                Err(DataError::NotANumber { .. } | DataError::FieldNotFinite { .. }) if !surveyed => {
                    return Err(Unread::NeedsSurvey);
                }
                Err(error) => return Err(error.into()),
            }
        }
        rows += 1;
    }
    let Some((_, encoder)) = known.filter(|_| rows > 0) else {
        return Err(DataError::Empty { file: options.path.clone() }.into());
    };
    let width = encoder.width();
    let shape = options.shape.clone().unwrap_or_else(|| vec![width]);
    let elements = shape.iter().try_fold(1usize, |all, dim| all.checked_mul(*dim));
    if elements != Some(width) || width == 0 {
        return Err(match columns.as_ref().filter(|_| surveyed && width == 0) {
            Some(columns) => DataError::NoInputs { file: options.path.clone(), columns: became(columns) },
            None => DataError::Shape { file: options.path.clone(), expected: shape, got: vec![width] },
        }
        .into());
    }
    let features = columns.iter().flatten().flat_map(features).collect();
    let store = Store::Floats(inputs);
    Ok(Table { file: options.path.clone(), rows, shape, store, targets, features, groups })
}

/// What the features of a column are.
fn features(column: &ColumnUse) -> Vec<Feature> {
    match &column.role {
        Role::Number { fill: None, .. } => vec![Feature::Number],
        Role::Number { fill: Some(_), .. } => vec![Feature::NumberOrMissing],
        Role::Category { words, .. } => vec![Feature::Word; words.len()],
        Role::Target | Role::LeftOut(_) => Vec::new(),
    }
}

pub(crate) fn became(columns: &[ColumnUse]) -> String {
    let shown = |(at, column): (usize, &ColumnUse)| {
        let name = column.name.clone().unwrap_or_else(|| format!("column {at}"));
        match &column.role {
            Role::Target => format!("{name} is the label"),
            Role::LeftOut(why) => format!("{name} is {}", why.reason()),
            Role::Number { .. } | Role::Category { .. } => name,
        }
    };
    columns.iter().enumerate().map(shown).collect::<Vec<_>>().join(", ")
}
