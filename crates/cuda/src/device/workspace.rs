//! Memory for partial results, and the way between host and device. Made once, grown in the first pass.
//!
//! Operations of one stream run one after another, so they share it. It does not know which operation wants what.

use crate::driver::{Buffer, Context, DriverError, Pinned, Stream};
use crate::memory::{Element, SliceMut};
use std::sync::Arc;

/// Bytes of a piece on the way between host and device.
const PIECE: usize = 1 << 20;
/// What a part of the scratch starts on a multiple of. *Units*: bytes.
const ALIGNED: usize = 256;

#[derive(Debug)]
pub(super) struct Workspace {
    context: Arc<Context>,
    /// For partial results; as large as the largest that was asked for.
    scratch: Buffer<u32>,
    /// Whether there was no room for so much.
    is_short: bool,
    /// On the way between host and device.
    way: Pinned<u8>,
    /// The class weights that are on the device, and where.
    weights: Option<(Vec<f32>, Buffer<f32>)>,
}

/// Parts of the scratch, one after another.
pub(super) struct Parts {
    at: u64,
    end: u64,
}

/// Bytes of a part with that many elements.
fn bytes<T>(len: usize) -> usize {
    (len * size_of::<T>()).next_multiple_of(ALIGNED)
}

/// How much scratch an operation wants: parts of so many `f64`, and so many words, in this order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Want {
    bytes: usize,
}

impl Want {
    /// And a part with that many elements.
    pub fn and<T>(self, len: usize) -> Self {
        Self { bytes: self.bytes + bytes::<T>(len) }
    }
}

impl Parts {
    /// The next part. *Panics* if it was not asked for.
    ///
    /// # Safety
    /// The workspace stays locked, and is not asked for other parts, until the operation is on the stream.
    pub unsafe fn take<'a, T: Element>(&mut self, len: usize) -> SliceMut<'a, T> {
        let at = self.at;
        self.at += bytes::<T>(len) as u64;
        assert!(self.at <= self.end, "{len} elements of scratch that were not asked for");
        // SAFETY: it lies in the scratch, aligned, apart from the other parts; who has used it before has put that on the
        // same stream, and the scratch is freed behind all work.
        unsafe { SliceMut::new(at, len) }
    }
}

impl Workspace {
    pub fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        let (scratch, way) = (Buffer::new(context, 0)?, Pinned::new(context, PIECE)?);
        Ok(Self { context: context.clone(), scratch, is_short: false, way, weights: None })
    }

    /// Scratch for an operation. *Blocks* if it has to grow: the driver frees memory behind all work.
    pub fn parts(&mut self, want: Want) -> Result<Parts, DriverError> {
        let words = want.bytes / size_of::<u32>();
        if words > self.scratch.len() {
            // What is there goes first: the larger one may need its place.
            self.scratch = Buffer::new(&self.context, 0)?;
            let larger = Buffer::new(&self.context, words);
            self.is_short |= matches!(larger, Err(DriverError::OutOfMemory { .. }));
            self.scratch = larger?;
        }
        let at = self.scratch.address();
        Ok(Parts { at, end: at + want.bytes as u64 })
    }

    /// Whether an operation has failed for want of memory.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// *Blocks* until the list is on the device.
    pub fn upload<T: Element>(&mut self, stream: &Stream, from: &[T], to: u64) -> Result<(), DriverError> {
        let mut at = to;
        for piece in from.chunks(PIECE / size_of::<T>()) {
            let bytes = size_of_val(piece);
            // SAFETY: elements are plain numbers without padding.
            let plain = unsafe { std::slice::from_raw_parts(piece.as_ptr().cast::<u8>(), bytes) };
            self.way.write()[..bytes].copy_from_slice(plain);
            // SAFETY: the device's memory was lent to this call, the way is our own; the stream is waited for.
            unsafe { stream.copy(self.way.address(), at, bytes)? };
            stream.finish()?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// *Blocks* until the list is on the host, behind everything that was given.
    pub fn download<T: Element>(
        &mut self,
        stream: &Stream,
        from: u64,
        to: &mut [T],
    ) -> Result<(), DriverError> {
        let mut at = from;
        for piece in to.chunks_mut(PIECE / size_of::<T>()) {
            let bytes = size_of_val(piece);
            // SAFETY: as `upload`.
            unsafe { stream.copy(at, self.way.address(), bytes)? };
            stream.finish()?;
            // SAFETY: elements are plain numbers, for which all bits are a value.
            let plain = unsafe { std::slice::from_raw_parts_mut(piece.as_mut_ptr().cast::<u8>(), bytes) };
            plain.copy_from_slice(&self.way.read()[..bytes]);
            at += bytes as u64;
        }
        Ok(())
    }

    /// Class weights on the device. They are written there when they change: in the first step.
    pub fn weights(&mut self, stream: &Stream, weights: &[f32]) -> Result<u64, DriverError> {
        let same = |known: &[f32]| known.iter().map(|w| w.to_bits()).eq(weights.iter().map(|w| w.to_bits()));
        if let Some((known, there)) = &self.weights
            && same(known)
        {
            return Ok(there.address());
        }
        let there = Buffer::new(&self.context, weights.len())?;
        let address = there.address();
        // The old ones may be in use: they are freed behind all work.
        self.weights = Some((weights.to_vec(), there));
        self.upload(stream, weights, address)?;
        Ok(address)
    }
}
