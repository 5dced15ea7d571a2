//! The pixels of many samples: decoded when they are asked for, and kept as long as there is room.

use crate::DataError;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// What every file becomes.
pub(crate) trait Decode: fmt::Debug + Send + Sync {
    /// The pixels of a file.
    ///
    /// *Errors*: it cannot be read or decoded. *Blocks* for as long as that takes.
    fn decode(&self, file: &Path) -> Result<Box<[u8]>, DataError>;
}

/// Samples that can be decoded, each by its number.
pub(crate) trait Decoder: fmt::Debug + Send + Sync {
    /// The pixels of a sample, channel after channel.
    ///
    /// *Errors*: it cannot be read or decoded. *Blocks* for as long as that takes.
    fn decode(&self, row: usize) -> Result<Box<[u8]>, DataError>;
}

/// Files, of which each is a sample.
#[derive(Debug)]
pub(crate) struct Files {
    pub files: Vec<PathBuf>,
    pub form: Arc<dyn Decode>,
}

impl Decoder for Files {
    fn decode(&self, row: usize) -> Result<Box<[u8]>, DataError> {
        self.form.decode(&self.files[row])
    }
}

/// Samples as rows of pixels.
#[derive(Debug)]
pub(crate) struct Pictures {
    decoder: Arc<dyn Decoder>,
    /// What was decoded and is kept. The first that come are kept: each is read once an epoch, so no other choice would be better.
    kept: Vec<OnceLock<Arc<[u8]>>>,
    room: AtomicU64,
}

impl Pictures {
    /// So many samples, of which up to `cache` bytes are kept when they are decoded.
    pub fn new(rows: usize, decoder: Arc<dyn Decoder>, cache: u64) -> Self {
        let kept = (0..rows).map(|_| OnceLock::new()).collect();
        Self { decoder, kept, room: AtomicU64::new(cache) }
    }

    /// Each file is a sample.
    pub fn of_files(files: Vec<PathBuf>, form: Arc<dyn Decode>, cache: u64) -> Self {
        Self::new(files.len(), Arc::new(Files { files, form }), cache)
    }

    /// The pixels of a row, channel after channel.
    ///
    /// *Errors*: the file cannot be decoded. *Blocks* for as long as that takes.
    pub fn row(&self, row: usize) -> Result<Arc<[u8]>, DataError> {
        if let Some(kept) = self.kept[row].get() {
            return Ok(Arc::clone(kept));
        }
        let pixels: Arc<[u8]> = self.decoder.decode(row)?.into();
        let size = pixels.len() as u64;
        let take = |room: u64| room.checked_sub(size);
        if self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
            && self.kept[row].set(Arc::clone(&pixels)).is_err()
        {
            // Another one kept it meanwhile.
            self.room.fetch_add(size, Ordering::Relaxed);
        }
        Ok(pixels)
    }

    /// Rows by their numbers, decoded by all cores, in the order in which they are asked for.
    ///
    /// *Errors*: the first in that order that cannot be decoded.
    pub fn rows(&self, rows: &[usize]) -> Result<Vec<Arc<[u8]>>, DataError> {
        side_by_side(rows.len(), |at| self.row(rows[at])).into_iter().collect()
    }
}

/// The results of `work` for each number below `count`, which all cores do, in order.
pub(crate) fn side_by_side<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count.max(1));
    let (next, work) = (AtomicUsize::new(0), &work);
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let one = || {
            let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            numbers.take_while(|at| *at < count).map(|at| (at, work(at))).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("decoding does not panic"));
        joined.flatten().collect()
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
