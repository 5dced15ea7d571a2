//! The CUDA driver: a device's context, its memory, its streams, and what is loaded there.
//!
//! Over cudarc's bindings, which look for the driver at run time. Each function that is needed is looked up before the first
//! call ([`Driver::open`]), because the bindings panic on one that is missing. Nothing here makes events behind a caller's
//! back: order between streams is what [`Stream::record`] and [`Stream::wait_for`] say.
//!
//! A failure that sticks to a context is kept there. From then on every call returns it without asking the driver, and
//! what is dropped is left to the end of the process: a device that has failed may never answer.
//!
//! This module does not know what the operations of a model are.

mod cache;
mod context;
mod error;
mod event;
mod gpu;
mod graph;
mod library;
mod memory;
mod paper;
mod repeats;
mod stream;
mod times;
mod version;

pub use cache::KernelCache;
pub use context::{About, Context};
pub use error::{DriverError, GpuError};
pub use event::Event;
pub use gpu::{Gpu, Loaded};
pub use library::Driver;
pub use memory::{Buffer, Part, Pinned};
pub use paper::{ALIGNED, KernelTally, Tally};
pub use stream::Stream;
pub use times::KernelTime;
pub use version::DriverVersion;
