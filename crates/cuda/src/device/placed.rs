//! Operands where a library can fetch them. One that does not begin at 16 bytes is copied: where a parameter lies, and its gradient, is not
//! the same in every world, and what a library is asked for has to be.
//!
//! It does not know what is computed.

use crate::driver::{DriverError, Stream};

/// What a library's operands begin on multiples of. *Units*: bytes.
pub(super) const ALIGNED: u64 = 16;
/// What a copy begins on a multiple of. *Units*: bytes.
pub(super) const ROUND: u64 = 256;

/// Memory of the device: where it begins, and its length in bytes; 0 is none.
pub(super) type Stretch = (u64, u64);

/// Addresses of a whole batch: of the input, of the weights, of the output, or of what their gradients become.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionPlaces {
    /// `x` or `dx`, as it is multiplied: halves, or f32.
    pub x: u64,
    /// `w` as it is multiplied, or `dw` in f32.
    pub w: u64,
    /// `y` or `dy`, as it is multiplied.
    pub y: u64,
    /// What is done around it.
    pub around: Around,
}

/// What is done around a convolution: addresses, 0 where there is none.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// The bias as it is multiplied, and in f32.
    pub bias: [u64; 2],
    /// What a ReLU gave to be convolved, where the gradient of that is computed, and what the ReLU does to it.
    pub x: u64,
}

impl Around {
    /// Nothing.
    pub const NOTHING: Self = Self { bias: [0; 2], x: 0 };
}

fn is_placed(at: u64) -> bool {
    at.is_multiple_of(ALIGNED)
}

/// Bytes of scratch that the copies of these take.
pub(super) fn room_for_copies(all: &[Stretch]) -> u64 {
    all.iter().filter(|(at, _)| !is_placed(*at)).map(|(_, bytes)| bytes.next_multiple_of(ROUND)).sum()
}

/// Scratch from here on is for copies.
pub(super) struct Copies<'s> {
    pub stream: &'s Stream,
    pub next: u64,
}

impl Copies<'_> {
    /// Where an operand is to be fetched, or its result put: where it lies, or in a copy of it. *Errors*: the driver's.
    ///
    /// # Safety
    /// It lies there until the stream has passed this, and the scratch has room ([`room_for_copies`]) that nobody else uses.
    pub unsafe fn of(&mut self, (at, bytes): Stretch) -> Result<u64, DriverError> {
        if is_placed(at) {
            return Ok(at);
        }
        let here = self.next;
        self.next += bytes.next_multiple_of(ROUND);
        // SAFETY: the caller's promise; scratch is apart from operands.
        unsafe { self.stream.copy(at, here, bytes as usize)? };
        Ok(here)
    }

    /// Brings a result to where it lies, if it was put into a copy. *Errors*: the driver's.
    ///
    /// # Safety
    /// As [`Copies::of`], which gave `from`.
    pub unsafe fn back(&self, from: u64, (at, bytes): Stretch) -> Result<(), DriverError> {
        if from == at {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.stream.copy(from, at, bytes as usize) }
    }
}
