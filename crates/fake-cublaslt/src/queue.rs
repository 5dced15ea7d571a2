//! The stream that a product is put on: one of the driver of tests, which `FAKE_CUBLASLT_DRIVER` names, or none.

use crate::product::Product;
use crate::status::{Answer, EXECUTION_FAILED, NOT_INITIALIZED};
use dtrain_fake_common::stream::{Driver, Refused};
use std::ffi::c_void;

/// The driver, if streams are its own.
static DRIVER: Driver = Driver::named_by("FAKE_CUBLASLT_DRIVER");

/// Puts a product behind everything that the stream was given.
///
/// *Errors*: no driver where one was named, or one that refuses the stream.
///
/// # Safety
/// The stream is the driver's; as of `Product::compute`, until the stream is through.
pub(crate) unsafe fn put(stream: *mut c_void, product: Product) -> Answer {
    // SAFETY: the caller's promise.
    let compute = move || unsafe { product.compute() };
    // SAFETY: the caller's promise.
    unsafe { DRIVER.give(stream, compute) }.map_err(|refused| {
        eprintln!("fake cuBLASLt: {refused}");
        match refused {
            Refused::NoDriver(_) => NOT_INITIALIZED,
            Refused::ByDriver(_) => EXECUTION_FAILED,
        }
    })
}
