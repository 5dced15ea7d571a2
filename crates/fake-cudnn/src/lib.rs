//! cuDNN's C interface over host memory, of convolutions and of graphs that are attention or a convolution: what tests open instead of `libcudnn.so.9`.
//!
//! What it keeps of the real library, because its users must live with it:
//! - A convolution is work on the handle's stream, and the call returns before it is done. The stream is one of the driver that
//!   `FAKE_CUDNN_DRIVER` names (see `queue.rs`); without one the convolution is done at once.
//! - The bits of a result depend on its algorithm and its arithmetic, which say how sums are cut (see `algorithm.rs`). So a test sees what
//!   computed, wherever sums are not very short. Some algorithms write to their workspace. Those that the real library does not call
//!   deterministic give other bits each time.
//! - It offers algorithms with the arithmetic that the descriptor asks for, the fastest first and in the end those that it does not have:
//!   all transforms, and for volumes `GEMM`.
//! - Tensors are all bf16, all f16 or all f32, and sums are f32: other combinations are `CUDNN_STATUS_NOT_SUPPORTED`. A number is rounded
//!   once, at the end.
//! - An activation of nothing is for `IMPLICIT_PRECOMP_GEMM` alone, as NVIDIA documents. Whether NaN goes through ReLU follows the descriptor.
//! - Nothing is read of the result, or of what is added to it, where beta is 0.
//! - What is told by descriptors is read when a call is made, tensors on the stream.
//! - A handle or descriptor that is used after its end, or before it was set, is `CUDNN_STATUS_BAD_PARAM`, and not a crash. So is a workspace
//!   that is too small.
//!
//! - Of a graph that is a convolution channels lie last, and a gradient of weights is f32 of halves where an identity stands behind it.
//! - A graph is told by descriptors and done operation by operation, as it is told (see `program.rs`). Engines are offered that are refused when a
//!   plan is made, and one that gives other bits each time, with a note (see `engines.rs`). Numbers of the host are read when the call is made.
//!
//! What it does not do: tensors in another order than N C (D) H W or with gaps, kernels that are turned (`CUDNN_CONVOLUTION`), groups.
//! f32 on tensor cores is computed as f32. It says nothing about speed.
//!
//! For tests that hurt, variables that are read once:
//!
//! | variable | |
//! |---|---|
//! | `FAKE_CUDNN_VERSION=90100` | what `cudnnGetVersion` says (default 91900) |
//! | `FAKE_CUDNN_NONE=1` | no algorithm is offered, and no engine |
//! | `FAKE_CUDNN_NONE=listed` | no algorithm is offered, but engines of graphs |
//! | `FAKE_CUDNN_FAIL_AT=3` | the third convolution or graph, of any kind, fails with `CUDNN_STATUS_EXECUTION_FAILED` |
//! | `FAKE_CUDNN_WRONG=1` | the first number of a result of 1024 numbers or more is off by an eighth of itself and sixteen |
//! | `FAKE_CUDNN_WRONG=bit` | the same is off by its last bit |
//!
//! Beside the library's functions it has its own, which a test looks up: `fakeCudnnCalls` counts the calls of a function,
//! `fakeCudnnAlive` what was made and not destroyed.

mod algorithm;
mod calls;
mod convolution;
mod convolved;
mod engines;
mod knobs;
mod numbers;
mod objects;
mod part;
mod parts;
mod problem;
mod program;
mod queue;
mod status;
