//! TensorBoard event files, written by hand: the format is a few frames and a few fields.
//!
//! A file is a sequence of records; a record is a length, its checksum, a protobuf message, and its checksum. Only
//! scalars are written. It does not know what the scalars mean.
//!
//! *Source*: tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto, .../summary.proto.

use crate::{TelemetryError, UnixTime, hostname};
use dtrain_types::Step;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// What every reader expects in the first record.
const VERSION: &[u8] = b"brain.Event:2";
/// Files that one process may begin in one second in one folder; more is an error elsewhere.
const MOST_FILES: u32 = 1000;

/// Fields of `Event`.
mod event {
    pub const WALL_TIME: u32 = 1;
    pub const STEP: u32 = 2;
    pub const FILE_VERSION: u32 = 3;
    pub const SUMMARY: u32 = 5;
    pub const SESSION_LOG: u32 = 7;
}
/// Field of `Summary`: one value.
const SUMMARY_VALUE: u32 = 1;
/// Fields of `Summary.Value`.
const VALUE_TAG: u32 = 1;
const VALUE_SIMPLE: u32 = 2;
/// Field and value of `SessionLog` that say that a session starts.
const SESSION_STATUS: u32 = 1;
const SESSION_START: u64 = 1;

/// A writer of scalars that TensorBoard reads.
pub struct TensorBoard {
    out: BufWriter<File>,
    path: PathBuf,
    message: Message,
    value: Message,
    summary: Message,
}

impl TensorBoard {
    /// Begins a new event file in `folder`, which is made if it is not there.
    ///
    /// With `resume`, the number of updates in the checkpoint that the run goes on from, TensorBoard forgets the
    /// points after it that an earlier file holds: those steps are about to be computed again.
    ///
    /// *Errors*: the folder or file cannot be made or written.
    pub fn create(folder: &Path, now: UnixTime, resume: Option<Step>) -> Result<Self, TelemetryError> {
        let open =
            |path: &Path| TelemetryError::Open { path: path.to_owned(), source: io::ErrorKind::Other.into() };
        fs::create_dir_all(folder)
            .map_err(|source| TelemetryError::Open { path: folder.to_owned(), source })?;
        let (seconds, host, pid) = (now.0.max(0.0) as u64, hostname(), std::process::id());
        let mut made = Err(open(folder));
        for number in 0..MOST_FILES {
            let path = folder.join(format!("events.out.tfevents.{seconds:010}.{host}.{pid}.{number}"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    made = Ok((path, file));
                    break;
                }
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(TelemetryError::Open { path, source }),
            }
        }
        let (path, file) = made?;
        let out = BufWriter::new(file);
        let mut board =
            Self { out, path, message: Message::new(), value: Message::new(), summary: Message::new() };
        board.begin(now, Step(0));
        board.message.bytes(event::FILE_VERSION, VERSION);
        board.write()?;
        if let Some(step) = resume {
            board.value.clear();
            board.value.number(SESSION_STATUS, SESSION_START);
            board.begin(now, step.next());
            board.message.bytes(event::SESSION_LOG, &board.value.0);
            board.write()?;
        }
        Ok(board)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one point of one curve; nothing is allocated once the buffers have grown.
    ///
    /// *Errors*: the file does not take it.
    pub fn scalar(&mut self, now: UnixTime, step: Step, tag: &str, value: f64) -> Result<(), TelemetryError> {
        self.value.clear();
        self.value.bytes(VALUE_TAG, tag.as_bytes());
        self.value.float(VALUE_SIMPLE, value as f32);
        self.summary.clear();
        self.summary.bytes(SUMMARY_VALUE, &self.value.0);
        self.begin(now, step);
        self.message.bytes(event::SUMMARY, &self.summary.0);
        self.write()
    }

    /// Hands everything written so far to the system.
    ///
    /// *Errors*: the file does not take it.
    pub fn flush(&mut self) -> Result<(), TelemetryError> {
        self.out
            .flush()
            .map_err(|source| TelemetryError::Write { to: self.path.display().to_string(), source })
    }

    fn begin(&mut self, now: UnixTime, step: Step) {
        self.message.clear();
        self.message.double(event::WALL_TIME, now.0);
        self.message.number(event::STEP, step.0);
    }

    fn write(&mut self) -> Result<(), TelemetryError> {
        let written = write_record(&mut self.out, &self.message.0);
        written.map_err(|source| TelemetryError::Write { to: self.path.display().to_string(), source })
    }
}

impl Drop for TensorBoard {
    fn drop(&mut self) {
        // Whoever must know calls `flush`; here nobody is left to be told but the log.
        if let Err(error) = self.flush() {
            tracing::warn!(%error, "the last points are lost");
        }
    }
}

/// Writes one record with its two checksums.
fn write_record(out: &mut impl Write, data: &[u8]) -> io::Result<()> {
    let length = (data.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked(&length).to_le_bytes())?;
    out.write_all(data)?;
    out.write_all(&masked(data).to_le_bytes())
}

/// The checksum of records: turned and shifted, because a checksum of data that holds checksums is weak.
fn masked(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A protobuf message that is being put together.
struct Message(Vec<u8>);

impl Message {
    fn new() -> Self {
        Self(Vec::with_capacity(128))
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn number(&mut self, field: u32, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    fn double(&mut self, field: u32, value: f64) {
        self.key(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, value: &[u8]) {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    fn float(&mut self, field: u32, value: f32) {
        self.key(field, 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_bytes_of_the_reference_writer() {
        let mut out = Vec::new();
        write_record(&mut out, b"hello").unwrap();
        // Written by tensorboard's own RecordWriter.
        assert_eq!(out[..8], [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(out[8..12], REFERENCE_LENGTH_CHECK);
        assert_eq!(&out[12..17], b"hello");
        assert_eq!(out[17..], REFERENCE_DATA_CHECK);
    }

    const REFERENCE_LENGTH_CHECK: [u8; 4] = [234, 178, 4, 62];
    const REFERENCE_DATA_CHECK: [u8; 4] = [187, 31, 28, 25];

    #[test]
    fn two_files_of_one_second_have_two_names() {
        let folder = tempfile::tempdir().unwrap();
        let begin = || TensorBoard::create(folder.path(), UnixTime(1_763_600_000.9), None).unwrap();
        let (first, second) = (begin(), begin());
        let name = |board: &TensorBoard| board.path().file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name(&first).starts_with("events.out.tfevents.1763600000."), "{}", name(&first));
        assert!(name(&first).ends_with(".0") && name(&second).ends_with(".1"));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let error =
            TensorBoard::create(Path::new("/proc/nowhere"), UnixTime(0.0), None).map(drop).unwrap_err();
        assert!(error.to_string().starts_with("cannot open /proc/nowhere"), "{error}");
    }
}
