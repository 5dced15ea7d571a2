//! The members of a tar archive: their names, and where their bytes are. Nothing is unpacked.
//!
//! It reads ustar, pax and GNU headers, and does not know what members are for.

use super::error::ShardsError;
use std::path::Path;
use tar::{EntryType, Header, PaxExtensions};

/// The size of a header, and what members are padded to.
const BLOCK: usize = 512;
/// The longest name, and the most bytes of a header that extends another: what is more is a damaged or hostile file.
const LONGEST_NAME: usize = 1 << 16;
const LONGEST_EXTENSION: usize = 1 << 20;
/// Where a header has its checksum.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// A regular file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub name: String,
    pub offset: usize,
    pub size: usize,
}

/// One archive that is being read.
struct Archive<'a> {
    file: &'a Path,
    bytes: &'a [u8],
}

/// A header, and what it is about.
struct Entry<'a> {
    at: usize,
    header: &'a Header,
    content: &'a [u8],
}

/// All files of an archive, in its order.
///
/// *Errors*: it is cut off or damaged, by the place of the header.
pub(super) fn members(file: &Path, bytes: &[u8]) -> Result<Vec<Member>, ShardsError> {
    let archive = Archive { file, bytes };
    let (mut members, mut at, mut long_name) = (Vec::new(), 0, None);
    while let Some(entry) = archive.entry(at)? {
        let size = entry.content.len();
        let offset = at + BLOCK;
        match entry.header.entry_type() {
            EntryType::GNULongName => long_name = Some(archive.long_name(&entry)?),
            EntryType::XHeader => long_name = archive.pax_name(&entry)?.or(long_name),
            EntryType::GNULongLink | EntryType::XGlobalHeader => {}
            EntryType::Regular | EntryType::Continuous => {
                let name = match long_name.take() {
                    Some(name) => name,
                    None => entry.header.path_bytes().into_owned(),
                };
                members.push(Member { name: archive.text(at, name)?, offset, size });
            }
            EntryType::GNUSparse => return Err(archive.wrong(at, "a file with holes, which is not read")),
            // Folders, links and devices are no files.
            _ => long_name = None,
        }
        at = offset + size.next_multiple_of(BLOCK);
    }
    archive.nothing_after(at)?;
    Ok(members)
}

impl<'a> Archive<'a> {
    fn wrong(&self, at: usize, problem: impl Into<String>) -> ShardsError {
        ShardsError::Header { file: self.file.to_owned(), at: at as u64, problem: problem.into() }
    }

    /// The entry whose header begins at a place; none at the end of the archive.
    fn entry(&self, at: usize) -> Result<Option<Entry<'a>>, ShardsError> {
        let Some(block) = self.bytes.get(at..at + BLOCK) else {
            // Where the padding of the last member is lacking, the file ends before this place.
            let at = at.min(self.bytes.len()) as u64;
            return Err(ShardsError::CutOff { file: self.file.to_owned(), at });
        };
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = Header::from_byte_slice(block);
        let sum = block.iter().enumerate().map(|(place, byte)| match CHECKSUM.contains(&place) {
            true => u32::from(b' '),
            false => u32::from(*byte),
        });
        if header.cksum().ok() != Some(sum.sum()) {
            return Err(self.wrong(at, "this is no header of an archive: its checksum is wrong"));
        }
        let size = header.entry_size().map_err(|error| self.wrong(at, error.to_string()))?;
        let after = &self.bytes[at + BLOCK..];
        let content = usize::try_from(size).ok().and_then(|size| after.get(..size));
        let content = content.ok_or_else(|| ShardsError::PastEnd {
            file: self.file.to_owned(),
            at: at as u64,
            name: String::from_utf8_lossy(&header.path_bytes()).into_owned(),
            size,
            left: after.len() as u64,
        })?;
        Ok(Some(Entry { at, header, content }))
    }

    /// The name that the next entry has.
    fn long_name(&self, entry: &Entry<'_>) -> Result<Vec<u8>, ShardsError> {
        let name = entry.content.split(|byte| *byte == 0).next().unwrap_or_default();
        if name.len() > LONGEST_NAME {
            return Err(self.wrong(entry.at, format!("a name of {} bytes", name.len())));
        }
        Ok(name.to_vec())
    }

    /// The name that the next entry has, if a pax header says one.
    fn pax_name(&self, entry: &Entry<'_>) -> Result<Option<Vec<u8>>, ShardsError> {
        if entry.content.len() > LONGEST_EXTENSION {
            return Err(self.wrong(entry.at, format!("a pax header of {} bytes", entry.content.len())));
        }
        let mut name = None;
        for record in PaxExtensions::new(entry.content) {
            let record =
                record.map_err(|error| self.wrong(entry.at, format!("a broken pax header: {error}")))?;
            match record.key_bytes() {
                b"path" if record.value_bytes().len() > LONGEST_NAME => {
                    let problem = format!("a name of {} bytes", record.value_bytes().len());
                    return Err(self.wrong(entry.at, problem));
                }
                b"path" => name = Some(record.value_bytes().to_vec()),
                // Only files of 8 GiB and more need it.
                b"size" => return Err(self.wrong(entry.at, "a file of 8 GiB or more, which is not read")),
                key if key.starts_with(b"GNU.sparse") => {
                    return Err(self.wrong(entry.at, "a file with holes, which is not read"));
                }
                _ => {}
            }
        }
        Ok(name)
    }

    fn text(&self, at: usize, name: Vec<u8>) -> Result<String, ShardsError> {
        String::from_utf8(name).map_err(|_| self.wrong(at, "a name that is no UTF-8"))
    }

    /// Blocks of zeros are all that may follow the end.
    fn nothing_after(&self, end: usize) -> Result<(), ShardsError> {
        match self.bytes[end..].iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(place) => {
                Err(ShardsError::AfterEnd { file: self.file.to_owned(), at: (end + place) as u64 })
            }
        }
    }
}
