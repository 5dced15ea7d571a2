//! safetensors files, written and read tensor by tensor.
//!
//! The format: eight bytes of header length, a JSON header, the tensors' bytes without gaps. The `safetensors` crate
//! judges the header; reading the data in pieces is ours, because a checkpoint may be larger than memory. This file
//! does not know what the tensors mean.

use crate::{DiskRead, Fault};
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};
use std::io::{self, Read, Seek, SeekFrom, Write};

/// The largest header that is read: about 300 000 tensors.
pub(crate) const MAX_HEADER: u64 = 32 << 20;
/// Bytes of a line of the cache.
const LINE: usize = 64;
/// Bytes read or written at once: enough for wide hashing, small beside a model.
const CHUNK: usize = 1 << 20;

/// Writes the header of a file that will hold `f32` tensors in this order, without gaps.
pub(crate) fn write_header<'a>(
    out: &mut impl Write,
    about: &[(&str, String)],
    tensors: impl Iterator<Item = (&'a str, &'a [usize])>,
) -> io::Result<()> {
    let mut header = Map::new();
    let about: Map<_, _> = about.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    header.insert("__metadata__".to_owned(), Value::Object(about));
    let mut start = 0usize;
    for (name, shape) in tensors {
        let end = start + 4 * shape.iter().product::<usize>();
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] });
        let before = header.insert(name.to_owned(), entry);
        assert!(before.is_none(), "tensor `{name}` is written twice");
        start = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    // Padded with spaces, so that the data begins on a line of the cache for whoever maps the file.
    text.resize((8 + text.len()).next_multiple_of(LINE) - 8, b' ');
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(&text)
}

