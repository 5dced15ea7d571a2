//! Words that every part of dtrain shares: ids and counts as types of their own, the batch plan,
//! the reduction tree and what its nodes are rounded to, counter-based randomness, functions with the same bits everywhere, and time as a value.
//!
//! Pure data and pure functions. This crate does not know what a gradient, a message or a file is.

mod carried;
mod checkpoint_id;
mod counted;
mod device_memory;
mod digest;
mod exact_sum;
mod fingerprint;
mod holding;
mod ids;
pub mod numbers;
mod plan;
mod random;
mod ranges;
mod reduce;
mod runs;
mod shared_state;
mod text;
mod time;
mod trailer;
mod tree;
mod wire;
mod words;

pub use carried::{word_of_floats, word_to_floats};
pub use checkpoint_id::CheckpointId;
pub use counted::{counted, plural};
pub use device_memory::DeviceMemory;
pub use digest::Digest;
pub use exact_sum::{ExactQuotient, ExactSum};
pub use fingerprint::Fingerprint;
pub use holding::{Holders, Holding, Remirror, SHARDS, ShardLevel, Transfer, shard_elements};
pub use ids::{
    Bytes, Epoch, Generation, Incarnation, Instance, MemberId, MicroBatch, NodeId, Rank, Seed, Step,
    WorldSize,
};
pub use plan::{BatchPlan, PlanError, StepPlan};
pub use random::{Key, Permutation, Site, unit_of};
pub use ranges::{MicroRange, cut_evenly, cut_in_proportion};
pub use reduce::Reduce;
pub use runs::{joined, without};
pub use shared_state::{SHARED_AREAS, SharedFloats, SharedShape, SharedState};
pub use text::Misspelt;
pub use time::Instant;
pub use trailer::Trailer;
pub use tree::{Fold, FoldStep, Merger, roots};
pub use wire::{Wire, to_bf16};
