//! Checkpoints: what is in one, how it becomes durable, and how it is read back when the disk has lied.
//!
//! A checkpoint is a folder `g3-s001200` of safetensors shards and one `manifest.json` that names all of them with
//! their sizes and digests. It appears under its final name in one rename, after everything in it is on the disk
//! (S6), and it is read only after every digest agrees (S12). [`Store`] is the seam; [`FileStore`] keeps
//! checkpoints in a run folder, over a [`Disk`] that tests replace by one that fails.
//!
//! This crate does not know what a layer or an optimizer is: state is named tensors in flat `f32` sections. It does
//! not know when a checkpoint is due, who takes part, or what the ledger says.

mod checkpoint;
mod damage;
mod diff;
mod digest;
mod disk;
mod error;
mod export;
mod file_store;
mod frozen;
mod generations;
mod held;
mod init;
mod lock;
mod manifest;
mod seal;
mod shard;
mod slice;
mod store;
mod tensor_file;
mod whole;

pub use checkpoint::{Check, Checkpoint};
pub use damage::{Damage, Fault};
pub use diff::{Change, TensorDiff, diff};
pub use digest::hash;
pub use disk::{Disk, DiskRead, DiskWrite, RealDisk};
pub use dtrain_types::{CheckpointId, Digest};
pub use error::StoreError;
pub use export::{Exported, export, write_tensors};
pub use file_store::FileStore;
pub use frozen::{FROZEN, FROZEN_FILE, FrozenHeader, check_frozen, frozen_digest, write_frozen};
pub use generations::reserve_generations;
pub use held::held_by;
pub use init::{Given, InitError, Lies, Names, OwnNames, SectionMut, init_from};
pub use lock::{Holder, LockError, Owner, RunLock};
pub use manifest::shard_name;
pub use manifest::{
    AVERAGE, MANIFEST_VERSION, Manifest, ManifestError, PARAMETERS, STATS, ShardInfo, TensorSpec,
};
pub use shard::{TensorData, UnsyncedShard};
pub use slice::slice_for;
pub use store::{FoundCheckpoint, Newest, Store};
