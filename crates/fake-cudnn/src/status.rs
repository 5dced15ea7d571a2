//! The library's status codes, by the names that it has for them.

use std::ffi::{CStr, c_uint};

pub(crate) type Status = c_uint;
pub(crate) type Answer = Result<(), Status>;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const NOT_INITIALIZED: Status = 1001;
pub(crate) const BAD_PARAM: Status = 2000;
pub(crate) const NOT_SUPPORTED: Status = 3000;
pub(crate) const EXECUTION_FAILED: Status = 5000;

/// The name of a code.
pub(crate) fn name(status: Status) -> &'static CStr {
    match status {
        SUCCESS => c"CUDNN_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUDNN_STATUS_NOT_INITIALIZED",
        BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED",
        EXECUTION_FAILED => c"CUDNN_STATUS_EXECUTION_FAILED",
        _ => c"CUDNN_UNKNOWN_STATUS",
    }
}

/// Goes on where something holds.
pub(crate) fn demand(holds: bool, otherwise: Status) -> Answer {
    if holds { Ok(()) } else { Err(otherwise) }
}
