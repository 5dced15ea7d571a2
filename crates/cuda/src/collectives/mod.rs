//! Gradients of ranks on GPUs: where they lie, how they are added in tree order, and how ranks that share one GPU exchange
//! them.
//!
//! [`GpuSlots`] is the arena of one rank. [`NcclDevice`] gives the backend of `dtrain-nccl` its stream, memory and additions.
//! [`SameDeviceBackend`] is a backend of its own for several ranks, threads of one process, on one GPU: it needs no library.
//!
//! It does not know models, nor where a run's ranks are.

mod meeting;
mod nccl;
mod same_device;
mod slots;
mod sum;

pub use nccl::{NcclDevice, NcclMemory};
pub use same_device::{GpuArena, SameDeviceBackend, SameDeviceError};
pub use slots::{GpuSlots, SlotMemory};
pub use sum::PlannedSum;
