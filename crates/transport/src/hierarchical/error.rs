//! Why a rank cannot join a generation that spans hosts.

use crate::ShmError;
use dtrain_types::{Rank, WorldSize};

/// What is wrong with a place in a generation that spans hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HierarchicalError {
    /// A world has at least one host.
    #[error("a topology without hosts")]
    NoHosts,
    /// A host without ranks takes part in nothing.
    #[error("host {host} has no ranks")]
    EmptyHost {
        /// The host.
        host: usize,
    },
    /// Ranks are numbered with 32 bits.
    #[error("more than 2^32 ranks up to host {host}")]
    TooManyRanks {
        /// The first host that has some of them.
        host: usize,
    },
    /// Topology and membership speak of different worlds.
    #[error("the hosts have {hosts} ranks, the membership has {members}")]
    World {
        /// Ranks of the topology.
        hosts: WorldSize,
        /// Ranks of the membership.
        members: WorldSize,
    },
    /// The leader of a host reaches the other hosts, and nobody else does.
    #[error("rank {rank} {what}")]
    Link {
        /// The rank.
        rank: Rank,
        /// What it has or lacks.
        what: &'static str,
    },
    /// The system has no thread for the watch over aborts.
    #[error("cannot start the thread that watches for aborts: {error}")]
    Watch {
        /// The kernel's answer.
        error: String,
    },
    /// The arena does not fit, or the membership makes no sense.
    #[error(transparent)]
    Arena(#[from] ShmError),
}
