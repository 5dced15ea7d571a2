//! Writing one rank's shard: one pass over the tensors, hashed on the way, and made durable when they are not read any more.

use crate::digest::Hashing;
use crate::tensor_file::{write_header, write_values};
use crate::{CheckpointId, Disk, DiskWrite, ShardInfo, StoreError, shard_name};
use dtrain_types::{Bytes, Rank};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// One tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct TensorData<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Its shape.
    pub shape: &'a [usize],
    /// Its elements, as many as the shape has, in parts that follow one another.
    pub data: &'a [&'a [f32]],
}

/// A shard whose bytes were given to the disk, and which a loss of power may still take away. Its tensors are not read any more.
#[must_use = "it is not durable yet"]
pub struct UnsyncedShard {
    path: PathBuf,
    written: Box<dyn DiskWrite>,
    info: ShardInfo,
}

impl UnsyncedShard {
    /// Waits until its bytes are on the disk.
    ///
    /// The file's *name* is durable only after the folder is synced, which the committer does once for all shards.
    ///
    /// *Blocks* on the disk. *Errors*: it fails.
    pub fn sync(mut self) -> Result<ShardInfo, StoreError> {
        // A failed sync is never repeated: the kernel may have dropped the pages, and a second call would succeed.
        self.written.sync().map_err(|error| StoreError::io("write", &self.path, error))?;
        Ok(self.info)
    }
}

/// Writes the shard of `rank` into the folder `dir`.
///
/// *Blocks* on the disk. *Errors*: if the file exists, or the disk fails. *Panics* if a tensor's data does not fit
/// its shape or a name comes twice.
pub(crate) fn write_shard(
    disk: &dyn Disk,
    dir: &Path,
    (id, rank): (CheckpointId, Rank),
    tensors: &[TensorData<'_>],
) -> Result<UnsyncedShard, StoreError> {
    for tensor in tensors {
        let elements: usize = tensor.shape.iter().product();
        let given: usize = tensor.data.iter().map(|part| part.len()).sum();
        assert_eq!(given, elements, "tensor `{}` of shape {:?}", tensor.name, tensor.shape);
    }
    let file = shard_name(rank);
    let path = dir.join(&file);
    let fail = |error: io::Error| StoreError::io("write", &path, error);
    let mut out = Hashing::new(BufWriter::new(disk.create(&path).map_err(fail)?));
    // `format: pt` is what Python's loaders expect of tensors in row-major order.
    let about = [("format", "pt".to_owned()), ("checkpoint", id.to_string()), ("rank", rank.to_string())];
    let shapes = tensors.iter().map(|tensor| (tensor.name, tensor.shape));
    write_header(&mut out, &about, shapes).map_err(fail)?;
    for tensor in tensors {
        tensor.data.iter().try_for_each(|part| write_values(&mut out, part)).map_err(fail)?;
    }
    out.flush().map_err(fail)?;
    let (buffered, bytes, blake3) = out.finish();
    let written = buffered.into_inner().map_err(|error| fail(error.into_error()))?;
    Ok(UnsyncedShard { path, written, info: ShardInfo { file, bytes: Bytes(bytes), blake3 } })
}
