//! Models as stages on flat buffers, their losses and optimizers, and the CPU device.
//!
//! Pure: no file, no clock, no socket. This crate does not know ranks, generations or collectives: it is handed
//! offsets of micro-batches and buffers to fill.

pub mod batch;
pub mod cpu;
pub mod device;
pub mod error;
pub mod flat;
pub mod layout;
pub mod replica;
pub mod stage;
pub mod state;

pub use batch::{Batch, ClassCounts, Figures, Inputs, Targets};
pub use error::EngineError;
pub use layout::{Layout, Section, StageSlice, Tensor};
pub use replica::{MemoryTable, Replica, UpdateInfo};
pub use state::{State, StateShape};
