//! Error codes with a text: what `ncclGetLastError` tells.

use nccl_sys::ncclResult_t;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

/// The last text of this process, as the real library keeps it.
static LAST: Mutex<&'static CStr> = Mutex::new(c"");

/// A call that went wrong: its code, and what `ncclGetLastError` will say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub code: ncclResult_t,
    pub text: String,
}

impl Failure {
    pub fn new(code: ncclResult_t, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub fn argument(text: impl Into<String>) -> Self {
        Self::new(ncclResult_t::ncclInvalidArgument, text)
    }

    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(ncclResult_t::ncclInvalidUsage, text)
    }

    pub fn system(what: &str, error: impl std::fmt::Display) -> Self {
        Self::new(ncclResult_t::ncclSystemError, format!("{what}: {error}"))
    }
}

/// Keeps the text of a failure.
pub(crate) fn note(failure: &Failure) {
    // Whoever asked for the text may still read it, so it is never freed; errors are few.
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Box::leak(text.into_boxed_c_str());
}

pub(crate) fn last() -> &'static CStr {
    *LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The code of a call, with its text kept.
pub(crate) fn code_of(result: Result<ncclResult_t, Failure>) -> ncclResult_t {
    result.unwrap_or_else(|failure| {
        note(&failure);
        failure.code
    })
}
