//! cuDNN itself: which version it is, and a handle of it on one stream.
//!
//! It does not know what is computed.

use super::super::LibraryError;
use super::descriptors::{Made, done};
use cudarc::cudnn::sys;
use libloading::Library;
use std::ffi::c_void;
use std::fmt;
use std::path::Path;

pub(super) const NAME: &str = "cuDNN";

/// Algorithms that are timed, at most.
pub const CANDIDATES: usize = 8;

/// The library's version, as `cudnnGetVersion` has it. No GPU is needed.
///
/// *Errors*: [`LibraryError::Missing`].
pub fn version() -> Result<u64, LibraryError> {
    // SAFETY: the library's initialisers touch nothing of ours; the function is asked for only if it is there.
    unsafe {
        if !sys::is_culib_present() {
            return Err(LibraryError::Missing { library: NAME });
        }
        Ok(sys::cudnnGetVersion() as u64)
    }
}

/// The library, opened. What computes is a handle of it.
#[derive(Clone, Copy, Debug)]
pub struct Cudnn {
    version: u64,
}

impl Cudnn {
    /// This file, unless the process has another one of that name: then that one, whose version tells.
    ///
    /// *Errors*: as [`Cudnn::new`].
    pub fn open(path: &Path) -> Result<Self, LibraryError> {
        // SAFETY: the library's initialisers touch nothing of ours.
        if let Ok(library) = unsafe { Library::new(path) } {
            // It stays open, so that its bare name means this file.
            std::mem::forget(library);
        }
        Self::new()
    }

    /// *Errors*: [`LibraryError::Missing`].
    pub fn new() -> Result<Self, LibraryError> {
        Ok(Self { version: version()? })
    }

    /// Its version, as [`version`] has it.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A handle, in the context that is current, on one stream. *Blocks* for a while.
    ///
    /// *Errors*: [`LibraryError::Call`], without a GPU for example.
    ///
    /// # Safety
    /// The stream is alive for as long as the handle is, and of the context that is current.
    pub unsafe fn on(&self, stream: *mut c_void) -> Result<CudnnHandle, LibraryError> {
        let handle = Made::new("cudnnCreate", sys::cudnnCreate, sys::cudnnDestroy)?;
        // SAFETY: the handle was just made; the stream is the caller's promise.
        done("cudnnSetStream", unsafe { sys::cudnnSetStream(handle.what, stream.cast()) })?;
        Ok(CudnnHandle { handle, version: self.version })
    }
}

/// The library on one stream. One thread at a time may use it.
pub struct CudnnHandle {
    pub(super) handle: Made<sys::cudnnHandle_t>,
    pub(super) version: u64,
}

// SAFETY: NVIDIA says that a handle may go from thread to thread, as long as one at a time uses it: it is not `Sync`.
unsafe impl Send for CudnnHandle {}

impl CudnnHandle {
    /// *Errors*: why a choice cannot be used. Another version made it, or it wants more workspace than `most`.
    pub(super) fn may_use(&self, version: u64, workspace: u64, most: u64) -> Result<(), String> {
        if version != self.version {
            return Err(format!("cuDNN {version} chose it, and here is {}", self.version));
        }
        if workspace > most {
            return Err(format!("{workspace} bytes of workspace are more than it may have"));
        }
        Ok(())
    }
}

impl fmt::Debug for CudnnHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudnnHandle").field("version", &self.version).finish_non_exhaustive()
    }
}
