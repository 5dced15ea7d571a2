//! The manifest: the one file that makes a folder of shards a checkpoint.
//!
//! It says whose state this is, which shards hold it, and where each tensor belongs. It does not know the bytes of
//! the shards, and it is not trusted until [`Manifest::problems`] found nothing.

use crate::{CheckpointId, Digest};
use dtrain_types::{Bytes, Epoch, Rank, Seed};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// The version of the manifest that this crate writes and reads.
pub const MANIFEST_VERSION: u32 = 1;
/// The section of the `f32` master parameters.
pub const PARAMETERS: &str = "parameters";
/// The section of the running statistics.
pub const STATS: &str = "stats";
/// The section of the moving average of the parameters, where one is kept.
pub const AVERAGE: &str = "average";

/// One named tensor: its shape, and its place in a flat `f32` section of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Its name in the file, unique over the whole state, such as `model.0.weight` or `optimizer.m.0.weight`.
    pub name: String,
    /// Its shape; empty for a scalar.
    pub shape: Vec<usize>,
    /// The flat buffer it lies in: [`PARAMETERS`], [`STATS`], or an optimizer's, such as `optimizer.m`.
    pub section: String,
    /// Its first element in the section.
    pub offset: usize,
    /// Its elements: the product of `shape`.
    pub len: usize,
}

impl TensorSpec {
    /// Describes a tensor of `shape` at `offset` of `section`.
    ///
    /// *Panics* if the shape has more elements than memory has bytes.
    #[must_use]
    pub fn new(name: impl Into<String>, shape: &[usize], section: impl Into<String>, offset: usize) -> Self {
        let len = elements(shape).expect("a tensor fits into memory");
        Self { name: name.into(), shape: shape.to_vec(), section: section.into(), offset, len }
    }

    /// One past its last element in the section.
    #[must_use]
    pub fn end(&self) -> usize {
        self.offset + self.len
    }
}

/// The elements of a shape, `None` where the product overflows.
pub(crate) fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, side| product.checked_mul(*side))
}

/// One shard as its writer reports it once it is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardInfo {
    /// The file's name in the folder, such as `rank-00000.safetensors`.
    pub file: String,
    /// Its size.
    pub bytes: Bytes,
    /// The digest of all its bytes.
    pub blake3: Digest,
}

/// What a checkpoint is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`MANIFEST_VERSION`] of its writer.
    pub version: u32,
    /// The checkpoint's name.
    pub id: CheckpointId,
    /// The lineage: the name of the run; a fork begins a new one.
    pub run: String,
    /// The checkpoint that the run resumed from, if it did.
    pub parent: Option<CheckpointId>,
    /// The seed of the run.
    pub seed: Seed,
    /// The epoch of the last step in it.
    pub epoch: Epoch,
    /// The configuration keys that decide the bits, with their values.
    pub bits: Map<String, Value>,
    /// The fingerprint of the devices that computed the state.
    pub fingerprint: String,
    /// How gradients were reduced: `exact` or `ring`.
    pub reduce: String,
    /// The hash of the ledger's last line up to this step, durable before this manifest.
    pub ledger: Digest,
    /// Validation results known when it was written, by name.
    pub metrics: Map<String, Value>,
    /// The digest of all of the state, as the engine defines it.
    pub state_digest: Digest,
    /// The digest for people: master parameters, then running statistics.
    pub digest: Digest,
    /// When it was written, RFC 3339 or whatever the caller's clock says; nobody computes with it.
    pub created: String,
    /// The revision of dtrain that wrote it.
    pub revision: String,
    /// The digest of the parameters that stay as they are, where there are some: they lie in the folder of the run
    /// ([`FROZEN_FILE`](crate::FROZEN_FILE)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<Digest>,
    /// What turns a sample as people have it into what the model was trained on, as the data crate writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparation: Option<Value>,
    /// How long the metric of early stopping has not improved, as the runtime writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping: Option<Value>,
    /// Every shard.
    pub shards: Vec<ShardInfo>,
    /// Every tensor, in layout order.
    pub tensors: Vec<TensorSpec>,
}

