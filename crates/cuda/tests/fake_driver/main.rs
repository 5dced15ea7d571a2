//! The driver's side of the device, against a fake driver over host memory: the library `crates/fake-cuda`, which keeps what
//! a program gets wrong on a real one.
//!
//! Needs a C++ compiler, because the fake compiler of kernels does; without one these tests say so and pass.

#[path = "../stand_in/mod.rs"]
mod stand_in;

mod ahead;
mod cached;
mod copies;
mod digest;
mod errors;
mod model;
mod modes;
mod nccl;
mod operations;
mod precision;
mod program;
mod repeats;
mod rig;
mod streams;
mod suites;
mod support;
mod times;
mod training;

// Ranks that meet over a library of NCCL.
#[path = "../on_gpu/over_nccl.rs"]
mod over_nccl;
