//! The CUDA device: kernels, how each operation of the engine is made of them, and the driver that runs them.
//!
//! The kernels are the files in `kernels`. Each is compiled by NVRTC ([`nvrtc`]) for one architecture, or in tests by a C++
//! compiler over a stand-in for a GPU. [`kernels`] lists them, [`operations`] says which are launched for an operation,
//! with which grid, and gives them to a [`Queue`]. A stream of the [`driver`] is such a queue; [`CudaDevice`] is the engine's
//! device over one. [`collectives`] is how ranks on GPUs add up their gradients.
//!
//! [`libraries`] are NVIDIA's own products and convolutions, by algorithms that are written down.
//!
//! The bits of an operation depend on its operands and their full shape alone: grids follow from shapes, sums have one
//! order, and no kernel has an atomic operation ([0025](../../docs/design/decisions/0025-kernels-as-files.md)).
//!
//! This crate does not know models, nor where the driver and NVRTC are: it is given their paths.

pub mod collectives;
mod device;
pub mod driver;
pub mod kernels;
pub mod launch;
pub mod libraries;
pub mod memory;
pub mod nvrtc;
pub mod operations;
mod values;

pub(crate) use device::{Around, ConvolutionPlaces};
pub use device::{CudaDevice, DeviceFloats, DeviceScalar, PendingFindings, PendingSums, rehearsed};
pub use launch::{Argument, KernelLaunch, Queue, Work};
pub use memory::{Slice, SliceMut};
pub use operations::Precision;
pub use values::{Half, Storage, Values, ValuesMut};
