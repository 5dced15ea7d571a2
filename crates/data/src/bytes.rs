//! The bytes of a data file: mapped if it is plain, unpacked in memory if it is gzip.
//!
//! It does not know any format but gzip's first two bytes.

use crate::DataError;
use crate::mmap::Mapping;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most that a compressed file may unpack to; beyond it a small hostile file could fill the memory.
const MAX_UNPACKED: u64 = 16 << 30;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

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
    /// Opens a plain or gzip file.
    ///
    /// *Errors*: it is missing, unreadable, a folder, a broken gzip stream, or unpacks to more than [`MAX_UNPACKED`].
    pub fn open(path: &Path, needs: &'static str) -> Result<Self, DataError> {
        Self::open_inner(path).map_err(|source| DataError::io(path, needs, source))
    }

    fn open_inner(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut start = Vec::with_capacity(GZIP_MAGIC.len());
        (&file).take(GZIP_MAGIC.len() as u64).read_to_end(&mut start)?;
        let mut bytes = Vec::new();
        if start == GZIP_MAGIC {
            file.rewind()?;
            let unpacked =
                MultiGzDecoder::new(BufReader::new(file)).take(MAX_UNPACKED + 1).read_to_end(&mut bytes)?;
            if unpacked as u64 > MAX_UNPACKED {
                return Err(io::Error::other(format!("it unpacks to more than {MAX_UNPACKED} bytes")));
            }
            return Ok(Self::Owned(bytes));
        }
        let info = file.metadata()?;
        if info.is_file() && info.len() > 0 {
            return Ok(Self::Mapped(Mapping::of(&file)?));
        }
        // A pipe cannot be mapped or wound back; an empty file has nothing to map.
        bytes.extend_from_slice(&start);
        file.read_to_end(&mut bytes)?;
        Ok(Self::Owned(bytes))
    }
}

/// Opens a plain or gzip text file for reading line by line.
pub(crate) fn open_lines(path: &Path, needs: &'static str) -> Result<Box<dyn BufRead>, DataError> {
    let reader = File::open(path).map_err(|e| DataError::io(path, needs, e))?;
    Ok(plain_or_gzip(reader).map_err(|e| DataError::io(path, needs, e))?)
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

/// The text of a file, decompressed where its first bytes say that it is a gzip file.
///
/// *Errors*: of the system. *Blocks* for the first bytes.
pub fn plain_or_gzip(reader: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    let mut reader = BufReader::new(reader);
    Ok(if reader.fill_buf()?.starts_with(&GZIP_MAGIC) {
        Box::new(BufReader::new(MultiGzDecoder::new(reader)))
    } else {
        Box::new(reader)
    })
}
