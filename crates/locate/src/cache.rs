//! The dynamic linker's own list of libraries, `/etc/ld.so.cache`, read without starting `ldconfig -p`.
//!
//! *Source*: glibc, `sysdeps/generic/dl-cache.h`: a header of 48 bytes, entries of 24, then the texts that they point to.

use std::path::PathBuf;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// More entries than any system has: a damaged count is not believed.
const MOST: usize = 1 << 20;

/// A library by name, and where the linker would take it from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The bare name.
    pub name: String,
    /// The file.
    pub path: PathBuf,
}

/// The entries of a cache; none of what is no cache. Whether a file fits this processor is not looked at.
#[must_use]
pub(crate) fn entries(bytes: &[u8]) -> Vec<Entry> {
    // An old system has another table before this one.
    let Some(start) = bytes.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let table = &bytes[start..];
    let number = |at: usize| {
        let bytes = table.get(at..at + 4)?.first_chunk::<4>()?;
        usize::try_from(u32::from_ne_bytes(*bytes)).ok()
    };
    let text = |at: usize| {
        let rest = table.get(at..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    };
    let count = number(MAGIC.len()).filter(|count| *count <= MOST).unwrap_or(0);
    let entry = |index: usize| {
        let at = HEADER + index * ENTRY;
        let (name, path) = (text(number(at + 4)?)?, text(number(at + 8)?)?);
        Some(Entry { name: name.to_owned(), path: path.into() })
    };
    (0..count).map_while(entry).collect()
}

/// A cache with these entries, for tests.
#[cfg(test)]
pub(crate) fn written(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend(u32::try_from(entries.len()).unwrap().to_ne_bytes());
    head.resize(HEADER, 0);
    let (mut table, mut texts) = (Vec::new(), Vec::new());
    let begin = HEADER + entries.len() * ENTRY;
    for (name, path) in entries {
        let mut entry = vec![0; ENTRY];
        for (text, at) in [(name, 4), (path, 8)] {
            let offset = u32::try_from(begin + texts.len()).unwrap();
            entry[at..at + 4].copy_from_slice(&offset.to_ne_bytes());
            texts.extend(text.as_bytes());
            texts.push(0);
        }
        table.extend(entry);
    }
    [head, table, texts].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_of_this_machine_names_its_c_library() {
        let Ok(bytes) = std::fs::read("/etc/ld.so.cache") else {
            eprintln!("skipped: this machine has no /etc/ld.so.cache");
            return;
        };
        let found = entries(&bytes);
        assert!(found.iter().any(|entry| entry.name == "libc.so.6" && entry.path.exists()), "{found:?}");
    }

    #[test]
    fn a_cache_that_was_written_is_read_back_also_behind_an_older_table() {
        let cache = written(&[("libnccl.so.2", "/a/libnccl.so.2"), ("libz.so", "/b/libz.so")]);
        let names: Vec<_> = entries(&cache).into_iter().map(|entry| (entry.name, entry.path)).collect();
        let wanted = [("libnccl.so.2", "/a/libnccl.so.2"), ("libz.so", "/b/libz.so")];
        assert_eq!(names, wanted.map(|(name, path)| (name.to_owned(), PathBuf::from(path))));
        let behind = [b"ld.so-1.7.0\0older entries".to_vec(), cache].concat();
        assert_eq!(entries(&behind).len(), 2);
    }

    #[test]
    fn a_damaged_cache_gives_what_is_whole_and_never_panics() {
        let cache = written(&[("a", "/a"), ("b", "/b"), ("c", "/c")]);
        for length in 0..cache.len() {
            let _ = entries(&cache[..length]);
        }
        let mut wild = cache.clone();
        wild[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&[0xff; 4]);
        assert!(entries(&wild).is_empty(), "a count that no machine has");
        let mut wild = cache;
        wild[HEADER + ENTRY + 8..HEADER + ENTRY + 12].copy_from_slice(&[0xff; 4]);
        assert_eq!(entries(&wild).len(), 1, "the second entry points to nothing");
    }
}
