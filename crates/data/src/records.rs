//! Records of files: JSON objects, each of which is a line of a JSON Lines file, an element of a list in a JSON file, or a row of a Parquet file.
//!
//! It does not know what records are read for.

use crate::DataError;
use crate::bytes::{Counted, plain_name, unpacked};
use crate::parquet_text::guarded;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::RowIter;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NEEDS: &str = "it is a .jsonl, a .json or a .parquet file; all but Parquet may be .gz or .zst";
const BYTE_ORDER: &[u8] = &[0xef, 0xbb, 0xbf];
pub(crate) const PARQUET: &[u8] = b"PAR1";
/// The longest line of a JSON Lines file: what is longer is no line. *Units*: bytes.
const LONGEST_LINE: u64 = 1 << 30;
/// The longest list of a JSON file, which is read as a whole. *Units*: bytes.
const LONGEST_LIST: u64 = 4 << 30;

/// One with its line, or its number in a list or a table, from 1.
pub type Record = (u64, Map<String, Value>);

/// The records of a file.
pub struct Records {
    file: PathBuf,
    kind: Kind,
    read: Arc<AtomicU64>,
    size: Option<u64>,
}

enum Kind {
    Lines { reader: Box<dyn BufRead + Send>, line: u64 },
    List { elements: std::vec::IntoIter<Value>, number: u64 },
    Rows { rows: Box<RowIter<'static>>, row: u64, count: u64 },
    Over,
}

impl Records {
    /// Opens a file, or JSON Lines on standard input for `-`: its first bytes and what its name ends with say what it is.
    ///
    /// *Errors*: it is not there or not readable; a Parquet file or a list that is damaged. *Blocks* on it.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        if path == Path::new("-") {
            let (counted, read) = Counted::new(std::io::stdin());
            let file = PathBuf::from("standard input");
            let reader = unpacked(counted).map_err(|source| DataError::io(&file, NEEDS, source))?;
            return Ok(Self { file, kind: Kind::Lines { reader, line: 0 }, read, size: None });
        }
        let system = |source| DataError::io(path, NEEDS, source);
        let (mut file, size) = opened(path, NEEDS)?;
        let (kind, read) = if size.is_some() && begins_as_parquet(&mut file).map_err(system)? {
            (rows(path, file)?, Arc::default())
        } else {
            let (counted, read) = Counted::new(file);
            let mut reader = unpacked(counted).map_err(system)?;
            let name = path.to_string_lossy().to_lowercase();
            let kind = match plain_name(&name).ends_with(".json") {
                true => list(path, &mut reader)?,
                false => Kind::Lines { reader, line: 0 },
            };
            (kind, read)
        };
        Ok(Self { file: path.to_owned(), kind, read, size })
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

    fn record(&mut self) -> Result<Option<Record>, DataError> {
        match &mut self.kind {
            Kind::Lines { reader, line } => {
                Ok(next_object(&self.file, reader, line, NEEDS)?.map(|object| (*line, object)))
            }
            Kind::List { elements, number } => {
                *number += 1;
                match elements.next() {
                    None => Ok(None),
                    Some(Value::Object(object)) => Ok(Some((*number, object))),
                    Some(_) => Err(wrong(&self.file, Some(*number), "it is no JSON object".into())),
                }
            }
            Kind::Rows { rows, row, .. } => {
                *row += 1;
                let next = guarded(|| rows.next().transpose());
                let next = next.map_err(|error| wrong(&self.file, Some(*row), error.to_string()))?;
                Ok(next.map(|next| {
                    let fields = next.get_column_iter();
                    (*row, fields.map(|(name, field)| (name.clone(), value_of(field))).collect())
                }))
            }
            Kind::Over => Ok(None),
        }
    }
}

impl Iterator for Records {
    type Item = Result<Record, DataError>;

    /// *Blocks* on the file. After an error there is nothing more.
    fn next(&mut self) -> Option<Self::Item> {
        let record = self.record();
        if !matches!(record, Ok(Some(_))) {
            self.kind = Kind::Over;
        }
        record.transpose()
    }
}

