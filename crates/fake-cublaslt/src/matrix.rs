//! A matrix by columns, and the numbers that it holds.

use half::{bf16, f16};

/// The numbers that matrices hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    F32,
    F16,
    Bf16,
}

impl Numbers {
    /// By `cudaDataType`.
    pub fn of(kind: u64) -> Option<Self> {
        match kind {
            0 => Some(Self::F32),
            2 => Some(Self::F16),
            14 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// The same as `cudaDataType`.
    pub fn kind(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 2,
            Self::Bf16 => 14,
        }
    }

    pub fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// The number at a place.
    ///
    /// # Safety
    /// Such numbers lie at this address, and the place is one of them.
    pub unsafe fn read(self, at: usize, place: usize) -> f32 {
        // SAFETY: the caller's promise; addresses are looked at when a call is made, so they are aligned.
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

/// A matrix whose columns are contiguous.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub numbers: Numbers,
    pub rows: usize,
    pub columns: usize,
    /// From one column to the next.
    pub pitch: usize,
}

impl Matrix {
    /// Where a number lies.
    pub fn place(&self, row: usize, column: usize) -> usize {
        column * self.pitch + row
    }

    /// Bytes from one column to the next.
    pub fn pitch_bytes(&self) -> usize {
        self.pitch * self.numbers.bytes()
    }
}
