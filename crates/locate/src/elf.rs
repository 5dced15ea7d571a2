//! The first bytes of a file: is it a whole shared object for this processor?
//!
//! The dynamic linker says of a library for another processor that there is no such file, and is killed by one that was
//! cut off on its way here (it maps what the head promises, and reads past the end). So this is looked at first.
//!
//! *Source*: System V ABI, ELF header and program headers.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A library that this process could load.
    Ours,
    /// Made for another processor.
    Foreign(&'static str),
    /// Shorter than its own head says. *Units*: bytes.
    Torn {
        /// How long it is.
        has: u64,
        /// How long it has to be at least.
        needs: u64,
    },
    /// No shared object at all.
    Other,
}

/// Bytes of the header.
const HEAD: usize = 64;
/// Bytes of one program header.
const PROGRAM_HEADER: usize = 56;
/// A part of the file that is mapped into memory.
const LOAD: u32 = 1;

#[cfg(target_arch = "x86_64")]
const HERE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const HERE: u16 = 183;

/// Looks at the head of a file.
///
/// *Errors*: of the system. *Blocks* on the disk.
pub(crate) fn kind(path: &Path) -> io::Result<Kind> {
    let about = fs::metadata(path)?;
    let length = about.len();
    let mut head = [0; HEAD];
    // Opening a pipe would wait for somebody who writes.
    if !about.is_file() || length < HEAD as u64 {
        return Ok(Kind::Other);
    }
    let file = File::open(path)?;
    file.read_exact_at(&mut head, 0)?;
    let kind = read(&head);
    if kind != Kind::Ours {
        return Ok(kind);
    }
    let (table, count) = (long(&head, 32), usize::from(short(&head, 56)));
    let mut headers = vec![0; count * PROGRAM_HEADER];
    let needs = table.saturating_add(headers.len() as u64);
    if needs > length {
        return Ok(Kind::Torn { has: length, needs });
    }
    file.read_exact_at(&mut headers, table)?;
    let needs = end(&headers);
    Ok(if needs > length { Kind::Torn { has: length, needs } } else { kind })
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the caller has the whole head"))
}

fn read(head: &[u8; HEAD]) -> Kind {
    if !head.starts_with(b"\x7fELF") {
        return Kind::Other;
    }
    let [wide, little] = [head[4] == 2, head[5] == 1];
    match (wide, little, short(head, 16), short(head, 18)) {
        (true, true, 3, HERE) => Kind::Ours,
        (true, true, 3, machine) => Kind::Foreign(name(machine)),
        (false, true, 3, _) => Kind::Foreign("a 32-bit processor"),
        (_, false, ..) => Kind::Foreign("a big-endian processor"),
        _ => Kind::Other,
    }
}

/// Where the last part ends that is mapped.
fn end(headers: &[u8]) -> u64 {
    let loads = headers.chunks_exact(PROGRAM_HEADER).filter(|header| long(header, 0) as u32 == LOAD);
    loads.map(|header| long(header, 8).saturating_add(long(header, 32))).max().unwrap_or(0)
}

fn name(machine: u16) -> &'static str {
    match machine {
        62 => "x86-64",
        183 => "aarch64",
        21 => "ppc64le",
        243 => "riscv64",
        _ => "another processor",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(class: u8, order: u8, kind: u8, machine: u8) -> Vec<u8> {
        let mut head = b"\x7fELF".to_vec();
        head.extend([class, order, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, kind, 0, machine, 0]);
        head.resize(HEAD, 0);
        head
    }

    fn kind_of(bytes: &[u8]) -> Kind {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        kind(file.path()).unwrap()
    }

    #[test]
    fn the_processor_of_a_library_is_told_and_what_is_none_is_refused() {
        let here = u8::try_from(HERE).unwrap();
        let other = if here == 62 { (183, "aarch64") } else { (62, "x86-64") };
        for (bytes, kind) in [
            (head(2, 1, 3, here), Kind::Ours),
            (head(2, 1, 3, other.0), Kind::Foreign(other.1)),
            (head(2, 1, 3, 99), Kind::Foreign("another processor")),
            (head(1, 1, 3, 3), Kind::Foreign("a 32-bit processor")),
            (head(2, 2, 3, here), Kind::Foreign("a big-endian processor")),
            (head(2, 1, 2, here), Kind::Other), // a program, not a library
            (b"INPUT(libnccl.so.2)".to_vec(), Kind::Other),
            (b"\x7fELF".to_vec(), Kind::Other),
            (Vec::new(), Kind::Other),
        ] {
            assert_eq!(kind_of(&bytes), kind, "{bytes:?}");
        }
    }

    #[test]
    fn a_pipe_is_no_library_and_nobody_waits_at_it() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("libnccl.so.2");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(kind(&pipe).unwrap(), Kind::Other);
        assert_eq!(kind(folder.path()).unwrap(), Kind::Other);
    }

    #[test]
    fn a_library_that_is_shorter_than_it_says_is_torn() {
        let mut bytes = head(2, 1, 3, u8::try_from(HERE).unwrap());
        bytes[32] = 64; // the table follows the head
        bytes[56] = 1; // and has one row
        assert_eq!(kind_of(&bytes), Kind::Torn { has: 64, needs: 120 });
        let mut row = vec![0; PROGRAM_HEADER];
        row[0] = 1;
        row[8..16].copy_from_slice(&100u64.to_le_bytes());
        row[32..40].copy_from_slice(&50u64.to_le_bytes());
        bytes.extend(row);
        assert_eq!(kind_of(&bytes), Kind::Torn { has: 120, needs: 150 });
        bytes.resize(150, 0);
        assert_eq!(kind_of(&bytes), Kind::Ours);
    }
}
