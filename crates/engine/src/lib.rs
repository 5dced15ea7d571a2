//! Models as stages on flat buffers, their losses and optimizers, and the CPU device.
//!
//! Pure: no file, no clock, no socket. This crate does not know ranks, generations or collectives: it is handed
//! offsets of micro-batches and buffers to fill.

pub mod cpu;
pub mod device;
pub mod stage;
