//! A matrix by columns, and the library's codes for the numbers that it holds.

use dtrain_fake_common::numbers::Numbers;

/// Numbers by `cudaDataType`.
pub(crate) fn numbers(kind: u64) -> Option<Numbers> {
    match kind {
        0 => Some(Numbers::F32),
        2 => Some(Numbers::F16),
        14 => Some(Numbers::Bf16),
        _ => None,
    }
}

/// The `cudaDataType` of numbers.
pub(crate) fn kind(numbers: Numbers) -> u32 {
    match numbers {
        Numbers::F32 => 0,
        Numbers::F16 => 2,
        Numbers::Bf16 => 14,
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
