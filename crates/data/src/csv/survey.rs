//! What each column of a training table is, by all of its values.
//!
//! It reads a table from end to end and keeps counts. It does not know what rows become.

use super::dates::is_date;
use super::layout::Layout;
use super::lines::{ColumnRef, Line, Lines, not_a_number, number};
use super::missing::{Nothing, nothing};
use super::options::{Column, CsvOptions, Missing, Wish};
use crate::DataError;
use crate::preparation::{ColumnUse, LeftOut, Role};
use std::borrow::Cow;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// The most words that a column of a category has; of more it is left out.
pub const MOST_WORDS: usize = 100;
/// So many rows make it plain that a column with another word in each says nothing.
const PLAIN: u64 = 10;

/// The number of a file, a line and a column in it, and the field that stands there.
type Spot = (usize, u64, usize, String);

/// What was seen of one column.
#[derive(Default)]
struct Seen {
    numbers: u64,
    missing: u64,
    /// `None`: nothing among numbers and dates, a word among words.
    nones: u64,
    dates: u64,
    others: u64,
    /// Distinct fields that are not missing, until there are too many.
    words: BTreeSet<String>,
    too_many: bool,
    /// Whether its header calls it an id.
    is_id: bool,
    /// What was seen, as hashes, until something is seen again: then each row of a long table has no other value.
    unlike: HashSet<u64>,
    repeats: bool,
    first_word: Option<Spot>,
    first_missing: Option<Spot>,
    first_none: Option<Spot>,
}

/// Whether a header says that a column numbers the rows.
pub(super) fn is_id(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["id", "index", "rowid", "uuid", "guid", "", "unnamed: 0"].contains(&name.as_str())
        || name.ends_with("_id")
}

impl Seen {
    fn note(&mut self, field: &str, (file, line, at): (usize, u64, usize)) {
        let is_none = match nothing(field) {
            Nothing::Missing => {
                self.missing += 1;
                self.first_missing.get_or_insert_with(|| (file, line, at, field.to_owned()));
                return;
            }
            Nothing::None => true,
            Nothing::Word => false,
        };
        match field.trim().parse::<f64>() {
            _ if is_none => {
                self.nones += 1;
                self.first_none.get_or_insert_with(|| (file, line, at, field.to_owned()));
            }
            Ok(value) => {
                self.numbers += 1;
                if self.is_id {
                    self.note_unlike(value.to_bits());
                }
            }
            Err(_) if is_date(field.trim()) => self.dates += 1,
            Err(_) => {
                self.others += 1;
                self.first_word.get_or_insert_with(|| (file, line, at, field.to_owned()));
                let mut hasher = DefaultHasher::new();
                field.hash(&mut hasher);
                self.note_unlike(hasher.finish());
            }
        }
        if !self.too_many && !self.words.contains(field) {
            self.words.insert(field.to_owned());
            self.too_many = self.words.len() > MOST_WORDS;
        }
    }

    fn note_unlike(&mut self, hash: u64) {
        if !self.repeats && !self.unlike.insert(hash) {
            self.repeats = true;
            self.unlike = HashSet::new();
        }
    }

    fn rows(&self) -> u64 {
        self.numbers + self.missing + self.nones + self.dates + self.others
    }

    /// Decides what `None` is, now that all of the column is known.
    fn settle(&mut self, wish: Option<Wish>) {
        let nones = std::mem::take(&mut self.nones);
        let has_words = self.others > self.numbers || wish == Some(Wish::Category);
        if has_words {
            self.others += nones;
            // Two of them are a word that is seen again.
            self.repeats |= nones > 1;
            return;
        }
        self.missing += nones;
        let first = [self.first_missing.take(), self.first_none.take()];
        self.first_missing = first.into_iter().flatten().min();
    }
}

/// What becomes of every column, by all rows of one table or of several with the same columns.
pub(crate) struct Survey<'a> {
    options: &'a CsvOptions,
    files: Vec<PathBuf>,
    layout: Option<Layout>,
    seen: Vec<Seen>,
}

