//! cuBLASLt's C interface over host memory: what tests open instead of `libcublasLt.so.13`.
//!
//! What it keeps of the real library, because its users must live with it:
//! - A product is work on a stream, and the call returns before it is done. The stream is one of the driver that
//!   `FAKE_CUBLASLT_DRIVER` names (see `queue.rs`); without one the product is done at once.
//! - The bits of a product depend on its algorithm. K is cut into runs, which are added up one after another: how many is told
//!   by the algorithm's number (see `algorithm.rs`). So a test sees which algorithm computed, wherever K is not very small.
//! - Some algorithms cut K among blocks (split-K). They write to their workspace, and heuristics leave them out where the
//!   preference forbids it or has no room for it.
//! - An algorithm is 64 bytes, for types and alignments. One that the library did not make is refused, and one that was found for
//!   operands aligned to 16 bytes refuses others. A number is rounded once, at the end.
//! - Nothing is read of C where beta is 0. What is told by descriptors is read when a call is made, bias and matrices on the stream.
//! - What NVIDIA documents as not supported is not: see `problem.rs`.
//! - A handle or descriptor that is used after its end is refused, and not a crash.
//!
//! What it does not do: other numbers than f32, bf16 and f16, batches, other orders than columns, factors in the device's memory,
//! gradients as epilogues, GELU without a bias or without keeping what it is of, a product without an algorithm (the real one would choose in silence, and dtrain never wants
//! that), C whose pitch is 0. TF32 is computed as f32. Operands have to be aligned to what the algorithm asks for, a workspace to 16 bytes
//! (the real one asks for 256). It says nothing about speed.
//!
//! For tests that hurt, variables that are read once:
//!
//! | variable | |
//! |---|---|
//! | `FAKE_CUBLASLT_VERSION=120103` | what `cublasLtGetVersion` says (default 130100) |
//! | `FAKE_CUBLASLT_NONE=1` | heuristics find nothing |
//! | `FAKE_CUBLASLT_FAIL_AT=3` | the third call of `cublasLtMatmul` fails with `CUBLAS_STATUS_EXECUTION_FAILED` |
//! | `FAKE_CUBLASLT_WRONG=1` | the first number of a D of 64 rows or more is off by an eighth of itself and sixteen |
//! | `FAKE_CUBLASLT_WRONG=bit` | the same is off by its last bit |
//! | `FAKE_CUBLASLT_UNSTEADY=1` | K is cut at another place in each product, so that the same product gives other bits |
//!
//! Beside the library's functions it has its own, which a test looks up: `fakeCublasLtCalls` counts the calls of a function,
//! `fakeCublasLtAlive` what was made and not destroyed.

mod algorithm;
mod attributes;
mod calls;
mod control;
mod knobs;
mod matrix;
mod objects;
mod problem;
mod product;
mod queue;
mod status;
