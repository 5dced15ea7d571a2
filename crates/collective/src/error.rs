//! What can go wrong in a collective through no fault of this process's code.
//!
//! After any of these the backend is dead: a collective that half happened cannot be taken up again, and the next
//! generation builds everything anew.

use crate::{Sequence, Tag};
use dtrain_types::{Generation, Rank, WorldSize};

/// Why a collective did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// Someone, here or at a peer, called the aborter.
    #[error("the collectives of this generation were aborted: {reason}")]
    Aborted {
        /// What the aborter was told.
        reason: String,
    },
    /// The backend has failed before.
    #[error("this backend failed before and is dead: the next generation builds a new one")]
    Dead,
    /// A peer sent what no schedule of this generation contains.
    #[error("rank {from} sent a frame that no schedule contains ({why}): {tag:?}")]
    Foreign {
        /// The sender.
        from: Rank,
        /// The frame's tag.
        tag: Tag,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A peer is in another collective than this rank, under the same number.
    #[error(
        "rank {from} does something else than this rank in collective {sequence}: peer {theirs}, here {ours}"
    )]
    Mismatch {
        /// The peer.
        from: Rank,
        /// The collective.
        sequence: Sequence,
        /// What the peer does, as packed words.
        theirs: String,
        /// What this rank does.
        ours: String,
    },
    /// A peer already works in a later generation: this one is over.
    #[error("rank {from} has left generation {generation}")]
    Superseded {
        /// The peer.
        from: Rank,
        /// The generation of this backend.
        generation: Generation,
    },
    /// The link to a peer is gone.
    #[error("the link to rank {to} is gone: {what}")]
    Lost {
        /// The peer.
        to: Rank,
        /// What the transport saw.
        what: String,
    },
    /// The device, or the library that moves its bytes, has failed.
    #[error("the device of this rank failed: {what}")]
    Device {
        /// What it said.
        what: String,
    },
    /// The membership makes no sense.
    #[error("rank {rank} of {world} {what}")]
    Assignment {
        /// The first rank at which it does not.
        rank: Rank,
        /// The world size.
        world: WorldSize,
        /// What is wrong.
        what: &'static str,
    },
}
