//! A table of names and labels: which files there are, of which class, and maybe of which group.
//!
//! It does not know what lies in a file.

use super::error::LabelsError;
use super::folder::is_image;
use crate::bytes::open_lines;
use crate::csv::lines::{ColumnRef, Line, Lines};
use crate::{Column, DataError};
use dtrain_types::counted;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const NEEDS: &str = "data.labels is a table of names and labels, plain, .gz or .zst";

/// Endings that a name may lack.
const ENDINGS: [&str; 4] = ["jpg", "jpeg", "png", "webp"];

/// A table of names and labels beside a folder of images.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelTable {
    /// The table.
    pub path: PathBuf,
    /// That of images for validation, if there is one.
    pub val: Option<PathBuf>,
    /// The column of names.
    pub file: Column,
    /// The column of labels.
    pub label: Column,
    /// The column that says which images are held out together, if one does.
    pub group: Option<Column>,
}

/// What a table says, in its order.
#[derive(Debug, Default)]
pub(super) struct Labelled {
    pub files: Vec<PathBuf>,
    /// By file: which of the labels, in the order of first sight.
    labels: Vec<u32>,
    seen: BTreeMap<String, u32>,
    /// By label: the line that has it first.
    lines: Vec<u64>,
    pub groups: Option<Vec<String>>,
}

/// Where names, labels and groups stand.
struct Places {
    columns: usize,
    file: usize,
    label: usize,
    group: Option<usize>,
    names: Vec<String>,
}

impl LabelTable {
    /// Reads `table`, whose names are those of files in `folder`.
    ///
    /// *Errors*: a column that is not there, a row of another length, a file that is missing or named twice, an empty field.
    pub(super) fn read(&self, table: &Path, folder: &Path) -> Result<Labelled, DataError> {
        let mut lines = Lines::new(open_lines(table, NEEDS)?, table, 0, None)?;
        let mut labelled =
            Labelled { groups: self.group.as_ref().map(|_| Vec::new()), ..Labelled::default() };
        let mut named: BTreeMap<PathBuf, u64> = BTreeMap::new();
        let mut places: Option<Places> = None;
        while let Some(line) = lines.next_line()? {
            let places = match &places {
                Some(places) => places,
                None => {
                    let found = self.places(&line, table, folder)?;
                    let is_header = !found.names.is_empty();
                    let found = places.insert(found);
                    if is_header {
                        continue;
                    }
                    found
                }
            };
            places.fits(&line, table)?;
            let name = places.field(&line, places.file, table, "name")?;
            let Some(file) = found(folder, name) else {
                let (table, folder) = (table.to_owned(), folder.to_owned());
                return Err(
                    LabelsError::NoFile { table, line: line.number, name: name.into(), folder }.into()
                );
            };
            if let Some(first) = named.insert(file.clone(), line.number) {
                let table = table.to_owned();
                return Err(LabelsError::Twice { table, line: line.number, name: name.into(), first }.into());
            }
            labelled.push(file, places.field(&line, places.label, table, "label")?, line.number);
            if let (Some(groups), Some(group)) = (&mut labelled.groups, places.group) {
                groups.push(places.field(&line, group, table, "group")?.to_owned());
            }
        }
        match labelled.files.is_empty() {
            true => Err(DataError::Empty { file: table.to_owned() }),
            false => Ok(labelled),
        }
    }

