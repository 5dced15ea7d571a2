//! Gradients of ranks on GPUs: where they lie, and how they are added in tree order.
//!
//! [`GpuSlots`] is the arena of one rank. [`NcclDevice`] gives the backend of `dtrain-nccl` its stream, memory and additions.
//!
//! It does not know models, nor where a run's ranks are.

mod nccl;
mod slots;
mod sum;

pub use nccl::{NcclDevice, NcclMemory};
pub use slots::{GpuSlots, SlotMemory};
pub use sum::PlannedSum;
