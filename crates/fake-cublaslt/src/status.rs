//! The library's status codes, with the names and texts that it has for them.

use std::ffi::{CStr, c_uint};

pub(crate) type Status = c_uint;
pub(crate) type Answer = Result<(), Status>;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const NOT_INITIALIZED: Status = 1;
pub(crate) const INVALID_VALUE: Status = 7;
pub(crate) const EXECUTION_FAILED: Status = 13;
pub(crate) const NOT_SUPPORTED: Status = 15;

const TABLE: &[(Status, &CStr, &CStr)] = &[
    (SUCCESS, c"CUBLAS_STATUS_SUCCESS", c"success"),
    (NOT_INITIALIZED, c"CUBLAS_STATUS_NOT_INITIALIZED", c"the library was not initialized"),
    (3, c"CUBLAS_STATUS_ALLOC_FAILED", c"the resource allocation failed"),
    (INVALID_VALUE, c"CUBLAS_STATUS_INVALID_VALUE", c"an invalid value was used as an argument"),
    (8, c"CUBLAS_STATUS_ARCH_MISMATCH", c"the device architecture is not supported"),
    (11, c"CUBLAS_STATUS_MAPPING_ERROR", c"an access to GPU memory space failed"),
    (EXECUTION_FAILED, c"CUBLAS_STATUS_EXECUTION_FAILED", c"the GPU program failed to execute"),
    (14, c"CUBLAS_STATUS_INTERNAL_ERROR", c"an internal operation failed"),
    (NOT_SUPPORTED, c"CUBLAS_STATUS_NOT_SUPPORTED", c"the functionality is not supported"),
    (16, c"CUBLAS_STATUS_LICENSE_ERROR", c"the functionality requested requires a license"),
];

/// Name and text of a code.
pub(crate) fn words(status: Status) -> (&'static CStr, &'static CStr) {
    let found = TABLE.iter().find(|(known, ..)| *known == status);
    found.map_or((c"CUBLAS_STATUS_UNKNOWN", c"unknown status"), |(_, name, text)| (*name, *text))
}

/// Goes on where something holds.
pub(crate) fn demand(holds: bool, otherwise: Status) -> Answer {
    if holds { Ok(()) } else { Err(otherwise) }
}
