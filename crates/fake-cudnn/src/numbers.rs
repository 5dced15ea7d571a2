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
