//! Collectives of a world that spans hosts: shared memory inside each host, frames between one leader per host.
//!
//! An all-reduce has three stages with a barrier of the host between them. *Fold*: on each host the ranks add their roots
//! into the largest subtrees of the step's tree that lie inside the host's range, each rank a chunk of the floats.
//! *Exchange*: the leaders, the first rank of each host, run the direct algorithm among themselves, each speaking for its
//! host's range, straight from and into shared memory. *Spread*: the ranks copy the sum into everyone's slot 0, each a
//! chunk. Ranks of a host are neighbours, so its range is contiguous and every addition is one of the tree: the bits are
//! those of the flat collectives, whatever the topology.
//!
//! What ranks offer ahead of an all-reduce goes through the first two stages without a barrier: whoever finds that all ranks of
//! its host have given a strip adds up its share of it, and the leader sends what all have added up.
//!
//! In ring mode the sums of the hosts, added by rank, go around a ring of the leaders: the bits depend on the topology.
//!
//! It does not know what carries the frames, nor how the hosts were found.

mod backend;
mod error;
mod link;
mod topology;

pub use backend::{HierarchicalBackend, HierarchicalSetup};
pub use error::HierarchicalError;
pub use topology::Topology;
