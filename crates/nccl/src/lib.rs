//! Collectives over NCCL or RCCL: a library found at run time, a communicator that can be stopped, and a
//! [`NcclBackend`] for `dtrain-collective`.
//!
//! The library is opened by the paths that a caller names; without one everything here still builds, and opening is an
//! error that says what was tried. Communicators are never blocking: every call is polled, so that a thread of its own
//! can abort while others wait, and a wait ends within a deadline whatever the peers do.
//!
//! Streams, events, memory and the addition in tree order come from a [`Device`]: a GPU, or in tests this host, so that with the
//! library of `dtrain-fake-nccl` all of this crate runs where there is no GPU.
//!
//! This crate does not know steps, models or supervisors, nor how the unique id came here.

mod abort;
mod backend;
mod communicator;
mod device;
mod error;
mod group;
mod library;
mod locate;
mod pause;
mod planes;
mod record;
mod shared;
mod transfer;
mod version;

pub use abort::CommunicatorAborter;
pub use backend::{BackendParts, NcclBackend, NcclSetup};
pub use communicator::{Communicator, Forming, must_not_block};
pub use device::{Address, Device, DeviceArena, DeviceError, MemoryPlace, Stream};
pub use error::NcclError;
pub use group::NcclGroup;
pub use library::{Function, NcclLibrary, UniqueId};
pub use locate::open;
pub use planes::{LOG, NcclPlane, Patience, Planes};
pub use record::record_bytes;
pub use transfer::staged_floats;
pub use version::NcclVersion;
