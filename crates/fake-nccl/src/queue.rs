//! The stream that work is put on: one of the caller's making, or of the driver of tests, which `FAKE_NCCL_DRIVER` names.

use crate::last_error::Failure;
use dtrain_fake_common::stream::{Driver, Job};
use nccl_sys::HostStream;
use std::ffi::c_void;

/// The driver, if streams are its own.
static DRIVER: Driver = Driver::named_by("FAKE_NCCL_DRIVER");

/// Puts a job behind everything that the stream was given.
///
/// # Safety
/// The stream lives, and is the driver's or by the agreement of `HostStream`; job and argument belong together.
pub(crate) unsafe fn put(stream: *mut HostStream, job: Job, argument: *mut c_void) -> Result<(), Failure> {
    if !DRIVER.is_named() {
        // SAFETY: by the agreement of `HostStream` the address is that of a living stream, which runs the job once.
        unsafe { ((*stream).enqueue)(stream, job, argument) };
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { DRIVER.put(stream.cast(), job, argument) }.map_err(|refused| Failure::usage(refused.to_string()))
}
