//! Tables of numbers in text files, one row a line, with one column as the label.
//!
//! The delimiter and the header are found out if they are not given. It does not know dates, units or missing values:
//! a field that is no number is an error that names its line and column.

mod labels;
mod layout;
mod lines;
mod options;

use crate::bytes::open_lines;
use crate::rows::{Recipe, Store, Table, assemble};
use crate::{DataError, Opened};
use labels::Labels;
use layout::Layout;
use lines::Lines;

pub use options::{Column, CsvOptions, CsvTarget};
use std::fmt;
use std::io::BufRead;
use std::path::PathBuf;

const NEEDS: &str = "kind csv needs `path`, a table of numbers with a label column (plain or gzip)";

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
