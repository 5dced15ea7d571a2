//! The numbers that matrices and tensors hold, read as f32 and rounded from it.
//!
//! Each library has its own codes for them.

use half::{bf16, f16};

/// A type of numbers in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// 32 bits.
    F32,
    /// 16 bits, of which 5 are the exponent.
    F16,
    /// The upper 16 bits of an f32.
    Bf16,
}

impl Numbers {
    /// What each takes in memory.
    #[inline]
    pub fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// The number at a place.
    ///
    /// # Safety
    /// Such numbers lie at this address, which is aligned for them, and the place is one of them.
    #[inline]
    pub unsafe fn read(self, at: usize, place: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32 => *(at as *const f32).add(place),
                Self::F16 => (*(at as *const f16).add(place)).to_f32(),
                Self::Bf16 => (*(at as *const bf16).add(place)).to_f32(),
            }
        }
    }

    /// Rounds a number, to the nearest and to even, and writes it to a place.
    ///
    /// # Safety
    /// As of `read`, and nobody else uses the place.
    #[inline]
    pub unsafe fn write(self, at: usize, place: usize, value: f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32 => (at as *mut f32).add(place).write(value),
                Self::F16 => (at as *mut f16).add(place).write(f16::from_f32(value)),
                Self::Bf16 => (at as *mut bf16).add(place).write(bf16::from_f32(value)),
            }
        }
    }
}
