//! The bytes of a data file: mapped if it is plain, unpacked if it is packed by gzip or zstd.
//!
//! It does not know any format but the first bytes of these two.

use crate::DataError;
use crate::mmap::Mapping;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most that a compressed file may unpack to; beyond it a small hostile file could fill the memory.
const MAX_UNPACKED: u64 = 16 << 30;
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// The logarithm of the longest window that is kept of a zstd stream: that of `zstd --long=31`, which large collections of texts are packed with.
const LONGEST_WINDOW: u32 = 31;

/// The contents of a file.
#[derive(Debug)]
pub(crate) enum Bytes {
    Owned(Vec<u8>),
    Mapped(Mapping),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Bytes {
    /// Opens a plain or packed file.
    ///
    /// *Errors*: it is missing, unreadable, a folder, a broken stream, or unpacks to more than [`MAX_UNPACKED`].
    pub fn open(path: &Path, needs: &'static str) -> Result<Self, DataError> {
        Self::open_inner(path).map_err(|source| DataError::io(path, needs, source))
    }

    fn open_inner(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let info = file.metadata()?;
        let start = start_of(&file)?;
        if Packed::of(&start).is_none() && info.is_file() && info.len() > 0 {
            return Ok(Self::Mapped(Mapping::of(&file)?));
        }
        // A pipe cannot be mapped or wound back; an empty file has nothing to map.
        let mut bytes = Vec::new();
        let unpacked = unpacked_behind(start, file)?.take(MAX_UNPACKED + 1).read_to_end(&mut bytes)?;
        if unpacked as u64 > MAX_UNPACKED {
            return Err(io::Error::other(format!("it unpacks to more than {MAX_UNPACKED} bytes")));
        }
        Ok(Self::Owned(bytes))
    }
}

/// How a file is packed.
#[derive(Clone, Copy)]
enum Packed {
    Gzip,
    Zstd,
}

impl Packed {
    /// What the first bytes say.
    fn of(start: &[u8]) -> Option<Self> {
        match start {
            start if start.starts_with(GZIP_MAGIC) => Some(Self::Gzip),
            start if start.starts_with(ZSTD_MAGIC) => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// As many first bytes as say how a file is packed, if there are so many.
fn start_of(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(ZSTD_MAGIC.len());
    reader.take(ZSTD_MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start)
}

/// What is packed, behind these first bytes.
fn unpacked_behind(start: Vec<u8>, rest: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    let packed = Packed::of(&start);
    let whole = BufReader::new(Cursor::new(start).chain(rest));
    Ok(match packed {
        None => Box::new(whole),
        Some(Packed::Gzip) => Box::new(BufReader::new(MultiGzDecoder::new(whole))),
        Some(Packed::Zstd) => {
            let mut decoder = zstd::Decoder::with_buffer(whole)?;
            decoder.window_log_max(LONGEST_WINDOW)?;
            Box::new(BufReader::new(decoder))
        }
    })
}

/// A name without the ending of what is packed.
#[must_use]
pub fn plain_name(name: &str) -> &str {
    name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(name)
}

/// Opens a plain or packed text file for reading line by line.
pub(crate) fn open_lines(path: &Path, needs: &'static str) -> Result<Box<dyn BufRead>, DataError> {
    let reader = File::open(path).map_err(|e| DataError::io(path, needs, e))?;
    Ok(unpacked(reader).map_err(|e| DataError::io(path, needs, e))?)
}

/// Counts what is read of a file.
pub struct Counted<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R> Counted<R> {
    /// A reader, and its count. *Units*: bytes.
    #[must_use]
    pub fn new(inner: R) -> (Self, Arc<AtomicU64>) {
        let read = Arc::new(AtomicU64::new(0));
        (Self { inner, read: Arc::clone(&read) }, read)
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// The contents of a file, unpacked where its first bytes say that it is packed by gzip or zstd.
///
/// *Errors*: of the system. *Blocks* for the first bytes.
pub fn unpacked(mut reader: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    unpacked_behind(start_of(&mut reader)?, reader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A reader that gives a byte at a time, as a slow pipe may.
    struct Slow(Cursor<Vec<u8>>);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(1);
            self.0.read(&mut buffer[..most])
        }
    }

    #[test]
    fn what_is_packed_comes_out_as_it_was_also_in_several_pieces_and_from_a_pipe() {
        let text: Vec<u8> = (0..100_000u32).flat_map(|number| number.to_string().into_bytes()).collect();
        let (first, second) = text.split_at(70_001);
        let gzip = |text: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let zstd = |text: &[u8]| zstd::encode_all(text, 1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for (name, packed) in [
            ("plain", text.clone()),
            ("gzip", [gzip(first), gzip(second)].concat()),
            ("zstd", [zstd(first), zstd(second)].concat()),
        ] {
            let mut got = Vec::new();
            unpacked(Slow(Cursor::new(packed.clone()))).unwrap().read_to_end(&mut got).unwrap();
            assert!(got == text, "{name} from a pipe");
            let path = folder.path().join(name);
            std::fs::write(&path, &packed).unwrap();
            assert!(*Bytes::open(&path, "").unwrap() == *text, "{name}");
            if name != "plain" {
                std::fs::write(&path, &packed[..packed.len() - 9]).unwrap();
                assert!(Bytes::open(&path, "").is_err(), "{name} that has no end");
            }
        }
        for short in [&b""[..], b"\x28", b"\x28\xb5\x2f", b"ab"] {
            let mut got = Vec::new();
            unpacked(Cursor::new(short.to_vec())).unwrap().read_to_end(&mut got).unwrap();
            assert_eq!(got, short);
        }
    }

    #[test]
    fn a_window_of_long_mode_is_unpacked() {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.long_distance_matching(true).unwrap();
        encoder.window_log(28).unwrap();
        encoder.write_all(&[7; 1000]).unwrap();
        let packed = encoder.finish().unwrap();
        let mut got = Vec::new();
        unpacked(Cursor::new(packed)).unwrap().read_to_end(&mut got).unwrap();
        assert_eq!(got, [7; 1000]);
    }

    #[test]
    fn a_name_is_that_of_what_is_packed() {
        let names = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", ".zst"].map(plain_name);
        assert_eq!(names, ["a.jsonl", "a.jsonl", "a.jsonl", ""]);
    }
}
