//! The stream that work is put on: one of the driver of tests, which `FAKE_CUDNN_DRIVER` names, or none.

use crate::status::{Answer, EXECUTION_FAILED, NOT_INITIALIZED};
use dtrain_fake_common::stream::{Driver, Refused};
use std::ffi::c_void;

/// The driver, if streams are its own.
static DRIVER: Driver = Driver::named_by("FAKE_CUDNN_DRIVER");

/// Puts work behind everything that the stream was given.
///
/// *Errors*: no driver where one was named, or one that refuses the stream.
///
/// # Safety
/// The stream is the driver's; what the work uses is there until the stream is through.
pub(crate) unsafe fn put(stream: *mut c_void, work: impl FnOnce() + Send + 'static) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { DRIVER.give(stream, work) }.map_err(|refused| {
        eprintln!("fake cuDNN: {refused}");
        match refused {
            Refused::NoDriver(_) => NOT_INITIALIZED,
            Refused::ByDriver(_) => EXECUTION_FAILED,
        }
    })
}
