//! Documents of files: a text is one, each line of a JSON Lines file is one, and each row of a Parquet file.
//!
//! A text comes in parts, so that it may be larger than memory. It does not know what documents are read for.

use crate::DataError;
use crate::bytes::{Counted, plain_name, unpacked};
use crate::parquet_text::guarded;
use crate::records::{begins_as_parquet, next_object, opened, read_by_rows};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, RowAccessor};
use parquet::schema::types::Type;
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NEEDS: &str = "it is a text, a .jsonl or a .parquet file; all but Parquet may be .gz or .zst";
/// A part of a text. *Units*: bytes.
const PART: u64 = 1 << 20;

/// What comes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextPart {
    /// More of a document.
    Text(String),
    /// A document is over.
    End,
}

/// The documents of a file, part by part.
pub struct Texts {
    file: PathBuf,
    kind: Kind,
    read: Arc<AtomicU64>,
    size: Option<u64>,
    /// A document has begun that has not ended.
    begun: bool,
}

enum Kind {
    /// Bytes that are the beginning of a character, and where they stand.
    Plain {
        reader: Box<dyn BufRead + Send>,
        tail: Vec<u8>,
        position: u64,
    },
    Lines {
        reader: Box<dyn BufRead + Send>,
        field: String,
        line: u64,
    },
    Rows {
        rows: Box<RowIter<'static>>,
        row: u64,
        count: u64,
    },
    Over,
}

impl Texts {
    /// Opens a file, or standard input for `-`: what its name ends with, or its first bytes, say what it is. `field`: of an object or a row what is read.
    ///
    /// *Errors*: it is not there or not readable; a Parquet file without a column of texts of this name. *Blocks* on it.
    pub fn open(path: &Path, field: &str) -> Result<Self, DataError> {
        if path == Path::new("-") {
            let (counted, read) = Counted::new(std::io::stdin());
            let file = PathBuf::from("standard input");
            let reader = unpacked(counted).map_err(|source| DataError::io(&file, NEEDS, source))?;
            let kind = Kind::Plain { reader, tail: Vec::new(), position: 0 };
            return Ok(Self { file, kind, read, size: None, begun: false });
        }
        let system = |source| DataError::io(path, NEEDS, source);
        let (mut file, size) = opened(path, NEEDS)?;
        let (kind, read) = if size.is_some() && begins_as_parquet(&mut file).map_err(system)? {
            (rows(path, file, field)?, Arc::default())
        } else {
            let (counted, read) = Counted::new(file);
            let reader = unpacked(counted).map_err(system)?;
            let name = path.to_string_lossy().to_lowercase();
            let name = plain_name(&name);
            let kind = match name.ends_with(".jsonl") || name.ends_with(".ndjson") {
                true => Kind::Lines { reader, field: field.to_owned(), line: 0 },
                false => Kind::Plain { reader, tail: Vec::new(), position: 0 },
            };
            (kind, read)
        };
        Ok(Self { file: path.to_owned(), kind, read, size, begun: false })
    }

    /// How large the file is, if that is known. *Units*: bytes.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// How much of it is read. *Units*: bytes of the file; of a Parquet file by its rows.
    #[must_use]
    pub fn read(&self) -> u64 {
        match &self.kind {
            Kind::Rows { row, count, .. } => read_by_rows(self.size, *row, *count),
            _ => self.read.load(Ordering::Relaxed),
        }
    }

    fn part(&mut self) -> Result<Option<TextPart>, DataError> {
        if self.begun && !matches!(self.kind, Kind::Plain { .. }) {
            self.begun = false;
            return Ok(Some(TextPart::End));
        }
        let text = match &mut self.kind {
            Kind::Plain { reader, tail, position } => more(&self.file, reader, (tail, position))?,
            Kind::Lines { reader, field, line } => next_line(&self.file, reader, (field, line))?,
            Kind::Rows { rows, row, .. } => next_row(&self.file, rows, row)?,
            Kind::Over => None,
        };
        self.begun |= text.is_some();
        if text.is_none() {
            self.kind = Kind::Over;
        }
        Ok(match text {
            Some(text) => Some(TextPart::Text(text)),
            None => std::mem::take(&mut self.begun).then_some(TextPart::End),
        })
    }
}

