//! The stream that a convolution is put on: one of the driver of tests, or none.
//!
//! A caller on a GPU hands over a stream of its driver, into which the real library puts kernels. This one puts work of the host
//! there, by a function that drivers have. It is told by `FAKE_CUDNN_DRIVER` where that driver is, so that it finds the one that
//! the caller has open.

use crate::convolution::{Convolution, compute};
use crate::status::{Answer, EXECUTION_FAILED, NOT_INITIALIZED};
use libloading::Library;
use std::ffi::c_void;
use std::sync::LazyLock;

/// What a stream runs.
type Job = unsafe extern "C" fn(*mut c_void);

/// `cuLaunchHostFunc`.
type Launch = unsafe extern "C" fn(stream: *mut c_void, job: Job, argument: *mut c_void) -> u32;

/// The driver, if streams are its own. It is never closed.
static DRIVER: LazyLock<Option<Result<(Library, Launch), String>>> = LazyLock::new(|| {
    let path = std::env::var_os("FAKE_CUDNN_DRIVER")?;
    // SAFETY: it is open already, so nothing of it runs now.
    let open = || unsafe {
        let library = Library::new(&path)?;
        let launch = *library.get::<Launch>(b"cuLaunchHostFunc\0")?;
        Ok((library, launch))
    };
    Some(open().map_err(|error: libloading::Error| error.to_string()))
});

/// Puts a convolution behind everything that the stream was given.
///
/// *Errors*: no driver where one was named, or one that refuses the stream.
///
/// # Safety
/// The stream is the driver's; as of `Convolution::compute`, until the stream is through.
pub(crate) unsafe fn put(stream: *mut c_void, convolution: Convolution) -> Answer {
    let convolution: *mut c_void = Box::into_raw(Box::new(convolution)).cast();
    let refused = match &*DRIVER {
        None => {
            // SAFETY: the caller's promise; the box is given away.
            unsafe { compute(convolution) };
            return Ok(());
        }
        // SAFETY: the caller's promise; the job runs once.
        Some(Ok((_, launch))) => match unsafe { launch(stream, compute, convolution) } {
            0 => return Ok(()),
            code => (EXECUTION_FAILED, format!("cuLaunchHostFunc: {code}")),
        },
        Some(Err(error)) => (NOT_INITIALIZED, format!("FAKE_CUDNN_DRIVER: {error}")),
    };
    // SAFETY: nobody took it.
    drop(unsafe { Box::from_raw(convolution.cast::<Convolution>()) });
    eprintln!("fake cuDNN: {}", refused.1);
    Err(refused.0)
}