/// How much of a file is read by its rows. *Units*: bytes.
pub(crate) fn read_by_rows(size: Option<u64>, row: u64, count: u64) -> u64 {
    (size.unwrap_or(0) as f64 * (row as f64 / count.max(1) as f64)) as u64
}

fn wrong(file: &Path, line: Option<u64>, problem: String) -> DataError {
    DataError::NoDocument { file: file.to_owned(), line, problem }
}

/// A file and its size, if it is a plain one. *Errors*: of the system.
pub(crate) fn opened(path: &Path, needs: &'static str) -> Result<(File, Option<u64>), DataError> {
    let system = |source| DataError::io(path, needs, source);
    let file = File::open(path).map_err(system)?;
    let about = file.metadata().map_err(system)?;
    let size = about.is_file().then_some(about.len());
    Ok((file, size))
}

/// Whether a file begins as Parquet does; it stands at its beginning then.
pub(crate) fn begins_as_parquet(file: &mut File) -> std::io::Result<bool> {
    let mut start = Vec::new();
    (&*file).take(PARQUET.len() as u64).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start == PARQUET)
}

/// The object of the next line that is not empty, behind `line` lines.
pub(crate) fn next_object(
    file: &Path,
    reader: &mut dyn BufRead,
    line: &mut u64,
    needs: &'static str,
) -> Result<Option<Map<String, Value>>, DataError> {
    loop {
        let mut bytes = Vec::new();
        let read = reader.take(LONGEST_LINE).read_until(b'\n', &mut bytes);
        read.map_err(|source| DataError::io(file, needs, source))?;
        *line += 1;
        if bytes.len() as u64 == LONGEST_LINE {
            return Err(wrong(file, Some(*line), "it has no end".into()));
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        // Some programs begin a file with a mark of the order of bytes.
        let text = bytes.strip_prefix(if *line == 1 { BYTE_ORDER } else { b"" }).unwrap_or(&bytes);
        if text.trim_ascii().is_empty() {
            continue;
        }
        let object = serde_json::from_slice(text);
        return object
            .map(Some)
            .map_err(|error| wrong(file, Some(*line), format!("it is no JSON object: {error}")));
    }
}

/// The elements of a list.
fn list(path: &Path, reader: &mut dyn BufRead) -> Result<Kind, DataError> {
    let mut bytes = Vec::new();
    let read = reader.take(LONGEST_LIST).read_to_end(&mut bytes);
    read.map_err(|source| DataError::io(path, NEEDS, source))?;
    let elements: Result<Vec<Value>, _> = serde_json::from_slice(&bytes);
    let problem = |error| {
        format!(
            "it is no JSON list, which a .json file of records is ({error}); JSON Lines are called .jsonl"
        )
    };
    let elements = elements.map_err(|error| wrong(path, None, problem(error)))?;
    Ok(Kind::List { elements: elements.into_iter(), number: 0 })
}

fn rows(path: &Path, file: File) -> Result<Kind, DataError> {
    let damaged = |error: parquet::errors::ParquetError| wrong(path, None, error.to_string());
    let reader = guarded(|| SerializedFileReader::new(file)).map_err(damaged)?;
    let count = reader.metadata().file_metadata().num_rows().max(0) as u64;
    let rows = guarded(|| Ok(reader.into_iter())).map_err(damaged)?;
    Ok(Kind::Rows { rows: Box::new(rows), row: 0, count })
}

/// A field as JSON: texts, truth values, lists and structures of them; null for what is something else.
fn value_of(field: &Field) -> Value {
    match field {
        Field::Str(text) => Value::String(text.clone()),
        Field::Bool(truth) => Value::Bool(*truth),
        Field::ListInternal(list) => list.elements().iter().map(value_of).collect(),
        Field::Group(row) => {
            let fields = row.get_column_iter();
            Value::Object(fields.map(|(name, field)| (name.clone(), value_of(field))).collect())
        }
        _ => Value::Null,
    }
}
