//! Threads of Rust that call Python again and again.

use pyo3::ffi;
use std::cell::Cell;

thread_local! {
    static KNOWN: Cell<bool> = const { Cell::new(false) };
}

/// Makes this thread known to the interpreter for its whole life. Otherwise each call makes it known and forgets it again, with what
/// Python keeps for a thread.
pub fn make_known() {
    if KNOWN.replace(true) {
        return;
    }
    // SAFETY: the interpreter runs, since this module was loaded by it and it is not finalised while a run goes on. Nothing of Python
    // is touched between the two calls. What the first one makes is kept on purpose: the second gives the lock back without it.
    unsafe {
        ffi::PyGILState_Ensure();
        ffi::PyEval_SaveThread();
    }
}
