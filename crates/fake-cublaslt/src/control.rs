//! What a test asks this library for, beside what cuBLASLt has.

use crate::knobs::CALLS;
use crate::objects::alive;
use std::ffi::{CStr, c_char};

/// How often a function was called.
///
/// # Safety
/// `function` is a text that ends with NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn fakeCublasLtCalls(function: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    CALLS.of(&unsafe { CStr::from_ptr(function) }.to_string_lossy())
}

/// How much was made and not destroyed: handles and descriptors.
#[unsafe(no_mangle)]
extern "C" fn fakeCublasLtAlive() -> u64 {
    alive() as u64
}