    /// What the first line says. It names the columns if one of them is asked for by name, or if what stands in the place of a
    /// name is no file and does not look like an image.
    fn places(&self, first: &Line<'_>, table: &Path, folder: &Path) -> Result<Places, DataError> {
        let fields = first.fields();
        let wanted = [Some(&self.file), Some(&self.label), self.group.as_ref()];
        let by_name = |column: &Column| matches!(column, Column::Name(_));
        let by_number = |column: &Column| match column {
            Column::Last => fields.len().checked_sub(1),
            Column::Index(index) => Some(*index).filter(|index| *index < fields.len()),
            Column::Name(_) => None,
        };
        let is_header = wanted.into_iter().flatten().any(by_name)
            || by_number(&self.file)
                .and_then(|at| fields.get(at))
                .is_some_and(|name| !is_image(Path::new(&**name)) && found(folder, name).is_none());
        let place = |column: &Column| {
            let place = match column {
                Column::Name(name) => fields.iter().position(|field| field == name),
                other => by_number(other),
            };
            let columns = match column {
                Column::Name(_) => fields.join(", "),
                _ => counted(fields.len(), "column"),
            };
            let (file, column) = (table.to_owned(), column.to_string());
            place.ok_or(DataError::NoSuchColumn { file, column, columns })
        };
        let (file, label) = (place(&self.file)?, place(&self.label)?);
        let group = self.group.as_ref().map(place).transpose()?;
        let twice = match (file == label, group) {
            (true, _) => Some((&self.label, "the name and the label")),
            (_, Some(group)) if group == label || group == file => {
                self.group.as_ref().zip(Some("the group and the name or the label"))
            }
            _ => None,
        };
        if let Some((column, roles)) = twice {
            return Err(DataError::TwoRoles { file: table.to_owned(), column: column.to_string(), roles });
        }
        let names = if is_header { fields.iter().map(Cow::to_string).collect() } else { Vec::new() };
        Ok(Places { columns: fields.len(), file, label, group, names })
    }
}

impl Places {
    fn fits(&self, line: &Line<'_>, table: &Path) -> Result<(), DataError> {
        let (expected, got) = (self.columns, line.fields().len());
        match expected == got {
            true => Ok(()),
            false => Err(DataError::RaggedRow { file: table.to_owned(), line: line.number, expected, got }),
        }
    }

    fn field<'a>(
        &self,
        line: &'a Line<'_>,
        at: usize,
        table: &Path,
        what: &'static str,
    ) -> Result<&'a str, DataError> {
        let field = &*line.fields()[at];
        if !field.is_empty() {
            return Ok(field);
        }
        let column = ColumnRef { column: at, name: self.names.get(at).map(String::as_str) }.shown();
        Err(LabelsError::Nothing { table: table.to_owned(), line: line.number, column, what }.into())
    }
}

impl Labelled {
    fn push(&mut self, file: PathBuf, label: &str, line: u64) {
        let next = self.lines.len() as u32;
        let id = match self.seen.get(label) {
            Some(id) => *id,
            None => {
                self.seen.insert(label.to_owned(), next);
                self.lines.push(line);
                next
            }
        };
        self.files.push(file);
        self.labels.push(id);
    }

    /// The labels in the order of their names.
    pub fn classes(&self) -> Vec<String> {
        self.seen.keys().cloned().collect()
    }

    /// The class of each file, by its place in `classes`, which are sorted.
    ///
    /// *Errors*: a label that is none of them.
    pub fn targets(&self, classes: &[String], table: &Path) -> Result<Vec<u32>, DataError> {
        let mut ids = vec![0; self.lines.len()];
        for (label, id) in &self.seen {
            ids[*id as usize] = match classes.binary_search(label) {
                Ok(class) => class as u32,
                Err(_) => {
                    let (table, line) = (table.to_owned(), self.lines[*id as usize]);
                    return Err(LabelsError::Unknown { table, line, label: label.clone() }.into());
                }
            };
        }
        Ok(self.labels.iter().map(|id| ids[*id as usize]).collect())
    }
}

/// The file of a name, which may lack its ending.
fn found(folder: &Path, name: &str) -> Option<PathBuf> {
    let file = folder.join(name);
    if file.is_file() {
        return Some(file);
    }
    let with = |ending: &&str| folder.join(format!("{name}.{ending}"));
    ENDINGS.iter().map(with).find(|file| file.is_file())
}
