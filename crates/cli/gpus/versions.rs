//! The oldest versions of NVIDIA's libraries that dtrain works with.

use dtrain_locate::{Library, Version};

/// The oldest version of a library that dtrain works with; none where any does.
///
/// *Source*: CUDA 12 for the driver, so that what NVRTC 12 compiles loads; 2.14 for NCCL, the first that can be told not
/// to block and so be aborted; 11.8 for NVRTC, the first that knows Hopper.
#[must_use]
pub fn oldest(library: Library) -> Option<Version> {
    match library {
        Library::Driver => Some(Version::new(&[12, 0])),
        Library::Nvrtc => Some(Version::new(&[11, 8])),
        Library::Nccl => Some(Version::new(&[2, 14])),
        Library::Nvml | Library::CublasLt | Library::Cudnn => None,
    }
}
