//! A queue of bytes from one rank to another, in memory that both have mapped: one writer, one reader.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that wait in a queue at most: small, so that tests with long buffers fill it.
pub(crate) const CAPACITY: usize = 32 * 1024;
/// The counters stand in cache lines of their own.
const WRITTEN: usize = 0;
const READ: usize = 64;
const DATA: usize = 128;

/// One such queue.
#[derive(Clone, Copy)]
pub(crate) struct Channel<'a> {
    base: NonNull<u8>,
    memory: PhantomData<&'a u8>,
}

impl Channel<'_> {
    /// What a queue takes in memory.
    pub const BYTES: usize = DATA + CAPACITY;

    /// The queue at an address.
    ///
    /// # Safety
    /// `BYTES` bytes from there, aligned to 8, are mapped for as long as the result lives, began as zeros, and are used by
    /// this type alone, with one writing and one reading thread.
    pub unsafe fn at(base: NonNull<u8>) -> Self {
        Self { base, memory: PhantomData }
    }

    fn counter(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the counters lie inside the queue, aligned, and are atomics.
        unsafe { self.base.add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Puts in as many bytes as there is room for, and counts them.
    ///
    /// # Safety
    /// `from` can be read for `bytes` bytes.
    pub unsafe fn write(&self, from: *const u8, bytes: usize) -> usize {
        let written = self.counter(WRITTEN).load(Ordering::Relaxed);
        let room = CAPACITY - (written - self.counter(READ).load(Ordering::Acquire)) as usize;
        let n = bytes.min(room);
        let at = written as usize % CAPACITY;
        let first = n.min(CAPACITY - at);
        // SAFETY: the reader does not touch bytes beyond `written`; both parts lie inside the data, and the caller vouches
        // for the source.
        unsafe {
            self.base.add(DATA + at).copy_from_nonoverlapping(non_null(from), first);
            self.base.add(DATA).copy_from_nonoverlapping(non_null(from.add(first)), n - first);
        }
        self.counter(WRITTEN).store(written + n as u64, Ordering::Release);
        n
    }

    /// How many bytes wait to be read.
    pub fn waiting(&self) -> usize {
        (self.counter(WRITTEN).load(Ordering::Acquire) - self.counter(READ).load(Ordering::Relaxed)) as usize
    }

    /// Takes out at most `bytes` bytes, and counts them.
    ///
    /// # Safety
    /// `to` can be written for `bytes` bytes.
    pub unsafe fn read(&self, to: *mut u8, bytes: usize) -> usize {
        let n = bytes.min(self.waiting());
        let read = self.counter(READ).load(Ordering::Relaxed);
        let at = read as usize % CAPACITY;
        let first = n.min(CAPACITY - at);
        // SAFETY: the writer does not touch bytes between the counters; both parts lie inside the data, and the caller
        // vouches for the target.
        unsafe {
            non_null(to).copy_from_nonoverlapping(self.base.add(DATA + at), first);
            non_null(to.add(first)).copy_from_nonoverlapping(self.base.add(DATA), n - first);
        }
        self.counter(READ).store(read + n as u64, Ordering::Release);
        n
    }
}

/// Buffers of no bytes may be null, and then nothing is copied.
fn non_null(address: *const u8) -> NonNull<u8> {
    NonNull::new(address.cast_mut()).unwrap_or(NonNull::dangling())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_however_they_are_cut() {
        let mut memory = vec![0u64; Channel::BYTES / 8];
        // SAFETY: the vector is large enough, zeroed, aligned, and outlives the queue; this is the only thread.
        let queue = unsafe { Channel::at(NonNull::new(memory.as_mut_ptr().cast()).expect("allocated")) };
        let (mut sent, mut heard) = (0u32, 0u32);
        for turn in 0..2_000usize {
            let piece: Vec<u8> = (0..turn % 97).map(|i| (sent + i as u32) as u8).collect();
            // SAFETY: the piece is as long as said.
            sent += unsafe { queue.write(piece.as_ptr(), piece.len()) } as u32;
            let mut got = vec![0u8; turn % 89];
            // SAFETY: as above.
            let n = unsafe { queue.read(got.as_mut_ptr(), got.len()) };
            assert!(got[..n].iter().enumerate().all(|(i, byte)| *byte == (heard + i as u32) as u8));
            heard += n as u32;
        }
        assert_eq!(queue.waiting(), (sent - heard) as usize);
        let much = vec![7u8; 2 * CAPACITY];
        // SAFETY: as above.
        unsafe { queue.write(much.as_ptr(), much.len()) };
        assert_eq!(queue.waiting(), CAPACITY, "a full queue takes no more");
    }
}
