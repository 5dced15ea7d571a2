//! A flat buffer of f32 that starts at a multiple of 64 bytes, so that a vector load never straddles two lines.

use dtrain_types::SharedFloats;
use std::ops::{Deref, DerefMut, Range};

const ALIGNMENT: usize = 64;

/// A buffer of fixed length, zeros at first.
#[derive(Debug)]
pub struct Flat(Memory);

#[derive(Debug)]
enum Memory {
    /// Its own.
    Own { memory: Vec<f32>, start: usize, len: usize },
    /// That it has in common with others.
    Shared(Box<dyn SharedFloats>),
}

impl Flat {
    /// `len` zeros. The memory is only touched when it is written.
    #[must_use]
    pub fn zeros(len: usize) -> Self {
        let slack = ALIGNMENT / size_of::<f32>();
        let memory = vec![0.0f32; if len == 0 { 0 } else { len + slack }];
        let start = if len == 0 { 0 } else { memory.as_ptr().align_offset(ALIGNMENT) };
        assert!(start <= slack, "f32 memory can be aligned to {ALIGNMENT} bytes");
        Self(Memory::Own { memory, start, len })
    }

    /// Memory that others see too; a copy of it is nobody else's.
    pub(crate) fn shared(floats: Box<dyn SharedFloats>) -> Self {
        Self(Memory::Shared(floats))
    }

    /// A part of it, to write: all that others may not write meanwhile where it is shared.
    pub(crate) fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        match &mut self.0 {
            Memory::Own { memory, start, len } => &mut memory[*start..*start + *len][part],
            Memory::Shared(floats) => floats.part(part),
        }
    }
}

impl Default for Flat {
    fn default() -> Self {
        Self::zeros(0)
    }
}

impl Clone for Flat {
    fn clone(&self) -> Self {
        let mut copy = Self::zeros(self.len());
        copy.copy_from_slice(self);
        copy
    }
}

impl Deref for Flat {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        match &self.0 {
            Memory::Own { memory, start, len } => &memory[*start..*start + *len],
            Memory::Shared(floats) => floats.read(),
        }
    }
}

impl DerefMut for Flat {
    fn deref_mut(&mut self) -> &mut [f32] {
        let all = 0..self.len();
        self.part(all)
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
