//! The label column: classes by number, classes by name, or values.
//!
//! Names are numbered in alphabetical order once all tables are read, so that the numbers do not depend on which
//! row comes first.

use super::lines::{ColumnRef, Line, number, trimmed};
use super::options::CsvTarget;
use crate::DataError;
use crate::rows::{MAX_DERIVED_CLASSES, Table, Targets, class_of};
use std::collections::BTreeMap;
use std::path::Path;

/// What is known of the labels so far, over all tables of a data set.
pub(crate) struct Labels {
    target: CsvTarget,
    /// `Some` once a label was a word: its number is the order of first sight, until `finish`.
    names: Option<BTreeMap<String, u32>>,
    started: bool,
}

impl Labels {
    pub fn new(target: CsvTarget) -> Self {
        Self { target, names: None, started: false }
    }

    /// The empty column of a new table.
    pub fn column(&self) -> Targets {
        match self.target {
            CsvTarget::Class { .. } => Targets::Classes(Vec::new()),
            CsvTarget::Value => Targets::Values { values: Vec::new(), width: 1 },
        }
    }

    /// Reads the label of one line.
    pub fn read(
        &mut self,
        file: &Path,
        line: &Line<'_>,
        at: ColumnRef<'_>,
        targets: &mut Targets,
    ) -> Result<(), DataError> {
        let text = trimmed(&line.fields()[at.column]);
        match targets {
            Targets::Values { values, .. } => values.push(number(file, line.number, at, text)?),
            Targets::Classes(classes) => classes.push(self.class(file, line.number, text)?),
        }
        Ok(())
    }

    /// The first label of all decides whether classes are numbers or words.
    fn class(&mut self, file: &Path, row: u64, text: &str) -> Result<u32, DataError> {
        let not_integer =
            || DataError::LabelNotInteger { file: file.to_owned(), row, text: format!("{text:?}") };
        let whole = text.parse::<f64>().ok();
        if !self.started {
            self.started = true;
            self.names = if whole.is_none() { Some(BTreeMap::new()) } else { None };
        }
        let CsvTarget::Class { classes } = self.target else { unreachable!("a value is no class") };
        if let Some(names) = &mut self.names {
            if text.is_empty() {
                return Err(not_integer());
            }
            let next = names.len() as u32;
            let id = *names.entry(text.to_owned()).or_insert(next);
            return class_of(file, row, i64::from(id), classes.or(Some(MAX_DERIVED_CLASSES)));
        }
        match whole {
            Some(label) if label.fract() == 0.0 && label.abs() < 9.0e15 => {
                class_of(file, row, label as i64, classes)
            }
            _ => Err(not_integer()),
        }
    }

    /// Numbers the words in alphabetical order, in all tables; the names, or none if classes are numbers.
    pub fn finish<'a>(self, tables: impl Iterator<Item = &'a mut Table>) -> Vec<String> {
        let Some(names) = self.names else { return Vec::new() };
        let mut sorted = vec![0; names.len()];
        for (place, seen) in (0..).zip(names.values()) {
            sorted[*seen as usize] = place;
        }
        for table in tables {
            if let Targets::Classes(classes) = &mut table.targets {
                classes.iter_mut().for_each(|class| *class = sorted[*class as usize]);
            }
        }
        names.into_keys().collect()
    }
}
