//! The frame around each message: 16 bytes of header, then the payload.
//!
//! ```text
//! offset 0   4        6      8        12       16
//!        magic  version kind   length   crc32c   payload
//! ```
//! All numbers are little-endian; the checksum covers the first 12 bytes and the payload. This file does not know what
//! a payload means.

/// The first bytes of a frame.
const MAGIC: [u8; 4] = *b"DTRN";
/// The version of frames and messages. Both ends must have the same.
pub const VERSION: u16 = 14;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 16;
/// The most bytes of a payload; a longer one is refused before anything is allocated for it.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// Why bytes are no message. After any of these the link is useless: frames cannot be found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes are no frame.
    #[error("bad magic {0:02x?}")]
    Magic([u8; 4]),
    /// Another version of dtrain.
    #[error("frame version {got}, this side has {VERSION}")]
    Version {
        /// The peer's.
        got: u16,
    },
    /// No such kind of message.
    #[error("unknown message kind {0}")]
    Kind(u16),
    /// The message is too long.
    #[error("message of {bytes} bytes, the limit is {MAX_PAYLOAD}")]
    TooLong {
        /// Its size.
        bytes: usize,
    },
    /// The bytes were changed on the way.
    #[error("checksum {got:08x}, computed {want:08x}")]
    Checksum {
        /// In the frame.
        got: u32,
        /// Of the bytes.
        want: u32,
    },
    /// The payload is no message of its kind.
    #[error("payload of kind {kind} cannot be read")]
    Payload {
        /// The kind.
        kind: u16,
    },
    /// The message cannot be put into bytes.
    #[error("message of kind {kind} cannot be written")]
    Unwritable {
        /// The kind.
        kind: u16,
    },
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: u16,
    pub length: usize,
    crc: u32,
}

impl Header {
    /// Reads a header. *Errors*: magic, version and length.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, CodecError> {
        let [m0, m1, m2, m3, v0, v1, k0, k1, l0, l1, l2, l3, c0, c1, c2, c3] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(CodecError::Magic([m0, m1, m2, m3]));
        }
        let got = u16::from_le_bytes([v0, v1]);
        if got != VERSION {
            return Err(CodecError::Version { got });
        }
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > MAX_PAYLOAD {
            return Err(CodecError::TooLong { bytes: length });
        }
        Ok(Self { kind: u16::from_le_bytes([k0, k1]), length, crc: u32::from_le_bytes([c0, c1, c2, c3]) })
    }

    /// Compares the checksum. `frame` is the header and the payload.
    pub fn check(&self, frame: &[u8]) -> Result<(), CodecError> {
        let want = checksum(frame);
        if self.crc == want { Ok(()) } else { Err(CodecError::Checksum { got: self.crc, want }) }
    }
}

/// Fills in the header of the frame that begins at `start` of `out` and ends with it.
pub(crate) fn seal(out: &mut [u8], start: usize, kind: u16) {
    let frame = &mut out[start..];
    let length = u32::try_from(frame.len() - HEADER_BYTES).expect("a payload is at most a mebibyte");
    frame[0..4].copy_from_slice(&MAGIC);
    frame[4..6].copy_from_slice(&VERSION.to_le_bytes());
    frame[6..8].copy_from_slice(&kind.to_le_bytes());
    frame[8..12].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(frame);
    frame[12..16].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[..12]), &frame[HEADER_BYTES..])
}
