//! Where a PNG file ends: many of them come one after the other through a pipe, and most are passed over.
//!
//! It does not know what is in one; see `images/picture.rs`.

use std::io::{self, Read, Write};

const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
/// More bytes than a picture may have that is decoded.
const MOST: u64 = 1 << 31;

/// Copies the next file to `to`.
///
/// *Errors*: `InvalidData` if it is no PNG file, or is too large; `UnexpectedEof` if there is none, or it is cut off; those of `from`
/// and `to`.
///
/// *Source*: PNG specification, 5.3: length, type, data, CRC.
pub(super) fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut signature = [0; 8];
    from.read_exact(&mut signature)?;
    if signature != SIGNATURE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    to.write_all(&signature)?;
    let mut copied = 0;
    loop {
        let mut head = [0; 8];
        from.read_exact(&mut head)?;
        to.write_all(&head)?;
        let [a, b, c, d, kind @ ..] = head;
        let length = u64::from(u32::from_be_bytes([a, b, c, d])) + 4;
        copied += length;
        if copied > MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if io::copy(&mut from.take(length), to)? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if &kind == b"IEND" {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{GrayImage, ImageFormat};
    use std::io::Cursor;

    fn picture(side: u32) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        GrayImage::new(side, side).write_to(&mut bytes, ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn files_that_follow_each_other_are_told_apart_and_a_cut_one_is_an_error() {
        let both = [picture(3), picture(90)].concat();
        let mut from = &both[..];
        let mut second = Vec::new();
        copy(&mut from, &mut io::sink()).unwrap();
        copy(&mut from, &mut second).unwrap();
        assert!(second == picture(90) && from.is_empty());
        for length in 0..picture(3).len() {
            let error = copy(&mut &both[..length], &mut io::sink()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
        let error = copy(&mut &b"GIF89a, and so on"[..], &mut io::sink()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
