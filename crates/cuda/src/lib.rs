//! The CUDA device's kernels, and how each operation of the engine is made of them.
//!
//! The kernels are the files in `kernels`. Each is compiled by NVRTC ([`nvrtc`]) for one architecture, or in tests by a C++
//! compiler over a stand-in for a GPU. [`kernels`] lists them, [`operations`] says which are launched for an operation,
//! with which grid, and gives them to a [`Queue`].
//!
//! [`libraries`] are NVIDIA's own products and convolutions, by algorithms that are written down.
//!
//! The bits of an operation depend on its operands and their full shape alone: grids follow from shapes, sums have one
//! order, and no kernel has an atomic operation ([0025](../../docs/decisions/0025-kernels-as-files.md)).
//!
//! This crate does not yet know a driver: it launches nothing by itself, and there is no `Device` here.

pub mod kernels;
pub mod launch;
pub mod libraries;
pub mod memory;
pub mod nvrtc;
pub mod operations;

pub use launch::{Argument, Launch, Queue};
pub use memory::{Slice, SliceMut};
