//! A flat buffer of f32 that starts at a multiple of 64 bytes, so that a vector load never straddles two lines; and what somebody else reads of one while
//! its owner goes on.

use dtrain_types::SharedFloats;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

const ALIGNMENT: usize = 64;

/// A buffer of fixed length, zeros at first.
#[derive(Debug)]
pub struct Flat(Memory);

#[derive(Debug)]
enum Memory {
    /// Its own.
    Own { memory: Vec<f32>, start: usize, len: usize },
    /// Its own, which it has lent, and does not write as long as anybody has it.
    Lent { memory: Arc<Vec<f32>>, start: usize, len: usize },
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

    /// A part of it, to write: all that others may not write meanwhile where it is shared. If it is lent, it goes on in a copy.
    pub(crate) fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        self.take_back();
        match &mut self.0 {
            Memory::Own { memory, start, len } => &mut memory[*start..*start + *len][part],
            Memory::Lent { .. } => unreachable!("it was taken back"),
            Memory::Shared(floats) => floats.part(part),
        }
    }

    /// Lends a part of it to somebody who reads it as it is now, however long; none where it is shared. *Panics* if there is no such part.
    pub(crate) fn lend(&mut self, part: Range<usize>) -> Option<FloatsOnLoan> {
        if let Memory::Own { memory, start, len } = &mut self.0 {
            let (memory, start, len) = (Arc::new(std::mem::take(memory)), *start, *len);
            self.0 = Memory::Lent { memory, start, len };
        }
        let Memory::Lent { memory, start, len } = &self.0 else { return None };
        assert!(part.start <= part.end && part.end <= *len, "floats {part:?} of {len}");
        let place = start + part.start..start + part.end;
        Some(FloatsOnLoan { memory: Arc::clone(memory), place })
    }

    /// Has what it lent for itself again: what was returned, or else a copy.
    fn take_back(&mut self) {
        let Memory::Lent { memory, start, len } = &mut self.0 else { return };
        let (memory, start, len) = (std::mem::take(memory), *start, *len);
        self.0 = match Arc::try_unwrap(memory) {
            Ok(memory) => Memory::Own { memory, start, len },
            Err(memory) => {
                let mut copy = Self::zeros(len);
                copy.copy_from_slice(&memory[start..start + len]);
                copy.0
            }
        };
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

impl AsRef<[f32]> for FloatsOnLoan {
    fn as_ref(&self) -> &[f32] {
        self
    }
}

impl Deref for Flat {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        match &self.0 {
            Memory::Own { memory, start, len } => &memory[*start..*start + *len],
            Memory::Lent { memory, start, len } => &memory[*start..*start + *len],
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

/// Floats of a buffer as they were when they were lent. Until it is dropped the buffer's owner writes into a copy.
#[derive(Clone, Debug)]
pub struct FloatsOnLoan {
    memory: Arc<Vec<f32>>,
    place: Range<usize>,
}

impl Deref for FloatsOnLoan {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.memory[self.place.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_stays_as_it_is_and_the_owner_copies_it_only_if_it_writes_meanwhile() {
        let mut flat = Flat::zeros(40);
        flat.fill(1.0);
        let place = flat.as_ptr();
        let lent = flat.lend(10..30).unwrap();
        assert_eq!(lent.as_ptr(), place.wrapping_add(10));
        drop(lent.clone());
        flat[20] = 2.0;
        assert_ne!(flat.as_ptr(), place, "it is lent");
        assert!(lent.len() == 20 && lent.iter().all(|x| *x == 1.0));
        assert_eq!((flat[19], flat[20]), (1.0, 2.0));
        let place = flat.as_ptr();
        drop(flat.lend(0..40));
        flat[21] = 3.0;
        assert_eq!(flat.as_ptr(), place, "nobody has it any more");
    }

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
