//! The stream that work is put on: one of the caller's making, or of the driver of tests.
//!
//! A caller on a GPU hands over a stream of its driver, into which the real library puts kernels. This one puts work of the host
//! there, by a function that drivers have. It is told by `FAKE_NCCL_DRIVER` where that driver is, so that it finds the one that
//! the caller has open.

use crate::last_error::Failure;
use libloading::Library;
use nccl_sys::HostStream;
use std::ffi::c_void;
use std::sync::LazyLock;

/// What a stream runs.
pub(crate) type Job = unsafe extern "C" fn(*mut c_void);

/// `cuLaunchHostFunc`.
type Launch = unsafe extern "C" fn(stream: *mut c_void, job: Job, argument: *mut c_void) -> u32;

/// The driver, if streams are its own. It is never closed.
static DRIVER: LazyLock<Option<Result<(Library, Launch), String>>> = LazyLock::new(|| {
    let path = std::env::var_os("FAKE_NCCL_DRIVER")?;
    // SAFETY: it is open already, so nothing of it runs now.
    let open = || unsafe {
        let library = Library::new(&path)?;
        let launch = *library.get::<Launch>(b"cuLaunchHostFunc\0")?;
        Ok((library, launch))
    };
    Some(open().map_err(|error: libloading::Error| error.to_string()))
});

/// Puts a job behind everything that the stream was given.
///
/// # Safety
/// The stream lives, and is the driver's or by the agreement of `HostStream`; job and argument belong together.
pub(crate) unsafe fn put(stream: *mut HostStream, job: Job, argument: *mut c_void) -> Result<(), Failure> {
    match &*DRIVER {
        None => {
            // SAFETY: by the agreement of `HostStream` the address is that of a living stream, which runs the job once.
            unsafe { ((*stream).enqueue)(stream, job, argument) };
            Ok(())
        }
        // SAFETY: the caller's promise.
        Some(Ok((_, launch))) => match unsafe { launch(stream.cast(), job, argument) } {
            0 => Ok(()),
            code => Err(Failure::usage(format!("cuLaunchHostFunc: {code}"))),
        },
        Some(Err(error)) => Err(Failure::usage(format!("FAKE_NCCL_DRIVER: {error}"))),
    }
}
