//! What a test asks this library for, beside what a driver has.

use crate::knobs::{calls, set_eager, set_lazy};
use crate::world::{EVENTS, GRAPHS, MODULES, READY, STREAMS, complaints, devices};
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::atomic::Ordering;

/// How often a function was called, or a kernel run: `kernel` are all of them, a name one.
///
/// # Safety
/// `function` is a text that ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakeCudaCalls(function: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    calls(&unsafe { CStr::from_ptr(function) }.to_string_lossy())
}

/// Whether streams that are created from now on are lazy.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaLazy(lazy: c_int) {
    if lazy == 0 { set_eager() } else { set_lazy() }
}

/// How much was handed out and not given back: blocks of memory, streams, events, modules, graphs, contexts.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaAlive() -> u64 {
    let of_devices: usize =
        devices().iter().map(|device| device.memory.look() + device.retained.load(Ordering::Acquire)).sum();
    let graphs = GRAPHS.all().len() + READY.all().len();
    (of_devices + STREAMS.all().len() + EVENTS.all().len() + MODULES.all().len() + graphs) as u64
}

/// What was done that a driver would not have noticed, a line each. The text is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn fakeCudaWrong() -> *const c_char {
    for device in devices() {
        let _alive = device.memory.look();
    }
    let lines = complaints().join("\n").replace('\0', " ");
    Box::leak(CString::new(lines).unwrap_or_default().into_boxed_c_str()).as_ptr()
}
