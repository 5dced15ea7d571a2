//! Collectives: what every rank of a generation does together, as pure schedules and machines.
//!
//! Two seams live here. A [`Backend`] runs whole collectives; a [`Transport`] moves frames between ranks and is
//! driven by [`HostBackend`]. The order of every sum is stated once ([`SumOrder`]) and shared by all of them, so
//! that the bits of a reduced gradient do not depend on how its bytes travelled (S9).
//!
//! This crate does not know processes, sockets, clocks, devices or models. It never blocks by itself: the only
//! waiting is inside `Transport::wait`.

mod add;
mod arena;
mod assignment;
mod backend;
mod chunk;
mod device_slot;
mod direct;
mod drive;
mod error;
mod frame;
mod geometry;
mod host;
mod host_plan;
mod machine;
mod narrow;
mod operation;
mod order;
mod plan;
mod position;
mod progress;
mod ring;
mod tag;

pub use add::{BLOCK, add_to, sum_block};
pub use arena::{Arena, HostArena, Slots};
pub use assignment::Assignment;
pub use backend::{Abort, AbortFlag, Aborter, Backend};
pub use chunk::{Chunks, SEGMENT};
pub use device_slot::{DeviceSlot, Spot};
pub use drive::{drive, pump};
pub use dtrain_types::Reduce;
pub use error::CollectiveError;
pub use frame::{Frame, Header, Outgoing, Transport, Verdict, Waker};
pub use geometry::{Geometry, rank_roots};
pub use host::HostBackend;
pub use host_plan::{HostPlan, RootFold, host_range};
pub use machine::RankMachine;
pub use narrow::Narrow;
pub use operation::{Moves, Op, OpKind, Sequence, Take};
pub use order::{SumOrder, SumStep};
pub use plan::{CountPlan, Plans};
pub use progress::{Intent, Progress};
pub use tag::Tag;
