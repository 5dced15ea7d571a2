//! The file of a run that holds what no checkpoint does: parameters that training leaves as they are. It is written once, when the run begins, and mapped by
//! whoever reads it.
//!
//! It does not know which parameters these are, nor how a file is mapped.

use crate::digest::{Hashing, hash};
use crate::tensor_file::{TensorFile, write_header, write_values};
use crate::whole::write_whole;
use crate::{Digest, Disk, Fault, RealDisk, StoreError, TensorSpec};
use safetensors::Dtype;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

/// The section of the parameters that stay as they are.
pub const FROZEN: &str = "frozen";
/// Their file in the folder of a run.
pub const FROZEN_FILE: &str = "frozen.safetensors";
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Under this name its header has the digest of all values.
const DIGEST: &str = "blake3";

/// What such a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenHeader {
    /// blake3 of all values, little-endian, in their order.
    pub digest: Digest,
    /// Where they lie in the file. *Units*: bytes.
    pub values: Range<usize>,
    /// The tensors in the order of their values.
    pub tensors: Vec<(String, Vec<usize>)>,
}

impl FrozenHeader {
    /// Reads the header of a file.
    ///
    /// *Errors*: it cannot be read, or was not written by [`write_frozen`]. *Blocks* on the disk.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let input = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Fault::Missing,
            _ => Fault::Unreadable(error),
        })?;
        let metadata = input.metadata()?;
        if !metadata.is_file() {
            return Err(Fault::NotAFile);
        }
        let file = TensorFile::open(Box::new(input), metadata.len())?;
        let not_ours = || Fault::NotSafetensors("dtrain did not write it".into());
        let digest = file.about(DIGEST).and_then(|text| text.parse().ok()).ok_or_else(not_ours)?;
        let tensor = |name: String| {
            let info = file.info(&name).expect("a name that the file has");
            (info.dtype == Dtype::F32).then(|| (name.clone(), info.shape.clone())).ok_or_else(not_ours)
        };
        let tensors = file.names().into_iter().map(tensor).collect::<Result<_, _>>()?;
        let start = usize::try_from(file.data_start()).map_err(|_| not_ours())?;
        let end = usize::try_from(metadata.len()).map_err(|_| not_ours())?;
        if start % size_of::<f32>() != 0 {
            return Err(not_ours());
        }
        Ok(Self { digest, values: start..end, tensors })
    }

    /// The same of a file that must have this digest. *Errors*: also, it has another one.
    pub(crate) fn of(path: &Path, expected: Digest) -> Result<Self, Fault> {
        let header = Self::read(path)?;
        match header.digest {
            got if got == expected => Ok(header),
            got => Err(Fault::Digest { expected, got }),
        }
    }

    /// Gives the bytes of all values to `each`, in order, in pieces.
    ///
    /// *Blocks* on the disk. *Errors*: the file cannot be read, or its values are others; `each` then had them.
    pub(crate) fn stream(&self, path: &Path, mut each: impl FnMut(&[u8])) -> Result<(), Fault> {
        let mut input = File::open(path)?;
        input.seek(SeekFrom::Start(self.values.start as u64))?;
        let (mut hasher, mut piece) = (blake3::Hasher::new(), vec![0; PIECE]);
        let mut left = self.values.len();
        while left > 0 {
            let piece = &mut piece[..PIECE.min(left)];
            input.read_exact(piece)?;
            hasher.update(piece);
            each(piece);
            left -= piece.len();
        }
        self.compare(Digest(*hasher.finalize().as_bytes()))
    }

    /// Holds the values against their digest. *Errors*: they are others.
    pub fn check(&self, values: &[u8]) -> Result<(), Fault> {
        self.compare(hash(values))
    }

    fn compare(&self, got: Digest) -> Result<(), Fault> {
        match got {
            got if got == self.digest => Ok(()),
            got => Err(Fault::Digest { expected: self.digest, got }),
        }
    }
}

/// Reads the file in the folder of a run to its end, and holds it against this digest.
///
/// *Blocks* on the disk; holds one megabyte. *Errors*: it is missing, damaged, or another one.
pub fn check_frozen(run: &Path, expected: Digest) -> Result<(), Fault> {
    let path = run.join(FROZEN_FILE);
    FrozenHeader::of(&path, expected)?.stream(&path, |_| {})
}

/// The digest that such a file of these values has.
#[must_use]
pub fn frozen_digest(values: &[f32]) -> Digest {
    let mut hashing = Hashing::new(io::sink());
    write_values(&mut hashing, values).expect("a sink takes everything");
    let (_, _, digest) = hashing.finish();
    digest
}

/// Writes such a file into a folder, which has it whole or not at all; gives the digest of the values.
///
/// *Blocks* on the disk. *Errors*: the disk fails. *Panics* if `specs` are not all of `values`, in order.
pub fn write_frozen(folder: &Path, specs: &[TensorSpec], values: &[f32]) -> Result<Digest, StoreError> {
    assert_eq!(specs.last().map_or(0, TensorSpec::end), values.len(), "tensors without gaps");
    let digest = frozen_digest(values);
    let write = |path: &Path| {
        let mut file = BufWriter::new(RealDisk.create(path)?);
        let about = [("format", "pt".to_owned()), (DIGEST, digest.to_string())];
        let shapes = specs.iter().map(|spec| (spec.name.as_str(), spec.shape.as_slice()));
        write_header(&mut file, &about, shapes)?;
        write_values(&mut file, values)?;
        file.flush()?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync()
    };
    write_whole(&folder.join(FROZEN_FILE), |path| {
        write(path).map_err(|error| StoreError::io("write", path, error))
    })?;
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs() -> Vec<TensorSpec> {
        vec![
            TensorSpec::new("model.b", &[2, 3], FROZEN, 0),
            TensorSpec::new("model.a", &[5], FROZEN, 6),
            TensorSpec::new("model.c", &[], FROZEN, 11),
        ]
    }

    #[test]
    fn what_is_written_says_what_it_is_and_a_changed_byte_is_found() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(FrozenHeader::read(&folder.path().join(FROZEN_FILE)), Err(Fault::Missing)));
        let values: Vec<f32> = (0..12).map(|i| i as f32 * 0.5).collect();
        let digest = write_frozen(folder.path(), &specs(), &values).unwrap();
        assert_eq!(digest, frozen_digest(&values));
        let path = folder.path().join(FROZEN_FILE);
        let header = FrozenHeader::read(&path).unwrap();
        let named = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
        assert_eq!(
            header.tensors,
            [named("model.b", &[2, 3]), named("model.a", &[5]), named("model.c", &[])]
        );
        assert_eq!((header.digest, header.values.len(), header.values.start % 64), (digest, 48, 0));
        let mut bytes = std::fs::read(&path).unwrap();
        header.check(&bytes[header.values.clone()]).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(matches!(header.check(&bytes[header.values.clone()]), Err(Fault::Digest { .. })));
        check_frozen(folder.path(), digest).unwrap();
        assert!(matches!(check_frozen(folder.path(), Digest([1; 32])), Err(Fault::Digest { .. })));
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(check_frozen(folder.path(), digest), Err(Fault::Digest { .. })));
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, [FROZEN_FILE], "nothing else is left");
        for len in 0..bytes.len() {
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert!(FrozenHeader::read(&path).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_file_of_others_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other.safetensors");
        crate::write_tensors(
            &path,
            &[("format", "pt".into())],
            std::iter::once(("a", &[2][..], &[1.0, 2.0][..])),
        )
        .unwrap();
        assert!(matches!(FrozenHeader::read(&path), Err(Fault::NotSafetensors(_))));
    }
}
