//! The C interfaces of the CUDA driver and of NVRTC over host memory: what tests open instead of `libcuda.so.1` and
//! `libnvrtc.so`.
//!
//! What it keeps of the real ones, because their users must live with it:
//! - A call that puts work on a stream returns before the work is done. A stream is a queue that a thread of its own works
//!   off; only events bring an order between streams. A *lazy* stream works only when somebody waits for it, so whatever
//!   forgets to wait finds the work not done, every time.
//! - A call needs a current context of the thread, as handed out by `cuCtxSetCurrent`.
//! - A failure of a kernel is told by a later call, and sticks: from then on every call of that device fails.
//! - Memory holds no zeros when it is handed out (but NaN), ends where it ends, and is gone when it is freed: guard words
//!   stand around it, what is freed is never handed out again and is looked at once more.
//! - The compiler gives an image, the driver takes one. Here it is a shared object: the kernels built by a C++ compiler
//!   over `crates/cuda/tests/shim/shim.h`. Blocks run one after another.
//!
//! What it does not do: graphs of anything but kernels in a row, textures, peers, managed memory, copies from memory that is not pinned (an error here),
//! priorities, the null stream, more than one dimension of a grid. It says nothing about speed.
//!
//! For tests that hurt, variables that are read once:
//!
//! | variable | |
//! |---|---|
//! | `FAKE_CUDA_VERSION=11040` | what the driver says of itself (default 13000) |
//! | `FAKE_CUDA_DEVICES=0` | how many devices there are (default 2) |
//! | `FAKE_CUDA_CAPABILITY=80` | their compute capability (default 90) |
//! | `FAKE_CUDA_MEMORY=1000000` | the memory of each, in bytes (default 1 GiB) |
//! | `FAKE_CUDA_FAIL=cuMemAlloc_v2:3:2` | the third call of this function returns 2; more of them with commas |
//! | `FAKE_CUDA_FAIL=kernel:5:700` | the fifth kernel to run fails with 700, which sticks |
//! | `FAKE_CUDA_WRONG=relu_f32` | this kernel changes the first bit of the first thing that it writes |
//! | `FAKE_CUDA_LAZY=1` | streams are lazy |
//! | `FAKE_CUDA_ORDER=1` | threads and blocks run last to first; from 2 on they are shuffled |
//!
//! Beside the driver's functions it has its own, which a test looks up: `fakeCudaCalls` counts the calls of a function,
//! `fakeCudaLazy` makes streams lazy that are created afterwards, `fakeCudaAlive` counts what was not given back, and
//! `fakeCudaWrong` tells what was done that a real driver would not have noticed.

mod calls;
mod codes;
mod control;
mod event;
mod graph;
mod handles;
mod knobs;
mod memory;
mod module;
mod nvrtc;
mod stream;
mod world;
