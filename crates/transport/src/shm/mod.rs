//! All-reduce between the processes (and threads) of one host, through memory that all of them map.
//!
//! The gradient buffers of all ranks lie in one memfd, the *arena*. A collective is: barrier, each rank sums its chunk
//! of everyone's roots and stores the sum into everyone's slot 0, barrier. One pass, no staging copy. Where ranks share
//! cores nobody owns a chunk: whoever runs takes the next piece, and the second barrier is the count of pieces done. Between
//! two collectives a rank's slots are its own, but for what it has given ahead of the next one, and only then are they lent as
//! slices; inside one they are touched through raw pointers only, because another process may be writing there.
//!
//! Behind the gradients there may be room for a state that the ranks have in common, see `state.rs`.
//!
//! It does not know who maps the arena, or how its descriptor got there.

mod abort;
mod ahead;
mod backend;
mod barrier;
mod bell;
mod claims;
mod error;
mod file;
mod fused;
mod group;
mod kernel;
mod layout;
mod mapping;
#[cfg(test)]
mod model;
mod pass;
mod pieces;
mod state;
mod wait;
mod watch;

pub use backend::ShmBackend;
pub use error::ShmError;
pub use file::ArenaFile;
pub use kernel::Isa;
pub use mapping::Mapping;
pub use state::ShmState;

pub(crate) use abort::ShmAbort;
pub(crate) use ahead::Strips;
pub(crate) use group::{Group, SharedSlots};
pub(crate) use watch::AbortWatch;
