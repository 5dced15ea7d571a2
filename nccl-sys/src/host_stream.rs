//! What stands for a CUDA stream where there is no CUDA: a queue of jobs that somebody works off in order.
//!
//! The library takes a `cudaStream_t` and only passes it on to CUDA. A library over host memory has no CUDA to pass it on
//! to, so it takes the address of a [`HostStream`] instead: whoever makes the stream owns the queue and its thread, and
//! the library puts its work there, between the caller's own. This is an agreement between `dtrain-nccl` and the fake
//! library of this workspace; real libraries never see it.

use core::ffi::c_void;

/// A stream of jobs in host memory; its address, cast, is a `cudaStream_t`.
#[repr(C)]
pub struct HostStream {
    /// Puts `job(argument)` behind everything that was put before. It returns at once; the job runs exactly once, on a
    /// thread of the stream.
    pub enqueue: unsafe extern "C" fn(
        stream: *mut Self,
        job: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ),
}
