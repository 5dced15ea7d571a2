//! What can be wrong with a checkpoint on disk, said so that a person can act on it.
//!
//! Damage is a finding, not a failure of the reader: the caller falls back to the next checkpoint and reports it.

use crate::{CheckpointId, Digest, ManifestError};
use std::io;
use thiserror::Error;

/// One checkpoint that cannot be used: the file at fault and what is wrong with it.
#[derive(Debug, Error)]
#[error("{checkpoint}/{file}: {fault}")]
pub struct Damage {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The file in its folder.
    pub file: String,
    /// What is wrong with the file.
    #[source]
    pub fault: Fault,
}

/// What is wrong with a file.
#[derive(Debug, Error)]
pub enum Fault {
    /// It is not there.
    #[error("the file is missing")]
    Missing,
    /// It is something else than a plain file, such as a link.
    #[error("not a plain file")]
    NotAFile,
    /// The system could not read it.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// Its size is not the one in the manifest.
    #[error("{got} bytes, the manifest says {expected}")]
    Size {
        /// Size in the manifest.
        expected: u64,
        /// Size found.
        got: u64,
    },
    /// Its content is not the one in the manifest.
    #[error("blake3 {got}, the manifest says {expected}")]
    Digest {
        /// Digest in the manifest.
        expected: Digest,
        /// Digest found.
        got: Digest,
    },
    /// It is too large to be what it claims to be.
    #[error("{got} bytes of header, at most {limit} are read")]
    TooLarge {
        /// The bound.
        limit: u64,
        /// What the file claims.
        got: u64,
    },
    /// It ends inside its header or data.
    #[error("cut short: {expected} bytes are announced, {got} are there")]
    Truncated {
        /// Bytes that the file announces.
        expected: u64,
        /// Bytes that it has.
        got: u64,
    },
    /// It is not a safetensors file.
    #[error("not a safetensors file: {0}")]
    NotSafetensors(String),
    /// The manifest is cut short or was changed after it was written.
    #[error("the manifest is torn or was changed by hand: its seal does not fit")]
    Seal,
    /// The manifest is not JSON of the known form.
    #[error("not a manifest: {0}")]
    NotAManifest(String),
    /// The manifest contradicts itself.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The manifest belongs to another folder.
    #[error("the manifest is that of {0}")]
    OtherCheckpoint(CheckpointId),
    /// A tensor of the manifest is in no shard.
    #[error("tensor `{0}` is in no shard")]
    MissingTensor(String),
    /// A tensor is in two shards.
    #[error("tensor `{0}` is in an earlier shard too")]
    TwiceTensor(String),
    /// A shard has a tensor that the manifest does not name.
    #[error("tensor `{0}` is not in the manifest")]
    UnexpectedTensor(String),
    /// A tensor is not of `f32`.
    #[error("tensor `{name}` is {got}, not F32")]
    Kind {
        /// The tensor.
        name: String,
        /// Its element type.
        got: String,
    },
    /// A tensor has another shape than expected.
    #[error("tensor `{name}` has shape {got:?}, expected {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Shape expected.
        expected: Vec<usize>,
        /// Shape found.
        got: Vec<usize>,
    },
    /// The buffer to load into is too short for a tensor's place.
    #[error("tensor `{name}` ends at {end}, the buffer of its section has {len} elements")]
    OutOfBuffer {
        /// The tensor.
        name: String,
        /// One past its last element.
        end: usize,
        /// Elements in the buffer.
        len: usize,
    },
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::InvalidInput => Self::NotAFile,
            _ => Self::Unreadable(error),
        }
    }
}
