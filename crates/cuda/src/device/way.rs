//! The way of lists between host and device: two pieces of pinned memory, in turn, which threads fill together.
//!
//! It does not know what the lists are, nor what else a stream is given.

use crate::driver::{Context, DriverError, Event, Pinned, Stream};
use crate::memory::Element;
use crate::values::Half;
use dtrain_engine::cpu::Pool;
use std::sync::Arc;

/// Bytes of a piece on the way between host and device.
const PIECE: usize = 1 << 20;
/// What one thread takes of it at a time. *Units*: bytes.
const TASK: usize = 1 << 16;

/// A piece on the way.
#[derive(Debug)]
struct Piece {
    bytes: Pinned<u8>,
    /// The copy from it or to it is done.
    free: Event,
}

impl Piece {
    fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        Ok(Self { bytes: Pinned::new(context, PIECE)?, free: Event::new(context)? })
    }

    /// *Blocks* until nobody uses it: as a rule it asks, and nobody does.
    fn be_free(&self) -> Result<(), DriverError> {
        if self.free.has_happened()? { Ok(()) } else { self.free.wait() }
    }

    /// *Blocks* until what it holds has come, and hands it on.
    fn take_out<T: Element>(&self, threads: &Pool, to: &mut [T]) -> Result<(), DriverError> {
        self.free.wait()?;
        let bytes = size_of_val(to);
        // SAFETY: elements are plain numbers, for which all bits are a value.
        let plain = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), bytes) };
        let there = &self.bytes.read()[..bytes];
        threads.fill(plain, TASK, |t, part| part.copy_from_slice(&there[t * TASK..][..part.len()]));
        Ok(())
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // An error means that the device has failed: then its memory is not given back.
        let _ = self.free.wait();
    }
}

/// Pieces on their way, the newest is the last.
#[derive(Debug)]
pub(super) struct Way {
    pieces: [Piece; 2],
    /// Who fills them, and empties them.
    threads: Arc<Pool>,
}

impl Way {
    pub fn new(context: &Arc<Context>, threads: &Arc<Pool>) -> Result<Self, DriverError> {
        Ok(Self { pieces: [Piece::new(context)?, Piece::new(context)?], threads: threads.clone() })
    }

    /// These fill the pieces from now on, and empty them.
    pub fn by(&mut self, threads: &Arc<Pool>) {
        self.threads = threads.clone();
    }

    /// Puts a list on its way to the device, behind everything that was given. The list may be changed afterwards.
    ///
    /// *Blocks* while more than two pieces are on their way.
    pub fn upload<T: Element>(&mut self, stream: &Stream, from: &[T], to: u64) -> Result<(), DriverError> {
        let mut at = to;
        for piece in from.chunks(PIECE / size_of::<T>()) {
            // SAFETY: elements are plain numbers without padding.
            let plain =
                unsafe { std::slice::from_raw_parts(piece.as_ptr().cast::<u8>(), size_of_val(piece)) };
            self.send(stream, plain.len(), at, |threads, to| {
                threads.fill(to, TASK, |t, part| part.copy_from_slice(&plain[t * TASK..][..part.len()]));
            })?;
            at += plain.len() as u64;
        }
        Ok(())
    }

    /// The same, rounded to halves on the way.
    pub fn upload_rounded(
        &mut self,
        stream: &Stream,
        half: Half,
        from: &[f32],
        to: u64,
    ) -> Result<(), DriverError> {
        let mut at = to;
        for piece in from.chunks(PIECE / size_of::<u16>()) {
            let bytes = piece.len() * size_of::<u16>();
            self.send(stream, bytes, at, |threads, to| {
                // SAFETY: any bits are halves; a piece begins on a multiple of many.
                let (before, halves, after) = unsafe { to.align_to_mut::<u16>() };
                assert!(before.is_empty() && after.is_empty(), "a piece is aligned");
                let each = TASK / size_of::<u16>();
                threads.fill(halves, each, |t, part| half.round(&piece[t * each..][..part.len()], part));
            })?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// Puts a piece on its way.
    fn send(
        &mut self,
        stream: &Stream,
        bytes: usize,
        to: u64,
        fill: impl FnOnce(&Pool, &mut [u8]),
    ) -> Result<(), DriverError> {
        let way = &mut self.pieces[0];
        way.be_free()?;
        fill(&self.threads, &mut way.bytes.write()[..bytes]);
        // SAFETY: the device's memory was lent to this call; it is freed behind all work. The piece is our own, and is not
        // touched before its mark is reached.
        unsafe { stream.copy(way.bytes.address(), to, bytes)? };
        stream.record(&way.free)?;
        self.pieces.swap(0, 1);
        Ok(())
    }

    /// *Blocks* until the list is on the host, behind everything that was given. A piece is on its way while the one before it is
    /// taken out.
    pub fn download<T: Element>(
        &mut self,
        stream: &Stream,
        from: u64,
        to: &mut [T],
    ) -> Result<(), DriverError> {
        let (mut at, mut before) = (from, None);
        for piece in to.chunks_mut(PIECE / size_of::<T>()) {
            let bytes = size_of_val(piece);
            let [way, other] = &mut self.pieces;
            way.be_free()?;
            // SAFETY: the device's memory was lent to this call; the piece is our own, and is not touched before its mark is
            // reached.
            unsafe { stream.copy(at, way.bytes.address(), bytes)? };
            stream.record(&way.free)?;
            if let Some(piece) = before.replace(piece) {
                other.take_out(&self.threads, piece)?;
            }
            self.pieces.swap(0, 1);
            at += bytes as u64;
        }
        before.map_or(Ok(()), |piece| self.pieces[1].take_out(&self.threads, piece))
    }
}