impl<'a> Survey<'a> {
    /// Nothing seen yet.
    pub fn new(options: &'a CsvOptions) -> Self {
        Self { options, files: Vec::new(), layout: None, seen: Vec::new() }
    }

    /// Looks at a table. The first says which columns there are; of others only what is a column of it is looked at, wherever it stands.
    ///
    /// *Errors*: a column that is named and not there; a row of another length.
    pub fn add(&mut self, text: impl BufRead, file: &Path) -> Result<(), DataError> {
        let number = self.files.len();
        self.files.push(file.to_owned());
        let mut lines = Lines::new(text, file, self.options.skip, self.options.delimiter)?;
        let mut places: Option<Vec<Option<usize>>> = None;
        while let Some(line) = lines.next_line()? {
            let places = match &places {
                Some(places) => places,
                None => {
                    let (found, has_header) = self.places(&line, file)?;
                    let places = places.insert(found);
                    if has_header {
                        continue;
                    }
                    places
                }
            };
            let fields = line.fields();
            if fields.len() != places.len() {
                let (file, expected, got) = (file.to_owned(), places.len(), fields.len());
                return Err(DataError::RaggedRow { file, line: line.number, expected, got });
            }
            for (at, (field, place)) in fields.iter().zip(places).enumerate() {
                if let Some(place) = place {
                    self.seen[*place].note(field, (number, line.number, at));
                }
            }
        }
        Ok(())
    }

    /// Which columns those of a table are, by its first line, and whether that is a header.
    fn places(&mut self, first: &Line<'_>, file: &Path) -> Result<(Vec<Option<usize>>, bool), DataError> {
        let layout = match &self.layout {
            Some(layout) => layout,
            None => {
                let options = CsvOptions { path: file.to_owned(), ..self.options.clone() };
                let layout = self.layout.insert(Layout::of(first, &options)?);
                self.seen.resize_with(layout.columns, Seen::default);
                let named = self.seen.iter_mut().zip(&layout.names);
                named.for_each(|(seen, name)| seen.is_id = is_id(name));
                layout
            }
        };
        let has_header = !layout.names.is_empty();
        let place = |(at, name): (usize, &Cow<'_, str>)| match has_header {
            true => layout.names.iter().position(|other| *other == *name),
            false => Some(at).filter(|at| *at < layout.columns),
        };
        Ok((first.fields().iter().enumerate().map(place).collect(), has_header))
    }

    /// Decides.
    ///
    /// *Errors*: a column that is named and not there; a word among numbers; a missing value where they are refused.
    pub fn finish(self) -> Result<Vec<ColumnUse>, DataError> {
        let Self { options, files, layout, seen } = self;
        let Some(layout) = layout else { return Err(DataError::Empty { file: options.path.clone() }) };
        let wishes = wishes(options, &layout)?;
        let columns = seen.into_iter().enumerate().map(|(column, seen)| {
            let name = layout.names.get(column).cloned();
            let role = match (column == layout.label, layout.beside(column)) {
                (true, _) => Role::Target,
                (false, Some(why)) => Role::LeftOut(why),
                (false, None) => role(seen, wishes[column], (options, &files), &layout, column)?,
            };
            Ok(ColumnUse { name, role })
        });
        columns.collect()
    }
}

/// What the configuration says of each column, if anything.
fn wishes(options: &CsvOptions, layout: &Layout) -> Result<Vec<Option<Wish>>, DataError> {
    let only = options.columns.iter().any(|rule| rule.wish == Wish::Only);
    let mut wishes = vec![only.then_some(Wish::LeaveOut); layout.columns];
    for rule in &options.columns {
        let place = match &rule.column {
            Column::Name(name) => layout.names.iter().position(|other| other == name),
            Column::Index(index) => Some(*index).filter(|index| *index < layout.columns),
            Column::Last => layout.columns.checked_sub(1),
        };
        let Some(place) = place else {
            let columns = match layout.names.is_empty() {
                true => dtrain_types::counted(layout.columns, "column"),
                false => layout.names.join(", "),
            };
            let (file, column) = (options.path.clone(), rule.column.to_string());
            return Err(DataError::NoSuchColumn { file, column, columns });
        };
        wishes[place] = Some(rule.wish);
    }
    Ok(wishes)
}

