//! One JSON object a line, into a file or a stream.
//!
//! A line is encoded whole before a byte of it is written, so that a record that cannot be encoded leaves nothing
//! behind. What a crash tore off at the end of a file is removed when the file is opened again.

use crate::whole_lines::whole_lines;
use crate::{RunEvent, Stamped, TelemetryError, UnixTime};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// How much of a file's end is read at a time when its last whole line is looked for: more than is written between two syncs.
const TAIL: u64 = 16 << 20;

/// When lines leave the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// After each line: for a stream that somebody follows.
    EachLine,
    /// When asked, when the buffer is full, and at the end.
    OnDemand,
}

/// A sink of JSON lines.
pub struct JsonLines<W: Write> {
    out: BufWriter<W>,
    to: String,
    flush: Flush,
    line: Vec<u8>,
}

/// `events.jsonl`: the supervisor's ordered log.
pub type EventLog = JsonLines<File>;

impl JsonLines<File> {
    /// Opens a file to add lines at its end, and makes it if it is not there.
    ///
    /// *Errors*: the file cannot be opened, or a torn last line cannot be removed.
    pub fn append(path: &Path) -> Result<Self, TelemetryError> {
        let open = || {
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            let end = end_of_lines(&mut file)?;
            file.set_len(end)?;
            file.seek(SeekFrom::Start(end))?;
            Ok(file)
        };
        let file = open().map_err(|source| TelemetryError::Open { path: path.to_owned(), source })?;
        Ok(Self::new(file, path.display().to_string(), Flush::OnDemand))
    }
}

impl JsonLines<File> {
    /// Waits until everything written so far is on the disk.
    ///
    /// *Errors*: the file does not take it. *Blocks* on the disk.
    pub fn sync(&mut self) -> Result<(), TelemetryError> {
        self.flush()?;
        let synced = self.out.get_ref().sync_data();
        synced.map_err(|source| TelemetryError::Write { to: self.to.clone(), source })
    }
}

/// Bytes of a file up to the last line that was written whole. A hole is looked for at its end alone.
fn end_of_lines(file: &mut File) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(TAIL);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        Read::by_ref(file).take(end - start).read_to_end(&mut block)?;
        let whole = whole_lines(&block);
        if whole > 0 {
            return Ok(start + whole as u64);
        }
        end = start;
    }
    Ok(0)
}

impl<W: Write> JsonLines<W> {
    /// A sink on any stream; `to` names it in errors.
    pub fn new(out: W, to: impl Into<String>, flush: Flush) -> Self {
        Self { out: BufWriter::new(out), to: to.into(), flush, line: Vec::new() }
    }

    /// Writes an event.
    ///
    /// *Errors*: it cannot be encoded or written.
    pub fn event(&mut self, time: UnixTime, event: &RunEvent) -> Result<(), TelemetryError> {
        self.record(&Stamped { time, event })
    }

    /// Writes any record as one line.
    ///
    /// *Errors*: it cannot be encoded or written.
    pub fn record(&mut self, record: &impl Serialize) -> Result<(), TelemetryError> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, record)
            .map_err(|source| TelemetryError::Encode { to: self.to.clone(), source })?;
        self.line.push(b'\n');
        let written = self.out.write_all(&self.line);
        written.map_err(|source| TelemetryError::Write { to: self.to.clone(), source })?;
        if self.flush == Flush::EachLine { self.flush() } else { Ok(()) }
    }

    /// Hands everything written so far to the system.
    ///
    /// *Errors*: the stream does not take it.
    pub fn flush(&mut self) -> Result<(), TelemetryError> {
        self.out.flush().map_err(|source| TelemetryError::Write { to: self.to.clone(), source })
    }
}

impl<W: Write> Drop for JsonLines<W> {
    fn drop(&mut self) {
        // Whoever must know calls `flush`; here nobody is left to be told but the log.
        if let Err(error) = self.flush() {
            tracing::warn!(%error, "the last lines are lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(text: &str) -> RunEvent {
        RunEvent::Notice { text: text.to_owned() }
    }

    fn lines(path: &Path) -> Vec<String> {
        std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn lines_are_kept_until_flush_and_written_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut log = EventLog::append(&path).unwrap();
        log.event(UnixTime(1.0), &notice("a")).unwrap();
        assert!(lines(&path).is_empty());
        log.flush().unwrap();
        assert_eq!(lines(&path), [r#"{"time":1.0,"event":"notice","text":"a"}"#]);
        log.event(UnixTime(2.0), &notice("b")).unwrap();
        drop(log);
        assert_eq!(lines(&path).len(), 2);
    }

    #[test]
    fn a_log_is_continued_without_the_line_that_a_crash_tore() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        for (before, kept) in [
            ("", ""),
            ("{\"a\":1}\n", "{\"a\":1}\n"),
            ("{\"a\":1}\n{\"b\":", "{\"a\":1}\n"),
            ("{\"torn", ""),
            ("1\n{\"hole\":\0\0\0\n{\"a\":1}\n", "1\n"),
            ("\0\0\0\n1\n", ""),
        ] {
            std::fs::write(&path, before).unwrap();
            let mut log = EventLog::append(&path).unwrap();
            log.record(&7).unwrap();
            drop(log);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{kept}7\n"));
        }
        let long = format!("1\n{}", "x".repeat(3 * TAIL as usize));
        std::fs::write(&path, long).unwrap();
        drop(EventLog::append(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n");
    }

    #[test]
    fn a_followed_stream_gets_each_line_at_once() {
        let mut out = Vec::new();
        let mut sink = JsonLines::new(&mut out, "standard output", Flush::EachLine);
        sink.event(UnixTime(0.0), &notice("now")).unwrap();
        // A leaked sink is never flushed at its end.
        std::mem::forget(sink);
        assert_eq!(String::from_utf8(out).unwrap(), "{\"time\":0.0,\"event\":\"notice\",\"text\":\"now\"}\n");
    }

    /// A stream whose reader is gone.
    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stream_that_does_not_take_a_line_is_a_typed_error() {
        let mut sink = JsonLines::new(Gone, "standard output", Flush::EachLine);
        let error = sink.record(&1).unwrap_err();
        assert!(error.to_string().starts_with("cannot write standard output: "), "{error}");
        let broken = |source: &io::Error| source.kind() == io::ErrorKind::BrokenPipe;
        assert!(matches!(&error, TelemetryError::Write { source, .. } if broken(source)), "{error}");
        let missing = EventLog::append(Path::new("/nowhere/at/all.jsonl")).map(drop).unwrap_err();
        assert!(missing.to_string().starts_with("cannot open /nowhere/at/all.jsonl: "), "{missing}");
    }
}
