//! Files of token ids: little-endian integers one after the other, and nothing else.
//!
//! This is what nanoGPT's prepare.py writes, to `train.bin` and `val.bin`. A vocabulary of at most 65 536 has ids of two bytes, a larger one of four: the file
//! does not say it. It is mapped and read where a sample is needed, so it may be larger than memory.

use crate::DataError;
use crate::mmap::Mapping;
use crate::windows::Sequence;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

pub(crate) const NEEDS: &str =
    "kind tokens needs `path`, a file of token ids or a folder with train.bin (and val.bin, if there is one)";
const NUMPY_MAGIC: &[u8] = b"\x93NUMPY";
/// Ids that are looked at for another width.
const LOOKED_AT: usize = 2048;

/// How many bytes an id has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdWidth {
    /// `u16`.
    Two,
    /// `u32`.
    Four,
}

impl IdWidth {
    /// That of a vocabulary.
    #[must_use]
    pub fn of(vocabulary: u32) -> Self {
        if vocabulary <= 1 << 16 { Self::Two } else { Self::Four }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// Puts ids behind what is there. *Panics* if an id has more bytes.
    pub fn write(self, ids: &[u32], to: &mut Vec<u8>) {
        match self {
            Self::Two => to.extend(ids.iter().flat_map(|id| {
                u16::try_from(*id).expect("an id of a vocabulary of at most 65 536").to_le_bytes()
            })),
            Self::Four => to.extend(ids.iter().flat_map(|id| id.to_le_bytes())),
        }
    }

    /// One id. *Panics* if it has other bytes.
    fn read(self, id: &[u8]) -> u32 {
        match self {
            Self::Two => u32::from(u16::from_le_bytes(<[u8; 2]>::try_from(id).expect("two bytes"))),
            Self::Four => u32::from_le_bytes(<[u8; 4]>::try_from(id).expect("four bytes")),
        }
    }
}

/// A file of ids.
pub(crate) struct Ids {
    file: PathBuf,
    width: IdWidth,
    bytes: Mapping,
}

impl Ids {
    /// Maps a file.
    ///
    /// *Errors*: it is missing, unreadable, empty, compressed, an array with a header, ends inside an id, or has ids of four bytes where two are expected.
    pub fn open(file: PathBuf, width: IdWidth) -> Result<Self, DataError> {
        let system = |source| DataError::io(&file, NEEDS, source);
        let found = |found, instead| DataError::NotTokens { file: file.clone(), found, instead };
        let info = fs::metadata(&file).map_err(system)?;
        if !info.is_file() {
            return Err(found("no plain file", "give a plain file; only `path` may be a folder"));
        }
        // By its name: no first bytes are forbidden to a file without a header.
        if file.extension().is_some_and(|end| end == "gz" || end == "zst") {
            return Err(found(
                "compressed",
                "unpack it (gunzip, unzstd); files of token ids are mapped as they are",
            ));
        }
        if info.len() == 0 {
            return Err(DataError::Empty { file });
        }
        let bytes = File::open(&file).and_then(|opened| Mapping::of(&opened)).map_err(system)?;
        if bytes.starts_with(NUMPY_MAGIC) {
            let instead = "write it with `tofile`, which adds no header, as nanoGPT's prepare.py does";
            return Err(found("an array saved by numpy.save", instead));
        }
        if bytes.len() % width.bytes() != 0 {
            let (bytes, width) = (bytes.len() as u64, width.bytes() as u64);
            return Err(DataError::HalfToken { file, bytes, width });
        }
        let ids = Self { file: file.clone(), width, bytes };
        if ids.are_of_four() {
            return Err(found(
                "a file of u32",
                "set data.vocabulary to that of their tokenizer if it is above 65536; else write them with `ids.astype(numpy.uint16).tofile(...)`",
            ));
        }
        Ok(ids)
    }

    /// Whether what is read as ids of two bytes is one of four: every second one is next to nothing, and those between are many different ones.
    fn are_of_four(&self) -> bool {
        const SMALL: u32 = 16;
        const DIFFERENT: usize = 64;
        if self.width == IdWidth::Four || self.len() < LOOKED_AT {
            return false;
        }
        let ids = || self.at(0..LOOKED_AT);
        ids().skip(1).step_by(2).all(|id| id < SMALL)
            && ids().step_by(2).filter(|id| *id >= SMALL).collect::<BTreeSet<u32>>().len() > DIFFERENT
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Ids in it.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.width.bytes()
    }

    /// Some of them.
    pub fn at(&self, places: Range<usize>) -> impl Iterator<Item = u32> + '_ {
        let width = self.width.bytes();
        let bytes = &self.bytes[places.start * width..places.end * width];
        bytes.chunks_exact(width).map(|id| self.width.read(id))
    }

    /// *Errors*: one of some ids is beyond the vocabulary.
    pub fn check(&self, places: Range<usize>, vocabulary: u32) -> Result<(), DataError> {
        let start = places.start;
        match self.at(places).enumerate().find(|(_, id)| *id >= vocabulary) {
            None => Ok(()),
            Some((place, id)) => {
                let position = (start + place) as u64;
                Err(DataError::IdOutOfRange { file: self.file.clone(), position, id, vocabulary })
            }
        }
    }

    pub fn sequence(&self, context: usize) -> Sequence<'_> {
        Sequence { file: &self.file, length: self.len(), unit: "tokens", context }
    }
}
