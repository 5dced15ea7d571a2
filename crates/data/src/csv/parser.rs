//! Rows of a table that is to be predicted, by the columns of the table that was trained on.
//!
//! Columns are found by their names where the training table had names, else by their order. The column of the target may
//! be there, and its fields are handed on, or not. It does not know where the text comes from: it is given pieces of it
//! that end at the end of a line, so that many can be read side by side.

use super::encoder::{Encoder, Fill};
use super::lines::{ColumnRef, split, trimmed};
use super::quotes::{Quote, RowEnds};
use crate::DataError;
use crate::InputSpec;
use crate::preparation::{ColumnUse, Preparation, Role};
use dtrain_types::counted;
use std::path::{Path, PathBuf};

/// What a column of the file to be predicted is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Is {
    /// This column of the training table.
    Input(usize),
    /// What is to be predicted.
    Target,
    /// This column of the training table, which is no input.
    Ignored(usize),
}

/// Reads rows of one file.
#[derive(Debug)]
pub struct RowParser {
    file: PathBuf,
    ends: RowEnds,
    columns: Vec<Is>,
    /// Of the file to be predicted.
    names: Vec<String>,
    /// The columns of inputs in the order of training, each with its place in the file.
    order: Vec<(usize, usize)>,
    encoder: Encoder,
    preparation: Preparation,
}

/// Rows that were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// The features of each row, normalised: what a model takes.
    pub values: Vec<f32>,
    /// The text in the column of the target, a line each, where the file has that column.
    pub targets: Vec<String>,
    /// The line that each row has in the file, from 1.
    pub lines: Vec<u64>,
}

impl Rows {
    /// Forgets all rows and keeps their memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.targets.clear();
        self.lines.clear();
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

impl RowParser {
    /// Understands the first row of a file that is not passed over, by its line: its header if the training table had one.
    ///
    /// *Errors*: columns that are not those of training.
    pub fn new(
        preparation: &Preparation,
        (file, line): (&Path, u64),
        first: &str,
        ends: RowEnds,
    ) -> Result<Self, DataError> {
        let first = first.strip_prefix('\u{FEFF}').unwrap_or(first).trim_end_matches(['\n', '\r']);
        let fields = split(first, ends.delimiter());
        let fields: Vec<&str> = fields.iter().map(AsRef::as_ref).collect();
        let numbers = raw_columns(preparation);
        let trained = if preparation.columns.is_empty() { &numbers } else { &preparation.columns };
        let other = |problem| DataError::OtherColumns { file: file.to_owned(), line, problem };
        let columns = match preparation.header {
            true => by_name(trained, &fields).map_err(other)?,
            false => by_order(trained, fields.len()).map_err(other)?,
        };
        let place = |column| columns.iter().position(|is| *is == Is::Input(column));
        let order = (0..trained.len()).filter_map(|column| Some((column, place(column)?))).collect();
        let named = if preparation.header {
            fields.iter().map(|name| (*name).to_owned()).collect()
        } else {
            Vec::new()
        };
        let encoder = Encoder::new(trained, Fill::Now);
        let preparation = preparation.clone();
        Ok(Self { file: file.to_owned(), ends, columns, names: named, order, encoder, preparation })
    }

    /// Whether the first line of the file is no row.
    #[must_use]
    pub fn has_header(&self) -> bool {
        !self.names.is_empty()
    }

    /// Whether the file has the column of the target.
    #[must_use]
    pub fn has_target(&self) -> bool {
        self.columns.contains(&Is::Target)
    }

