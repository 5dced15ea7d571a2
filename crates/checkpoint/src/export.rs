//! One file with the model of a checkpoint, for whoever serves or inspects it: parameters and running statistics,
//! merged from all shards. Optimizer state stays behind, unless all is asked for, to train on.

use crate::digest::Hashing;
use crate::tensor_file::{write_header, write_values};
use crate::whole::write_whole;
use crate::{
    AVERAGE, Checkpoint, Disk, FROZEN_FILE, Fault, FrozenHeader, PARAMETERS, RealDisk, STATS, ShardInfo,
    StoreError,
};
use dtrain_types::Bytes;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// What of a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// The finished model: where a moving average of the parameters is kept, that, under the names of the parameters.
    Model,
    /// All that a training goes on with, under the names that it has in the checkpoint.
    State,
}

/// Writes the model of `checkpoint` to `out`, which appears whole or not at all; gives its size and digest. What the run leaves as it is comes from its
/// file of such parameters, where it has one.
///
/// *Blocks* on the disk; holds one megabyte. *Errors*: the disk fails or a shard is damaged; an existing `out` is
/// then untouched.
pub fn export(checkpoint: &Checkpoint, out: &Path, what: Exported) -> Result<ShardInfo, StoreError> {
    let (bytes, blake3) = write_whole(out, |temporary| write_model(checkpoint, temporary, what))?;
    let file = out.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(ShardInfo { file, bytes: Bytes(bytes), blake3 })
}

fn write_model(
    checkpoint: &Checkpoint,
    path: &Path,
    what: Exported,
) -> Result<(u64, crate::Digest), StoreError> {
    let fail = |error: io::Error| StoreError::io("write", path, error);
    let manifest = checkpoint.manifest();
    let sections =
        |of: &[&'static str]| of.iter().flat_map(|section| manifest.section(section)).collect::<Vec<_>>();
    let named = match what {
        Exported::Model => sections(&[PARAMETERS, STATS]),
        Exported::State => manifest.tensors.iter().collect(),
    };
    // In their place, under their names.
    let mut read = named.clone();
    if what == Exported::Model {
        for (spec, averaged) in read.iter_mut().zip(sections(&[AVERAGE])) {
            *spec = averaged;
        }
    }
    let mut out = Hashing::new(BufWriter::new(RealDisk.create(path).map_err(fail)?));
    let about = [
        ("format", "pt".to_owned()),
        ("checkpoint", manifest.id.to_string()),
        ("run", manifest.run.clone()),
        ("digest", manifest.digest.to_string()),
    ];
    let preparation =
        manifest.preparation.as_ref().map(|preparation| ("preparation", preparation.to_string()));
    let about: Vec<(&str, String)> = about.into_iter().chain(preparation).collect();
    let damaged = |fault: Fault| checkpoint.damage(FROZEN_FILE, fault);
    let frozen = checkpoint.frozen_file();
    let header = manifest.frozen.map(|digest| FrozenHeader::of(&frozen, digest));
    let header = header.transpose().map_err(damaged)?;
    let apart = header.iter().flat_map(|header| &header.tensors);
    let apart = apart.map(|(name, shape)| (name.as_str(), shape.as_slice()));
    let shapes = named.iter().map(|spec| (spec.name.as_str(), spec.shape.as_slice())).chain(apart);
    write_header(&mut out, &about, shapes).map_err(fail)?;
    let mut reader = checkpoint.reader();
    for spec in read {
        let mut result = Ok(());
        reader.stream(&spec.name, |bytes| {
            if result.is_ok() {
                result = out.write_all(bytes);
            }
        })?;
        result.map_err(fail)?;
    }
    if let Some(header) = header {
        let mut result = Ok(());
        header
            .stream(&frozen, |bytes| {
                if result.is_ok() {
                    result = out.write_all(bytes);
                }
            })
            .map_err(damaged)?;
        result.map_err(fail)?;
    }
    out.flush().map_err(fail)?;
    let (buffered, bytes, digest) = out.finish();
    buffered.into_inner().map_err(|error| fail(error.into_error()))?.sync().map_err(fail)?;
    Ok((bytes, digest))
}

/// Writes some tensors, by name, as one safetensors file.
///
/// *Blocks* on the disk. *Errors*: of the system; the file may then be half-written.
pub fn write_tensors<'a>(
    path: &Path,
    about: &[(&str, String)],
    tensors: impl Iterator<Item = (&'a str, &'a [usize], &'a [f32])> + Clone,
) -> io::Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    write_header(&mut out, about, tensors.clone().map(|(name, shape, _)| (name, shape)))?;
    for (_, _, values) in tensors {
        write_values(&mut out, values)?;
    }
    out.flush()?;
    out.get_ref().sync_all()
}
