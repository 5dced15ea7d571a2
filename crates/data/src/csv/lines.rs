//! Lines and fields of a text table, with their numbers for messages.
//!
//! It does not know which column is which.

use crate::DataError;
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// A reader of lines that knows how they are separated into fields.
pub(super) struct Lines<R> {
    text: R,
    file: PathBuf,
    delimiter: Option<char>,
    buffer: Vec<u8>,
    number: u64,
}

/// One line that is not empty, cut into fields.
pub(super) struct Line<'a> {
    /// Its number in the file, from 1.
    pub number: u64,
    fields: Vec<&'a str>,
}

impl<R: BufRead> Lines<R> {
    /// Passes over the first `skip` lines.
    pub fn new(text: R, file: &Path, skip: u64, delimiter: Option<char>) -> Result<Self, DataError> {
        let mut lines = Self { text, file: file.to_owned(), delimiter, buffer: Vec::new(), number: 0 };
        for _ in 0..skip {
            lines.advance()?;
        }
        Ok(lines)
    }

    fn advance(&mut self) -> Result<bool, DataError> {
        self.buffer.clear();
        let read = self.text.read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|source| DataError::Io { file: self.file.clone(), source })?;
        self.number += 1;
        Ok(read > 0)
    }

    /// The next line that is not empty.
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>, DataError> {
        loop {
            if !self.advance()? {
                return Ok(None);
            }
            if !self.buffer.trim_ascii().is_empty() {
                break;
            }
        }
        let (file, number) = (&self.file, self.number);
        let start = if number == 1 {
            self.buffer.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&self.buffer)
        } else {
            &self.buffer
        };
        let text = std::str::from_utf8(start).map_err(|error| DataError::NotANumber {
            file: file.clone(),
            line: number,
            column: 1,
            name: None,
            text: format!("bytes that are no UTF-8 at {}", error.valid_up_to()),
        })?;
        let text = text.trim_end_matches(['\n', '\r']);
        let delimiter = *self.delimiter.get_or_insert_with(|| guess(text));
        Ok(Some(Line { number, fields: split(text, delimiter) }))
    }
}

/// What separates the columns of a first line.
pub(super) fn guess(line: &str) -> char {
    [',', ';', '\t'].into_iter().find(|c| line.contains(*c)).unwrap_or(' ')
}

/// Cuts a line into fields without the spaces and quotes around them. A delimiter inside quotes belongs to the field.
pub(super) fn split(line: &str, delimiter: char) -> Vec<&str> {
    if delimiter == ' ' {
        return line.split_whitespace().collect();
    }
    let mut quoted = false;
    let parts = line.split(move |c| {
        quoted ^= c == '"';
        c == delimiter && !quoted
    });
    parts
        .map(|field| {
            let field = field.trim();
            field.strip_prefix('"').and_then(|f| f.strip_suffix('"')).unwrap_or(field)
        })
        .collect()
}

impl Line<'_> {
    pub fn fields(&self) -> &[&str] {
        &self.fields
    }
}

/// A field as a finite number.
pub(super) fn number(file: &Path, line: u64, at: ColumnRef<'_>, field: &str) -> Result<f32, DataError> {
    let value: f32 = field.trim().parse().map_err(|_| not_a_number(file, line, at, field))?;
    if value.is_finite() {
        return Ok(value);
    }
    Err(DataError::FieldNotFinite {
        file: file.to_owned(),
        line,
        column: at.column + 1,
        name: at.name.map(str::to_owned),
        value: f64::from(value),
    })
}

/// The error about a field that is no number.
pub(super) fn not_a_number(file: &Path, line: u64, at: ColumnRef<'_>, field: &str) -> DataError {
    DataError::NotANumber {
        file: file.to_owned(),
        line,
        column: at.column + 1,
        name: at.name.map(str::to_owned),
        text: field.to_owned(),
    }
}

/// A column of a table, as messages show it.
#[derive(Clone, Copy)]
pub(super) struct ColumnRef<'a> {
    /// From 0.
    pub column: usize,
    /// Its name in the header.
    pub name: Option<&'a str>,
}

impl ColumnRef<'_> {
    /// Its name, or its number from 1.
    pub fn shown(self) -> String {
        self.name.map_or_else(|| (self.column + 1).to_string(), |name| format!("{name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lose_spaces_and_quotes_but_keep_a_quoted_delimiter() {
        assert_eq!(split(" 1, \"a, b\" ,3 ", ','), ["1", "a, b", "3"]);
        assert_eq!(split("1  2\t3", ' '), ["1", "2", "3"]);
        assert_eq!(split("1;;2", ';'), ["1", "", "2"]);
    }

    #[test]
    fn the_delimiter_is_found_in_the_first_line() {
        assert_eq!([guess("1,2;3"), guess("1;2"), guess("1\t2"), guess("1 2")], [',', ';', '\t', ' ']);
    }

    #[test]
    fn empty_lines_and_line_ends_of_other_systems_do_not_count() {
        let mut lines =
            Lines::new(&b"skipped\n\xEF\xBB\xBFa,b\r\n\r\n  \n1,2"[..], Path::new("t"), 1, None).unwrap();
        assert_eq!(lines.next_line().unwrap().unwrap().fields().len(), 2);
        let last = lines.next_line().unwrap().unwrap();
        assert_eq!((last.number, last.fields()), (5, &["1", "2"][..]));
        assert!(lines.next_line().unwrap().is_none());
    }
}
