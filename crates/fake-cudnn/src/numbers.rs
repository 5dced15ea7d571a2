//! The library's codes for the numbers that tensors hold.

use dtrain_fake_common::numbers::Numbers;
use std::ffi::c_uint;

/// Numbers by `cudnnDataType_t`.
pub(crate) fn numbers(kind: c_uint) -> Option<Numbers> {
    match kind {
        0 => Some(Numbers::F32),
        2 => Some(Numbers::F16),
        9 => Some(Numbers::Bf16),
        _ => None,
    }
}

/// The nearest number of that kind.
pub(crate) fn rounded(numbers: Numbers, value: f32) -> f32 {
    let mut room = [0u32];
    let at = room.as_mut_ptr() as usize;
    // SAFETY: there is room for one number of any kind.
    unsafe {
        numbers.write(at, 0, value);
        numbers.read(at, 0)
    }
}
