//! What the stand-ins for NCCL, cuBLASLt and cuDNN share: work on streams, numbers in memory, what a test asks for that hurts, and
//! how they are tried.
//!
//! Each stand-in has its own copy of all this, so nothing is shared between two libraries in one process.

pub mod knobs;
pub mod numbers;
pub mod stream;
pub mod trial;
pub mod wrong;
