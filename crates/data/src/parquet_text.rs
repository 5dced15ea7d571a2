//! The rows of a Parquet file as the text of a table: a line of names, then one for each row. So a Parquet table becomes what a text
//! table with the same fields becomes.
//!
//! It does not know which column is which.

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What every Parquet file begins and ends with.
const MAGIC: &[u8; 4] = b"PAR1";
const DAY: i64 = 86_400;

/// Text that is written as it is read.
pub struct ParquetText {
    rows: RowIter<'static>,
    /// Lines that nobody has read, from `taken`.
    text: Vec<u8>,
    taken: usize,
    /// Rows so far.
    row: u64,
}

impl ParquetText {
    /// Opens a file.
    ///
    /// *Errors*: it is no Parquet file, or is damaged; a column that has no single value in each row.
    pub fn open(file: File) -> io::Result<Self> {
        let reader = guarded(|| SerializedFileReader::new(file)).map_err(|error| wrong(&error))?;
        let mut text = Vec::new();
        for (at, column) in reader.metadata().file_metadata().schema().get_fields().iter().enumerate() {
            if let Some(holds) = not_a_value(column) {
                let problem =
                    format!("column {:?} holds {holds}, and a field of a table is one value", column.name());
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            separate(&mut text, at);
            quoted(&mut text, column.name());
        }
        text.push(b'\n');
        Ok(Self { rows: reader.into_iter(), text, taken: 0, row: 0 })
    }

    /// Opens a file that begins as a Parquet file does; gives back any other, at its start.
    ///
    /// *Errors*: as [`ParquetText::open`].
    pub fn of(mut file: File) -> io::Result<Result<Self, File>> {
        let mut start = Vec::new();
        (&file).take(MAGIC.len() as u64).read_to_end(&mut start)?;
        file.rewind()?;
        if start == MAGIC { Self::open(file).map(Ok) } else { Ok(Err(file)) }
    }
}

impl Read for ParquetText {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.text.len() {
            self.text.clear();
            self.taken = 0;
            let rows = &mut self.rows;
            let row = guarded(|| rows.next().transpose());
            self.row += 1;
            match row.map_err(|error| io::Error::other(format!("row {}: {error}", self.row)))? {
                Some(row) => line(&mut self.text, &row),
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.text.len() - self.taken);
        buffer[..count].copy_from_slice(&self.text[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

/// What the reader says of a way of packing that it was not built with, which it names behind.
const NOT_BUILT: &str = "Disabled feature at compile time: ";

/// What a damaged file makes of the reader, which is not written for all of them; and its error in words for people.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    let caught = catch_unwind(AssertUnwindSafe(work));
    match caught.unwrap_or_else(|_| Err(ParquetError::General("the file is damaged".to_owned()))) {
        Err(ParquetError::General(problem)) => {
            Err(ParquetError::General(match problem.strip_prefix(NOT_BUILT) {
                Some(codec) => format!(
                    "its columns are packed by {codec}, and dtrain unpacks snappy, zstd, gzip and lz4"
                ),
                None => problem,
            }))
        }
        result => result,
    }
}

fn wrong(error: &ParquetError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// What a column holds that is no value of a table.
fn not_a_value(column: &Type) -> Option<&'static str> {
    let info = column.get_basic_info();
    if column.is_group() || info.repetition() == Repetition::REPEATED {
        return Some("a list, a map or a structure");
    }
    let is_text =
        matches!(info.converted_type(), ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON)
            || matches!(
                info.logical_type_ref(),
                Some(LogicalType::String | LogicalType::Enum | LogicalType::Json)
            );
    let is_number = info.converted_type() == ConvertedType::DECIMAL
        || matches!(info.logical_type_ref(), Some(LogicalType::Decimal { .. } | LogicalType::Float16));
    match column.get_physical_type() {
        Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY if !is_text && !is_number => Some("bytes"),
        _ => None,
    }
}

fn line(text: &mut Vec<u8>, row: &Row) {
    for (at, (_, field)) in row.get_column_iter().enumerate() {
        separate(text, at);
        match field {
            // Missing is what an empty field is.
            Field::Null => {}
            Field::Bool(value) => text.push(if *value { b'1' } else { b'0' }),
            Field::Str(value) => quoted(text, value),
            Field::Float16(value) => text.extend_from_slice(value.to_f32().to_string().as_bytes()),
            Field::Float(value) => text.extend_from_slice(value.to_string().as_bytes()),
            Field::Double(value) => text.extend_from_slice(value.to_string().as_bytes()),
            Field::Date(days) => moment(text, i64::from(*days) * DAY),
            Field::TimestampMillis(at) => moment(text, at.div_euclid(1_000)),
            Field::TimestampMicros(at) => moment(text, at.div_euclid(1_000_000)),
            other => text.extend_from_slice(other.to_string().as_bytes()),
        }
    }
    text.push(b'\n');
}

fn separate(text: &mut Vec<u8>, column: usize) {
    if column > 0 {
        text.push(b',');
    }
}

fn quoted(text: &mut Vec<u8>, value: &str) {
    text.push(b'"');
    text.extend_from_slice(value.replace('"', "\"\"").as_bytes());
    text.push(b'"');
}

/// A moment by its seconds since 1970, as a date and a time.
///
/// *Source*: Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn moment(text: &mut Vec<u8>, seconds: i64) {
    let (days, second) = (seconds.div_euclid(DAY) + 719_468, seconds.rem_euclid(DAY));
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let shown = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
    text.extend_from_slice(shown.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_of_packing_that_is_not_there_is_told_with_those_that_are() {
        let problem = ParquetError::General(format!("{NOT_BUILT}brotli"));
        let told = guarded::<()>(|| Err(problem)).unwrap_err().to_string();
        assert!(told.contains("packed by brotli, and dtrain unpacks snappy, zstd"), "{told}");
    }

    #[test]
    fn moments_are_dates_and_times() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_704_276_000, "2024-01-03T10:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            let mut text = Vec::new();
            moment(&mut text, seconds);
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }
}