/// Writes values as little-endian bytes.
pub(crate) fn write_values(out: &mut impl Write, values: &[f32]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(CHUNK.min(4 * values.len()));
    for part in values.chunks(CHUNK / 4) {
        bytes.clear();
        bytes.extend(part.iter().flat_map(|value| value.to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// Fills `out` from little-endian bytes of the same length.
pub(crate) fn values_from(bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), 4 * out.len(), "four bytes a value");
    for (value, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
        *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
}

/// An open safetensors file whose header is sound and whose length fits its header.
pub(crate) struct TensorFile {
    input: Box<dyn DiskRead>,
    data_start: u64,
    metadata: Metadata,
}

impl TensorFile {
    /// Reads and checks the header of a file of `len` bytes. Nothing is allocated beyond what the file really has.
    pub(crate) fn open(mut input: Box<dyn DiskRead>, len: u64) -> Result<Self, Fault> {
        if len < 8 {
            return Err(Fault::Truncated { expected: 8, got: len });
        }
        let mut prefix = [0; 8];
        input.read_exact(&mut prefix).map_err(Fault::Unreadable)?;
        let header_len = u64::from_le_bytes(prefix);
        if header_len > MAX_HEADER {
            return Err(Fault::TooLarge { limit: MAX_HEADER, got: header_len });
        }
        if header_len > len - 8 {
            return Err(Fault::Truncated { expected: 8 + header_len, got: len });
        }
        let mut header = vec![0; header_len as usize];
        input.read_exact(&mut header).map_err(Fault::Unreadable)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| Fault::NotSafetensors(error.to_string()))?;
        let data_start = 8 + header_len;
        let expected = data_start.saturating_add(metadata.data_len() as u64);
        match len.cmp(&expected) {
            std::cmp::Ordering::Less => Err(Fault::Truncated { expected, got: len }),
            std::cmp::Ordering::Greater => {
                Err(Fault::NotSafetensors(format!("{} bytes after the last tensor", len - expected)))
            }
            std::cmp::Ordering::Equal => Ok(Self { input, data_start, metadata }),
        }
    }

    /// The tensors' names in the order of their data.
    pub(crate) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// What the header says beside the tensors, by this name.
    pub(crate) fn about(&self, name: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(name).map(String::as_str)
    }

    /// Where the data begins. *Units*: bytes.
    pub(crate) fn data_start(&self) -> u64 {
        self.data_start
    }

    /// What the header says of a tensor.
    pub(crate) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }

    /// Gives the bytes of a tensor to `each`, in order, in pieces that end on eight bytes (but for the last).
    pub(crate) fn stream(&mut self, name: &str, mut each: impl FnMut(&[u8])) -> Result<(), Fault> {
        let (start, end) = self.info(name).ok_or_else(|| Fault::MissingTensor(name.to_owned()))?.data_offsets;
        self.input.seek(SeekFrom::Start(self.data_start + start as u64)).map_err(Fault::Unreadable)?;
        let mut left = end - start;
        let mut bytes = vec![0; CHUNK.min(left)];
        while left > 0 {
            let piece = &mut bytes[..CHUNK.min(left)];
            self.input.read_exact(piece).map_err(Fault::Unreadable)?;
            each(piece);
            left -= piece.len();
        }
        Ok(())
    }
}

/// Reads to the end and gives size and digest, in bounded memory.
pub(crate) fn digest_of(mut input: Box<dyn DiskRead>) -> io::Result<(u64, crate::Digest)> {
    let (mut hasher, mut bytes, mut total) = (blake3::Hasher::new(), vec![0; CHUNK], 0);
    loop {
        let n = match input.read(&mut bytes) {
            Ok(0) => return Ok((total, dtrain_types::Digest(*hasher.finalize().as_bytes()))),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&bytes[..n]);
        total += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;
    use std::io::Cursor;

    fn file(tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
        let mut out = Vec::new();
        let about = [("format", "pt".to_owned())];
        write_header(&mut out, &about, tensors.iter().map(|(name, shape, _)| (*name, *shape))).unwrap();
        tensors.iter().for_each(|(_, _, values)| write_values(&mut out, values).unwrap());
        out
    }

    fn open(bytes: &[u8]) -> Result<TensorFile, Fault> {
        TensorFile::open(Box::new(Cursor::new(bytes.to_vec())), bytes.len() as u64)
    }

    #[test]
    fn the_safetensors_crate_reads_what_is_written() {
        let bytes =
            file(&[("b", &[2, 1], &[1.5, -0.0]), ("a", &[], &[f32::MIN_POSITIVE]), ("none", &[0, 3], &[])]);
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.tensor("b").unwrap().shape(), [2, 1]);
        assert_eq!(
            read.tensor("b").unwrap().data(),
            [1.5f32.to_le_bytes(), (-0.0f32).to_le_bytes()].concat()
        );
        assert_eq!(read.tensor("a").unwrap().data(), f32::MIN_POSITIVE.to_le_bytes());
        assert!(read.tensor("none").unwrap().data().is_empty());
        assert_eq!((bytes.len() - 12) % LINE, 0, "the data is aligned");
    }

    #[test]
    fn a_tensor_larger_than_a_piece_comes_back_whole() {
        let values: Vec<f32> = (0..CHUNK / 2 + 3).map(|i| i as f32).collect();
        let mut file = open(&file(&[("big", &[values.len()], &values)])).unwrap();
        let (mut got, mut pieces) = (Vec::new(), 0);
        file.stream("big", |bytes| {
            got.extend_from_slice(bytes);
            pieces += 1;
        })
        .unwrap();
        let mut back = vec![0.0; values.len()];
        values_from(&got, &mut back);
        assert_eq!((back, pieces), (values, 3));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = file(&[("a", &[3], &[1.0, 2.0, 3.0])]);
        for len in 0..bytes.len() {
            assert!(open(&bytes[..len]).is_err(), "{len} of {} bytes were accepted", bytes.len());
        }
        assert!(open(&[&bytes[..], &[0]].concat()).is_err(), "a byte too many was accepted");
        assert!(open(&bytes).is_ok());
    }

    #[test]
    fn a_header_that_lies_is_an_error_and_reserves_no_memory() {
        let huge = [u64::MAX.to_le_bytes().to_vec(), b"{}".to_vec()].concat();
        assert!(matches!(open(&huge), Err(Fault::TooLarge { .. })));
        let long = [(MAX_HEADER - 1).to_le_bytes().to_vec(), b"{}".to_vec()].concat();
        assert!(matches!(open(&long), Err(Fault::Truncated { .. })));
        let with = |header: &str| open(&[&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat());
        for header in [
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4000000000]}}"#,
            r#"{"a":{"dtype":"F32","shape":[18446744073709551615,4],"data_offsets":[0,0]}}"#,
            r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[8,4]}}"#,
            r#"{"a":{"dtype":"F99","shape":[0],"data_offsets":[0,0]}}"#,
            r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,18446744073709551615]}}"#,
            r#"[]"#,
            "",
        ] {
            assert!(with(header).is_err(), "accepted {header}");
        }
        assert!(with(&"[".repeat(100_000)).is_err(), "deep nesting was accepted");
        assert!(with("{}").is_ok());
    }
}