/// Why a manifest is not believed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// It was written by another revision of the format.
    #[error("manifest version {got}, this program reads version {MANIFEST_VERSION}")]
    Version {
        /// The version found.
        got: u32,
    },
    /// A shard has a name that no rank writes; also what a path out of the folder looks like.
    #[error("`{0}` is not the name of a shard")]
    ShardName(String),
    /// A shard is named twice.
    #[error("shard {0} is named twice")]
    TwiceShard(String),
    /// A tensor's name is empty or reserved.
    #[error("`{0}` cannot be the name of a tensor")]
    TensorName(String),
    /// A tensor is named twice.
    #[error("tensor `{0}` is named twice")]
    TwiceTensor(String),
    /// A tensor's length is not the product of its shape, or its end overflows.
    #[error("tensor `{name}` has {len} elements at {offset}, its shape is {shape:?}")]
    Extent {
        /// The tensor.
        name: String,
        /// The length it claims.
        len: usize,
        /// Its offset.
        offset: usize,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Two tensors share elements of a section.
    #[error("tensors `{first}` and `{second}` overlap in section {section}")]
    Overlap {
        /// The section.
        section: String,
        /// The tensor that begins first.
        first: String,
        /// The one that begins before the first has ended.
        second: String,
    },
}

impl Manifest {
    /// Checks that the manifest is of this version and does not contradict itself. It opens no file.
    ///
    /// *Errors*: the first contradiction.
    pub fn problems(&self) -> Result<(), ManifestError> {
        if self.version != MANIFEST_VERSION {
            return Err(ManifestError::Version { got: self.version });
        }
        check_shards(&self.shards)?;
        check_tensors(&self.tensors)
    }

    /// The tensors of one section, in layout order.
    pub fn section<'a>(&'a self, section: &'a str) -> impl Iterator<Item = &'a TensorSpec> {
        self.tensors.iter().filter(move |spec| spec.section == section)
    }
}

fn check_shards(shards: &[ShardInfo]) -> Result<(), ManifestError> {
    let mut seen = BTreeSet::new();
    for shard in shards {
        let rank = shard.file.strip_prefix("rank-").and_then(|rest| rest.strip_suffix(".safetensors"));
        let rank = rank.and_then(|digits| digits.parse().ok()).map(Rank);
        // The name must be the one that we would write. So a path, `..` or a NUL can never reach the disk.
        if rank.map(shard_name).as_deref() != Some(shard.file.as_str()) {
            return Err(ManifestError::ShardName(shard.file.clone()));
        }
        if !seen.insert(&shard.file) {
            return Err(ManifestError::TwiceShard(shard.file.clone()));
        }
    }
    Ok(())
}

/// Checks names, extents and overlaps of a layout.
pub(crate) fn check_tensors(tensors: &[TensorSpec]) -> Result<(), ManifestError> {
    let mut names = BTreeSet::new();
    let mut sections: BTreeMap<&str, Vec<&TensorSpec>> = BTreeMap::new();
    for spec in tensors {
        if spec.name.is_empty() || spec.name == "__metadata__" {
            return Err(ManifestError::TensorName(spec.name.clone()));
        }
        if !names.insert(&spec.name) {
            return Err(ManifestError::TwiceTensor(spec.name.clone()));
        }
        let bytes = elements(&spec.shape).and_then(|len| len.checked_mul(4));
        let fits = spec.offset.checked_add(spec.len).is_some();
        if bytes != spec.len.checked_mul(4) || bytes.is_none() || !fits {
            let TensorSpec { name, len, offset, shape, .. } = spec.clone();
            return Err(ManifestError::Extent { name, len, offset, shape });
        }
        sections.entry(&spec.section).or_default().push(spec);
    }
    for (section, mut specs) in sections {
        specs.retain(|spec| spec.len > 0);
        specs.sort_by_key(|spec| spec.offset);
        if let Some(pair) = specs.windows(2).find(|pair| pair[0].end() > pair[1].offset) {
            return Err(ManifestError::Overlap {
                section: section.to_owned(),
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
            });
        }
    }
    Ok(())
}

/// The file name of a rank's shard.
#[must_use]
pub fn shard_name(rank: Rank) -> String {
    format!("rank-{:05}.safetensors", rank.0)
}
