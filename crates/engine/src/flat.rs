//! A flat buffer of f32 that starts at a multiple of 64 bytes, so that a vector load never straddles two lines.

use std::ops::{Deref, DerefMut};

const ALIGNMENT: usize = 64;

/// A buffer of fixed length, zeros at first.
#[derive(Debug, Default)]
pub struct Flat {
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

impl Flat {
    /// `len` zeros. The memory is only touched when it is written.
    #[must_use]
    pub fn zeros(len: usize) -> Self {
        let slack = ALIGNMENT / size_of::<f32>();
        let memory = vec![0.0f32; if len == 0 { 0 } else { len + slack }];
        let start = if len == 0 { 0 } else { memory.as_ptr().align_offset(ALIGNMENT) };
        assert!(start <= slack, "f32 memory can be aligned to {ALIGNMENT} bytes");
        Self { memory, start, len }
    }
}

impl Clone for Flat {
    fn clone(&self) -> Self {
        let mut copy = Self::zeros(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl Deref for Flat {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for Flat {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buffer_starts_on_a_line_also_after_a_copy() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let mut flat = Flat::zeros(len);
            flat.fill(1.5);
            for buffer in [flat.clone(), flat] {
                assert_eq!(buffer.len(), len);
                assert!(len == 0 || (buffer.as_ptr() as usize).is_multiple_of(ALIGNMENT));
                assert!(buffer.iter().all(|x| *x == 1.5));
            }
        }
    }
}