fn role(
    mut seen: Seen,
    wish: Option<Wish>,
    (options, files): (&CsvOptions, &[PathBuf]),
    layout: &Layout,
    column: usize,
) -> Result<Role, DataError> {
    seen.settle(wish);
    let (rows, filled) = (seen.rows(), options.missing == Missing::Fill);
    let refused = |(file, line, place, field): &Spot| {
        let (file, at) = (&files[*file], ColumnRef { column: *place, ..layout.at(column) });
        number(file, *line, at, field).err().unwrap_or_else(|| not_a_number(file, *line, at, field))
    };
    let may_be_missing = || match &seen.first_missing {
        Some(first) if !filled => Err(refused(first)),
        _ => Ok(()),
    };
    if wish == Some(Wish::LeaveOut) {
        return Ok(Role::LeftOut(LeftOut::AsAsked));
    }
    let category = wish == Some(Wish::Category);
    if seen.missing == rows && filled {
        return Ok(Role::LeftOut(LeftOut::Empty));
    }
    if !category && seen.dates + seen.others == 0 {
        let distinct = seen.is_id && !seen.repeats && rows >= PLAIN;
        if wish.is_none() && distinct && seen.numbers == rows {
            return Ok(Role::LeftOut(LeftOut::Id));
        }
        may_be_missing()?;
        return Ok(Role::Number { fill: filled.then_some(0.0), missing: seen.missing });
    }
    if !category && seen.numbers >= seen.others + seen.dates {
        let first = seen.first_word.as_ref().or(seen.first_missing.as_ref());
        return Err(first.map_or_else(|| DataError::Empty { file: options.path.clone() }, refused));
    }
    if !category && seen.others == 0 && seen.numbers == 0 {
        return Ok(Role::LeftOut(LeftOut::Date));
    }
    may_be_missing()?;
    let every_row_another = !seen.repeats && seen.others == rows && rows >= PLAIN;
    if !category && every_row_another {
        return Ok(Role::LeftOut(LeftOut::Id));
    }
    if seen.too_many {
        return Ok(Role::LeftOut(LeftOut::ManyWords));
    }
    let words = seen.words.into_iter().collect();
    Ok(Role::Category { words, missing: filled.then_some(seen.missing), unseen: options.unseen })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(text: &str, options: &CsvOptions) -> Result<Vec<Role>, String> {
        let mut survey = Survey::new(options);
        let columns = survey.add(text.as_bytes(), &options.path).and_then(|()| survey.finish());
        let columns = columns.map_err(|error| error.to_string())?;
        Ok(columns.into_iter().map(|column| column.role).collect())
    }

    fn filling() -> CsvOptions {
        CsvOptions { missing: Missing::Fill, ..CsvOptions::new("t.csv") }
    }

    #[test]
    fn columns_are_told_apart_by_all_of_their_values() {
        let mut text = "id,day,city,code,age,note,empty,class\n".to_owned();
        for row in 0..120 {
            let city = ["Bern", "Rome", ""][row % 3];
            text += &format!(
                "{row},2024-01-{:02},{city},k{},{},n{},,{}\n",
                row % 28 + 1,
                row % 119,
                row % 50,
                row % 110,
                row % 2
            );
        }
        let roles = roles(&text, &filling()).unwrap();
        assert_eq!(roles[0], Role::LeftOut(LeftOut::Id));
        assert_eq!(roles[1], Role::LeftOut(LeftOut::Date));
        let words = vec!["Bern".to_owned(), "Rome".to_owned()];
        assert_eq!(roles[2], Role::Category { words, missing: Some(40), unseen: crate::Unseen::Ignore });
        assert_eq!(roles[3], Role::LeftOut(LeftOut::ManyWords));
        assert_eq!(roles[4], Role::Number { fill: Some(0.0), missing: 0 });
        assert_eq!(roles[5], Role::LeftOut(LeftOut::ManyWords));
        assert_eq!(roles[6], Role::LeftOut(LeftOut::Empty));
        assert_eq!(roles[7], Role::Target);
    }

    #[test]
    fn a_column_with_another_word_in_every_row_is_an_id_however_long_the_table_is() {
        for rows in [10, 101, 5_000] {
            let text: String = (0..rows).map(|row| format!("k{row:x}-z,{}\n", row % 2)).collect();
            let roles = roles(&("key,class\n".to_owned() + &text), &filling()).unwrap();
            assert_eq!(roles[0], Role::LeftOut(LeftOut::Id), "{rows} rows");
        }
    }

    #[test]
    fn none_is_a_word_among_words_and_nothing_among_numbers_and_dates() {
        let mut text = "garage,area,sold,class\n".to_owned();
        for row in 0..12 {
            let none = |other: String| if row % 3 == 0 { "None".to_owned() } else { other };
            let garage = none(["attached", "", "NA"][row % 3].to_owned());
            let (area, sold) = (none(format!("{row}.5")), none(format!("\"Jan {row}, 2024\"")));
            text += &format!("{garage},{area},{sold},{}\n", row % 2);
        }
        let found = roles(&text, &filling()).unwrap();
        // With nothing but `None` and holes there is no word that it could be one of.
        assert_eq!(found[0], Role::LeftOut(LeftOut::Empty));
        let found = roles(&text.replace("NA", "carport"), &filling()).unwrap();
        let words = vec!["None".to_owned(), "carport".to_owned()];
        assert_eq!(found[0], Role::Category { words, missing: Some(4), unseen: crate::Unseen::Ignore });
        assert_eq!(found[1], Role::Number { fill: Some(0.0), missing: 4 });
        assert_eq!(found[2], Role::LeftOut(LeftOut::Date));
        let refused = roles(&text.replace("NA", "carport").replace("\n,", "\nx,"), &CsvOptions::new("t.csv"));
        assert!(refused.unwrap_err().contains("line 2, column 2 (area): \"None\" is not a number"));
    }

    #[test]
    fn what_the_configuration_says_of_columns_comes_first() {
        let text = "a,zip,c\n1,8001,0\n2,8002,1\n";
        let with = |rules: &[&str]| {
            let columns = rules.iter().map(|rule| rule.parse().unwrap()).collect();
            roles(text, &CsvOptions { columns, ..filling() })
        };
        let number = Role::Number { fill: Some(0.0), missing: 0 };
        let left_out = Role::LeftOut(LeftOut::AsAsked);
        assert_eq!(with(&["a"]).unwrap(), [number.clone(), left_out.clone(), Role::Target]);
        assert_eq!(with(&["-a"]).unwrap(), [left_out, number.clone(), Role::Target]);
        let roles = with(&["zip:category"]).unwrap();
        assert_eq!(roles[0], number);
        assert!(matches!(&roles[1], Role::Category { words, .. } if words == &["8001", "8002"]));
        assert!(with(&["age"]).unwrap_err().contains("no column \"age\", only a, zip, c"));
        assert!(with(&["7"]).unwrap_err().contains("no column 7"));
    }

    #[test]
    fn a_word_among_numbers_and_a_missing_value_that_is_refused_are_named() {
        let mixed = roles("a,b\n1,0\nx,1\n3,0\n", &filling()).unwrap_err();
        assert!(mixed.contains("line 3, column 1 (a): \"x\" is not a number"), "{mixed}");
        let missing = roles("a,b\n1,0\n,1\n", &CsvOptions::new("t.csv")).unwrap_err();
        assert!(missing.contains("line 3, column 1 (a): \"\" is not a number"), "{missing}");
    }
}
