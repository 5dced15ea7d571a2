//! The framing of a `.wandb` file: records in blocks of 32 KiB, each with a checksum, as LevelDB's log has them.
//!
//! It differs from LevelDB in two things: seven bytes stand in front, and the checksum is CRC-32 (IEEE), not masked.
//!
//! *Source*: LevelDB's `doc/log_format.md`; `core/internal/transactionlog` of Weights & Biases.

use std::io::{self, Write};

/// A block. *Units*: bytes.
const BLOCK: usize = 32 * 1024;
/// Checksum, length, kind.
const HEADER: usize = 7;
/// What a file begins with: its name, a magic number and the version of the format.
const IDENTITY: [u8; 7] = *b":W&B\xe1\xbe\x00";

/// The kinds of parts: a whole record, its first part, one in the middle, its last.
const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Writes records one after the other.
#[derive(Debug)]
pub struct RecordLog<W> {
    out: W,
    /// Where in its block the next byte comes.
    place: usize,
}

impl<W: Write> RecordLog<W> {
    /// Begins a file. *Errors*: of the stream.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&IDENTITY)?;
        Ok(Self { out, place: IDENTITY.len() })
    }

    /// Writes a record. *Errors*: of the stream.
    pub fn record(&mut self, mut rest: &[u8]) -> io::Result<()> {
        let mut is_first = true;
        loop {
            let left = BLOCK - self.place;
            if left < HEADER {
                self.out.write_all(&[0; HEADER][..left])?;
                self.place = 0;
                continue;
            }
            let (part, next) = rest.split_at(rest.len().min(left - HEADER));
            let kind = match (is_first, next.is_empty()) {
                (true, true) => WHOLE,
                (true, false) => FIRST,
                (false, false) => MIDDLE,
                (false, true) => LAST,
            };
            self.part(kind, part)?;
            if next.is_empty() {
                return Ok(());
            }
            (rest, is_first) = (next, false);
        }
    }

    fn part(&mut self, kind: u8, part: &[u8]) -> io::Result<()> {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&[kind]);
        hasher.update(part);
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&hasher.finalize().to_le_bytes());
        header[4..6].copy_from_slice(&u16::try_from(part.len()).unwrap_or(u16::MAX).to_le_bytes());
        header[6] = kind;
        self.out.write_all(&header)?;
        self.out.write_all(part)?;
        self.place = (self.place + HEADER + part.len()) % BLOCK;
        Ok(())
    }

    /// Hands everything to the system. *Errors*: of the stream.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file back, as the description of the format has it.
    fn read(bytes: &[u8]) -> Vec<Vec<u8>> {
        assert_eq!(bytes[..7], IDENTITY);
        let (mut place, mut record, mut records) = (7, Vec::new(), Vec::new());
        while place < bytes.len() {
            let left = BLOCK - place % BLOCK;
            if left < HEADER {
                assert!(bytes[place..place + left].iter().all(|byte| *byte == 0));
                place += left;
                continue;
            }
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let (len, kind) = ((word(place + 4) & 0xffff) as usize, bytes[place + 6]);
            assert_eq!(word(place), crc32fast::hash(&bytes[place + 6..place + 7 + len]));
            assert_eq!(record.is_empty(), kind == WHOLE || kind == FIRST);
            record.extend_from_slice(&bytes[place + 7..place + 7 + len]);
            if kind == WHOLE || kind == LAST {
                records.push(std::mem::take(&mut record));
            }
            place += 7 + len;
        }
        records
    }

    #[test]
    fn records_of_every_length_around_a_block_come_back() {
        let mut log = RecordLog::new(Vec::new()).unwrap();
        let lengths =
            [1, 100, BLOCK, 3 * BLOCK, 5, BLOCK - 30, BLOCK - 7, BLOCK - 8, BLOCK - 14, 1, 2 * BLOCK - 17];
        let records: Vec<Vec<u8>> =
            lengths.iter().zip(1_u8..).map(|(length, byte)| vec![byte; *length]).collect();
        records.iter().for_each(|record| log.record(record).unwrap());
        log.flush().unwrap();
        assert_eq!(read(&log.out), records);
    }

    #[test]
    fn the_first_bytes_are_those_that_their_own_program_writes() {
        let mut log = RecordLog::new(Vec::new()).unwrap();
        log.record(&[]).unwrap();
        // The checksum of the kind alone.
        assert_eq!(log.out, b":W&B\xe1\xbe\x00\x1b\xdf\x05\xa5\x00\x00\x01");
    }
}
