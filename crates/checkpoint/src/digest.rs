//! Digests: 32 bytes of blake3, written as hex. What is hashed is the business of the caller.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use thiserror::Error;

/// A blake3 digest; hex in text and in JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest(pub [u8; 32]);

/// A text that is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0:.70}` is not a digest of 64 hex digits")]
pub struct HexError(pub String);

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = HexError;

    fn from_str(text: &str) -> Result<Self, HexError> {
        let error = || HexError(text.to_owned());
        // Upper case is refused: one digest has one spelling, so that texts can be compared.
        if text.len() != 64 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(error());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| error())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        Ok(Self(bytes))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = HexError;

    fn try_from(text: String) -> Result<Self, HexError> {
        text.parse()
    }
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
        (self.inner, self.bytes, self.hasher.finalize().into())
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
    fn a_digest_has_one_spelling() {
        let digest = Digest::of(b"state");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(digest.to_string(), blake3::hash(b"state").to_hex().as_str());
        let upper = digest.to_string().to_uppercase();
        assert_eq!(upper.parse::<Digest>(), Err(HexError(upper)));
        assert!("ab".parse::<Digest>().is_err());
        assert!("é".repeat(32).parse::<Digest>().is_err());
    }

    #[test]
    fn hashing_on_the_way_gives_the_digest_of_the_whole() {
        let mut out = Hashing::new(Vec::new());
        out.write_all(b"one ").unwrap();
        out.write_all(b"two").unwrap();
        assert_eq!(out.finish(), (b"one two".to_vec(), 7, Digest::of(b"one two")));
    }
}
