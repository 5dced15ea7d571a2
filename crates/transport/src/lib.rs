//! Ways to reach other ranks: memory shared between the processes of a host, queues between threads, and encrypted
//! links between hosts.
//!
//! Implements the seams of `dtrain-collective`. This crate does not know what a step, a model or a supervisor is; it
//! moves floats and stops when it is told to.

pub mod hierarchical;
pub mod memory;
mod port;
pub mod quic;
pub mod shm;

pub use hierarchical::{HierarchicalBackend, HierarchicalError, HierarchicalSetup, Topology};
pub use memory::{MemoryTransport, memory_mesh};
pub use port::free_port;
pub use shm::{ArenaFile, Mapping, ShmBackend, ShmError, ShmState};
