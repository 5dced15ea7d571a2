//! Lines and fields of a text table, with their numbers for messages.
//!
//! It does not know which column is which.

use super::quotes::{LONGEST_ROW, Quote, RowEnds, guess};
use crate::DataError;
use std::borrow::Cow;
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// A reader of lines that knows how they are separated into fields.
pub(crate) struct Lines<R> {
    text: R,
    file: PathBuf,
    delimiter: Option<char>,
    buffer: Vec<u8>,
    number: u64,
}

/// One row, which is no empty line, cut into fields.
pub(crate) struct Line<'a> {
    /// The number of its first line in the file, from 1.
    pub number: u64,
    fields: Vec<Cow<'a, str>>,
}

impl<R: BufRead> Lines<R> {
    /// Passes over the first `skip` lines.
    pub fn new(text: R, file: &Path, skip: u64, delimiter: Option<char>) -> Result<Self, DataError> {
        let mut lines = Self { text, file: file.to_owned(), delimiter, buffer: Vec::new(), number: 0 };
        for _ in 0..skip {
            lines.advance()?;
            lines.buffer.clear();
        }
        Ok(lines)
    }

    /// Adds a line to the buffer.
    fn advance(&mut self) -> Result<bool, DataError> {
        let read = self.text.read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|source| DataError::Io { file: self.file.clone(), source })?;
        self.number += 1;
        Ok(read > 0)
    }

    /// The next row that is not empty.
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>, DataError> {
        loop {
            self.buffer.clear();
            if !self.advance()? {
                return Ok(None);
            }
            if !self.buffer.trim_ascii().is_empty() {
                break;
            }
        }
        let number = self.number;
        let delimiter = *self.delimiter.get_or_insert_with(|| guess(&String::from_utf8_lossy(&self.buffer)));
        self.finish_row(number, delimiter)?;
        let file = &self.file;
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
        Ok(Some(Line { number, fields: split(text, delimiter) }))
    }
}

impl<R: BufRead> Lines<R> {
    /// Adds lines to the buffer while the row in it goes on inside quotes.
    fn finish_row(&mut self, line: u64, delimiter: char) -> Result<(), DataError> {
        let ends = RowEnds::new("", Some(delimiter));
        let (mut from, mut quote) = (0, Quote::Start);
        loop {
            quote = ends.goes_on(quote, &self.buffer[from..]);
            if quote != Quote::Open {
                return Ok(());
            }
            from = self.buffer.len();
            if from > LONGEST_ROW || !self.advance()? {
                return Err(DataError::OpenQuote { file: self.file.clone(), line });
            }
        }
    }
}

/// Cuts a row into fields without the spaces and quotes around them. A delimiter inside quotes belongs to the field, and two quotes
/// inside are one.
pub(crate) fn split(line: &str, delimiter: char) -> Vec<Cow<'_, str>> {
    if delimiter == ' ' {
        return line.split_whitespace().map(Cow::Borrowed).collect();
    }
    if !line.contains('"') {
        return line.split(delimiter).map(|field| Cow::Borrowed(trimmed(field))).collect();
    }
    let mut quote = Quote::Start;
    let parts = line.split(move |c| {
        let ends = c == delimiter && quote != Quote::Open;
        quote = quote.after(c, delimiter);
        ends
    });
    parts
        .map(|field| {
            let field = trimmed(field);
            match field.strip_prefix('"').and_then(|field| field.strip_suffix('"')) {
                Some(inside) if inside.contains('"') => Cow::Owned(inside.replace("\"\"", "\"")),
                Some(inside) => Cow::Borrowed(inside),
                None => Cow::Borrowed(field),
            }
        })
        .collect()
}

impl Line<'_> {
    pub fn fields(&self) -> &[Cow<'_, str>] {
        &self.fields
    }
}

/// A field without the white space around it. Most have none, which their ends tell.
pub(crate) fn trimmed(field: &str) -> &str {
    match field.as_bytes() {
        [first, .., last] if first.is_ascii_graphic() && last.is_ascii_graphic() => field,
        [only] if only.is_ascii_graphic() => field,
        _ => field.trim(),
    }
}

/// A field as a finite number.
pub(crate) fn number(file: &Path, line: u64, at: ColumnRef<'_>, field: &str) -> Result<f32, DataError> {
    let value: f32 = trimmed(field).parse().map_err(|_| not_a_number(file, line, at, field))?;
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
pub(crate) fn not_a_number(file: &Path, line: u64, at: ColumnRef<'_>, field: &str) -> DataError {
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
pub(crate) struct ColumnRef<'a> {
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
        assert_eq!(split("5\" pipe,\"a\nb, \"\"c\"\"\",2", ','), ["5\" pipe", "a\nb, \"c\"", "2"]);
    }

    #[test]
    fn a_row_goes_on_over_lines_inside_quotes_and_a_quote_that_is_not_closed_is_named() {
        let text = &b"a,b\n\"1\n\n2\",3\n4,5\n6,\"7\n"[..];
        let mut lines = Lines::new(text, Path::new("t"), 0, None).unwrap();
        let mut next =
            || lines.next_line().map(|line| line.map(|line| (line.number, line.fields().join("|"))));
        assert_eq!(next().unwrap(), Some((1, "a|b".to_owned())));
        assert_eq!(next().unwrap(), Some((2, "1\n\n2|3".to_owned())));
        assert_eq!(next().unwrap(), Some((5, "4|5".to_owned())));
        assert_eq!(next().unwrap_err().to_string(), "t line 6: a quote is not closed");
    }

    #[test]
    fn empty_lines_and_line_ends_of_other_systems_do_not_count() {
        let mut lines =
            Lines::new(&b"skipped\n\xEF\xBB\xBFa,b\r\n\r\n  \n1,2"[..], Path::new("t"), 1, None).unwrap();
        assert_eq!(lines.next_line().unwrap().unwrap().fields().len(), 2);
        let last = lines.next_line().unwrap().unwrap();
        assert_eq!((last.number, last.fields().concat()), (5, "12".to_owned()));
        assert!(lines.next_line().unwrap().is_none());
    }
}
