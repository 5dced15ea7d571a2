//! What can be wrong with an arena that came from elsewhere.

use dtrain_collective::{CollectiveError, Geometry};
use dtrain_types::{Bytes, Generation, Rank, WorldSize};

/// Why an arena cannot be made, mapped or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShmError {
    /// The kernel refused.
    #[error("cannot {what} an arena of {size} bytes: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The arena's size.
        size: Bytes,
        /// The kernel's answer.
        error: rustix::io::Errno,
    },
    /// The geometry is larger than an address space.
    #[error("an arena for {world} ranks of {geometry:?} does not fit into memory")]
    TooLarge {
        /// Ranks.
        world: WorldSize,
        /// Buffers of each.
        geometry: Geometry,
    },
    /// The descriptor names no arena of this revision.
    #[error("this descriptor is no arena: {what} is {got}, not {expected}")]
    NotAnArena {
        /// The field that is wrong.
        what: &'static str,
        /// Its value.
        got: u64,
        /// What it should be.
        expected: u64,
    },
    /// The file could shrink under the mapping, and a read past its end would kill the process.
    #[error("the arena's file is not sealed against shrinking")]
    NotSealed,
    /// The generation does not fit into this arena.
    #[error(
        "generation {generation} needs {world} ranks of {needed:?}, the arena has {arena_world} of {arena:?}"
    )]
    TooSmall {
        /// The generation.
        generation: Generation,
        /// Its ranks.
        world: WorldSize,
        /// The buffers that it needs.
        needed: Geometry,
        /// The ranks of the arena.
        arena_world: WorldSize,
        /// The buffers of the arena.
        arena: Geometry,
    },
    /// Two backends would lend the same memory.
    #[error("rank {rank} of generation {generation} or a later one is already in use in this arena")]
    RankTaken {
        /// The rank.
        rank: Rank,
        /// The generation.
        generation: Generation,
    },
    /// The membership makes no sense.
    #[error(transparent)]
    Membership(#[from] CollectiveError),
}