    /// Adds the rows of a piece of the file whose first line has this number.
    ///
    /// *Errors*: the first line that is not as the others are, by its number.
    pub fn parse(&self, text: &[u8], first_line: u64, rows: &mut Rows) -> Result<(), DataError> {
        let width = self.encoder.width();
        let target = self.columns.iter().position(|is| *is == Is::Target);
        for (line, bytes, quote) in self.ends.rows(text, first_line) {
            if quote == Quote::Open {
                return Err(DataError::OpenQuote { file: self.file.clone(), line });
            }
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            let text = std::str::from_utf8(bytes).map_err(|error| DataError::OtherColumns {
                file: self.file.clone(),
                line,
                problem: format!("bytes that are no UTF-8 at {}", error.valid_up_to()),
            })?;
            let text = if line == 1 { text.strip_prefix('\u{FEFF}').unwrap_or(text) } else { text };
            let fields = split(text.trim_end_matches('\r'), self.ends.delimiter());
            if fields.len() != self.columns.len() {
                let (file, expected, got) = (self.file.clone(), self.columns.len(), fields.len());
                return Err(DataError::RaggedRow { file, line, expected, got });
            }
            let first = rows.values.len();
            for (column, place) in &self.order {
                let at = ColumnRef { column: *place, name: self.names.get(*place).map(String::as_str) };
                self.encoder.encode(*column, &fields[*place], (&self.file, line, at), &mut rows.values)?;
            }
            debug_assert_eq!(rows.values.len(), first + width);
            if self.preparation.cut.is_some() {
                let whole = rows.values.split_off(first);
                rows.values.extend(self.preparation.middle(whole));
            }
            self.preparation.normalise(&mut rows.values[first..]);
            if let Some(target) = target {
                rows.targets.push(trimmed(&fields[target]).to_owned());
            }
            rows.lines.push(line);
        }
        Ok(())
    }
}

/// A sample of numbers alone as the columns of a table.
fn raw_columns(preparation: &Preparation) -> Vec<ColumnUse> {
    let InputSpec::Values { shape } = preparation.whole() else { return Vec::new() };
    let number = || ColumnUse { name: None, role: Role::Number { fill: None, missing: 0 } };
    let mut columns: Vec<ColumnUse> = (0..shape.iter().product()).map(|_| number()).collect();
    columns.push(ColumnUse { name: None, role: Role::Target });
    columns
}

fn is(columns: &[ColumnUse], column: usize) -> Is {
    match columns[column].role {
        Role::Number { .. } | Role::Category { .. } => Is::Input(column),
        Role::Target => Is::Target,
        Role::LeftOut(_) => Is::Ignored(column),
    }
}

/// What the columns of a file are whose header this is.
pub(crate) fn by_name(trained: &[ColumnUse], header: &[&str]) -> Result<Vec<Is>, String> {
    let position = |name: &str| trained.iter().position(|column| column.name.as_deref() == Some(name));
    let shown =
        |names: Vec<&str>| names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let known = header.iter().filter(|name| position(name).is_some()).count();
    if known == 0 {
        return Err("the training table had a line of names, and this is none of them".to_owned());
    }
    let new: Vec<&str> = header.iter().copied().filter(|name| position(name).is_none()).collect();
    let needed = trained.iter().enumerate().filter(|(at, _)| matches!(is(trained, *at), Is::Input(_)));
    let lacking: Vec<&str> = needed
        .filter_map(|(_, column)| column.name.as_deref())
        .filter(|name| !header.contains(name))
        .collect();
    match (&lacking[..], &new[..]) {
        ([], []) => {}
        ([], _) => {
            return Err(format!("the training table had no {}", columns_named(&new, shown(new.clone()))));
        }
        _ => {
            let is = if lacking.len() == 1 { "is" } else { "are" };
            let columns = columns_named(&lacking, shown(lacking.clone()));
            return Err(format!("{columns} of the training table {is} missing"));
        }
    }
    if let Some(twice) = (1..header.len()).find(|at| header[..*at].contains(&header[*at])) {
        return Err(format!("two columns are called {:?}", header[twice]));
    }
    Ok(header.iter().filter_map(|name| position(name)).map(|at| is(trained, at)).collect())
}

fn columns_named(names: &[&str], shown: String) -> String {
    format!("column{} {shown}", if names.len() == 1 { "" } else { "s" })
}

/// What so many columns without names are.
pub(crate) fn by_order(trained: &[ColumnUse], count: usize) -> Result<Vec<Is>, String> {
    if trained.is_empty() {
        return Err("the model was trained on text or tokens, and this is taken for a table".to_owned());
    }
    let all = (0..trained.len()).map(|at| is(trained, at));
    if count == trained.len() {
        return Ok(all.collect());
    }
    if count + 1 == trained.len() {
        return Ok(all.filter(|is| *is != Is::Target).collect());
    }
    let (with, without) = (trained.len(), trained.len() - 1);
    Err(format!("{}, expected {without}, or {with} with that of the target", counted(count, "column")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CsvOptions, Missing, Source};

    fn trained(text: &str) -> Preparation {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.csv");
        std::fs::write(&path, text).unwrap();
        let options = CsvOptions { missing: Missing::Fill, ..CsvOptions::new(path) };
        crate::open(&Source::Csv(options)).unwrap().preparation.unwrap()
    }

    fn parse(preparation: &Preparation, text: &str) -> Result<Rows, String> {
        let first = text.lines().next().unwrap();
        let parser = RowParser::new(preparation, (Path::new("new.csv"), 1), first, RowEnds::new(first, None))
            .map_err(|e| e.to_string())?;
        let mut rows = Rows::default();
        let (text, line) = match parser.has_header() {
            true => (text.split_once('\n').unwrap().1, 2),
            false => (text, 1),
        };
        parser.parse(text.as_bytes(), line, &mut rows).map_err(|e| e.to_string())?;
        Ok(rows)
    }

    const TABLE: &str = "age,city,class\n1,Bern,no\n3,Rome,yes\n,Bern,no\n5,,yes\n";

    #[test]
    fn columns_are_found_by_their_names_in_any_order_with_or_without_the_target() {
        let preparation = trained(TABLE);
        let known = parse(&preparation, "age,city\n3,Rome\n,Oslo\n").unwrap();
        let (rome, oslo) = ([0.0, 1.0], [0.0, 0.0]);
        let mean = 0.0;
        assert_eq!(known.values, [mean, rome[0], rome[1], mean, oslo[0], oslo[1]]);
        assert_eq!((known.lines, known.targets.len()), (vec![2, 3], 0));
        let turned = parse(&preparation, "city,class,age\nRome,yes,3\n").unwrap();
        assert_eq!(
            (&turned.values[..], &turned.targets[..]),
            (&[0.0, 0.0, 1.0][..], &["yes".to_owned()][..])
        );
    }

    #[test]
    fn columns_that_are_not_those_of_training_are_named() {
        let preparation = trained(TABLE);
        let says = |text| parse(&preparation, text).unwrap_err();
        assert_eq!(says("age\n1\n"), "new.csv line 1: column \"city\" of the training table is missing");
        let both = "new.csv line 1: columns \"age\", \"city\" of the training table are missing";
        assert_eq!(says("class\nyes\n"), both);
        assert_eq!(
            says("age,city,zip\n1,Bern,2\n"),
            "new.csv line 1: the training table had no column \"zip\""
        );
        assert!(says("1,Bern\n").contains("a line of names"));
        assert!(says("age,city\n1,Bern\nx,Rome\n").contains("line 3, column 1 (age): \"x\""));
        assert!(says("age,city\n1,Bern\n1\n").contains("line 3: 1 column, expected 2"));
    }

    #[test]
    fn a_table_without_names_is_read_in_its_order() {
        let preparation = trained("1,10,0\n3,30,1\n");
        assert_eq!(parse(&preparation, "3,30\n").unwrap().values, [1.0, 1.0]);
        assert_eq!(parse(&preparation, "1,10,1\n").unwrap().targets, ["1"]);
        assert!(
            parse(&preparation, "1\n")
                .unwrap_err()
                .contains("1 column, expected 2, or 3 with that of the target")
        );
    }
}