impl Iterator for Texts {
    type Item = Result<TextPart, DataError>;

    /// *Blocks* on the file. After an error there is nothing more.
    fn next(&mut self) -> Option<Self::Item> {
        let part = self.part();
        if part.is_err() {
            (self.kind, self.begun) = (Kind::Over, false);
        }
        part.transpose()
    }
}

/// What a text has next.
fn more(
    file: &Path,
    reader: &mut dyn BufRead,
    (tail, position): (&mut Vec<u8>, &mut u64),
) -> Result<Option<String>, DataError> {
    let mut bytes = std::mem::take(tail);
    let begun = bytes.len();
    reader.take(PART).read_to_end(&mut bytes).map_err(|source| DataError::io(file, NEEDS, source))?;
    let is_over = bytes.len() == begun;
    let (whole, wrong) = match std::str::from_utf8(&bytes) {
        Ok(_) => (bytes.len(), false),
        // A character may go on in what comes next.
        Err(error) => (error.valid_up_to(), error.error_len().is_some() || is_over),
    };
    if wrong {
        let problem = format!("byte {} is no UTF-8", *position + whole as u64);
        return Err(DataError::NoDocument { file: file.to_owned(), line: None, problem });
    }
    *tail = bytes.split_off(whole);
    *position += whole as u64;
    // Looked through above.
    let text = String::from_utf8(bytes).unwrap_or_default();
    Ok((!is_over).then_some(text))
}

/// The document of the next line that is not empty.
fn next_line(
    file: &Path,
    reader: &mut dyn BufRead,
    (field, line): (&str, &mut u64),
) -> Result<Option<String>, DataError> {
    let Some(object) = next_object(file, reader, line, NEEDS)? else { return Ok(None) };
    let wrong = |problem: String| DataError::NoDocument { file: file.to_owned(), line: Some(*line), problem };
    match object.get(field) {
        Some(serde_json::Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(format!("{field:?} is no text"))),
        None => Err(wrong(format!("it has no {field:?}, but {}", named(object.keys().map(String::as_str))))),
    }
}

/// The document of the next row that has one.
fn next_row(file: &Path, rows: &mut RowIter<'_>, row: &mut u64) -> Result<Option<String>, DataError> {
    loop {
        let next = guarded(|| rows.next().transpose());
        *row += 1;
        let wrong =
            |problem: String| DataError::NoDocument { file: file.to_owned(), line: Some(*row), problem };
        let Some(next) = next.map_err(|error| wrong(error.to_string()))? else { return Ok(None) };
        match next.get_column_iter().next() {
            Some((_, Field::Str(_))) => {
                return Ok(next.get_string(0).ok().cloned());
            }
            Some((_, Field::Null)) => {}
            _ => return Err(wrong("it is no text".into())),
        }
    }
}

/// The rows of a Parquet file, of which one column is read.
fn rows(path: &Path, file: File, field: &str) -> Result<Kind, DataError> {
    let wrong = |problem: String| DataError::NoDocument { file: path.to_owned(), line: None, problem };
    let reader = guarded(|| SerializedFileReader::new(file)).map_err(|error| wrong(error.to_string()))?;
    let about = reader.metadata().file_metadata();
    let columns = about.schema().get_fields();
    let Some(column) = columns.iter().find(|column| column.name() == field) else {
        let names = named(columns.iter().map(|column| column.name()));
        return Err(wrong(format!("it has no column {field:?}, but {names}")));
    };
    let schema =
        Type::group_type_builder(about.schema().name()).with_fields(vec![Arc::clone(column)]).build();
    let count = about.num_rows().max(0) as u64;
    let rows = schema.and_then(|schema| reader.into_iter().project(Some(schema)));
    let rows = Box::new(rows.map_err(|error| wrong(error.to_string()))?);
    Ok(Kind::Rows { rows, row: 0, count })
}

/// Some names, for people.
fn named<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 8;
    let names: Vec<&str> = names.collect();
    let more = if names.len() > MOST { ", ..." } else { "" };
    match names.is_empty() {
        true => "nothing".to_owned(),
        false => names[..names.len().min(MOST)].join(", ") + more,
    }
}
