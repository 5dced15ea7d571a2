//! What is hashed, and how: blake3 of bytes, and of what passes through a writer.

use dtrain_types::Digest;
use std::io::{self, Write};

/// The digest of `bytes`.
#[must_use]
pub fn hash(bytes: &[u8]) -> Digest {
    Digest(*blake3::hash(bytes).as_bytes())
}

/// A writer that hashes and counts what passes through it, so that a file is read by nobody to learn its digest.
pub(crate) struct Hashing<W> {
    inner: W,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<W: Write> Hashing<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, hasher: blake3::Hasher::new(), bytes: 0 }
    }

    /// The writer itself, and the size and digest of what was written.
    pub(crate) fn finish(self) -> (W, u64, Digest) {
        (self.inner, self.bytes, Digest(*self.hasher.finalize().as_bytes()))
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashing_on_the_way_gives_the_digest_of_the_whole() {
        let mut out = Hashing::new(Vec::new());
        out.write_all(b"one ").unwrap();
        out.write_all(b"two").unwrap();
        assert_eq!(out.finish(), (b"one two".to_vec(), 7, hash(b"one two")));
    }
}
