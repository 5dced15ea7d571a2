//! Memory for partial results, and the way between host and device. Made once, grown in the first pass.
//!
//! Operations of one stream run one after another, so they share it. It does not know which operation wants what.

use crate::driver::{Buffer, Context, DriverError, Event, Pinned, Stream};
use crate::memory::{Element, SliceMut};
use crate::operations::LossTotals;
use dtrain_engine::device::LossSums;
use std::sync::Arc;

/// Bytes of a piece on the way between host and device.
const PIECE: usize = 1 << 20;
/// Words of what a loss comes to.
const TOTALS: usize = 6;
/// What a part of the scratch starts on a multiple of. *Units*: bytes.
const ALIGNED: usize = 256;

#[derive(Debug)]
pub(super) struct Workspace {
    context: Arc<Context>,
    /// For partial results; as large as the largest that was asked for.
    scratch: Buffer<u32>,
    /// Whether there was no room for so much.
    is_short: bool,
    /// On the way between host and device, in turn; the newest is the last.
    way: [Way; 2],
    /// What the newest loss came to: two `f64`, two `u32`.
    totals: Buffer<u32>,
    /// How many losses there were.
    losses: u64,
    /// The class weights that are on the device, and where.
    weights: Option<(Vec<f32>, Buffer<f32>)>,
}

/// A piece on the way.
#[derive(Debug)]
struct Way {
    piece: Pinned<u8>,
    /// The copy from it or to it is done.
    free: Event,
}

impl Way {
    fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        Ok(Self { piece: Pinned::new(context, PIECE)?, free: Event::new(context)? })
    }

    /// *Blocks* until what it holds has come, and hands it on.
    fn take_out<T: Element>(&self, to: &mut [T]) -> Result<(), DriverError> {
        self.free.wait()?;
        let bytes = size_of_val(to);
        // SAFETY: elements are plain numbers, for which all bits are a value.
        let plain = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), bytes) };
        plain.copy_from_slice(&self.piece.read()[..bytes]);
        Ok(())
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        // An error means that the device has failed: then its memory is not given back.
        let _ = self.free.wait();
    }
}

/// What a loss comes to, as long as it is on the device.
#[derive(Debug)]
pub struct PendingSums {
    /// Which loss it was.
    number: u64,
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
        Ok(Self {
            context: context.clone(),
            scratch: Buffer::new(context, 0)?,
            is_short: false,
            way: [Way::new(context)?, Way::new(context)?],
            totals: Buffer::new(context, TOTALS)?,
            losses: 0,
            weights: None,
        })
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

    /// Puts a list on its way to the device, behind everything that was given. The list may be changed afterwards.
    ///
    /// *Blocks* while more than two pieces are on their way.
    pub fn upload<T: Element>(&mut self, stream: &Stream, from: &[T], to: u64) -> Result<(), DriverError> {
        let mut at = to;
        for piece in from.chunks(PIECE / size_of::<T>()) {
            let bytes = size_of_val(piece);
            // SAFETY: elements are plain numbers without padding.
            let plain = unsafe { std::slice::from_raw_parts(piece.as_ptr().cast::<u8>(), bytes) };
            let way = &mut self.way[0];
            way.free.wait()?;
            way.piece.write()[..bytes].copy_from_slice(plain);
            // SAFETY: the device's memory was lent to this call; it is freed behind all work. The piece is our own, and is not
            // touched before its mark is reached.
            unsafe { stream.copy(way.piece.address(), at, bytes)? };
            stream.record(&way.free)?;
            self.way.swap(0, 1);
            at += bytes as u64;
        }
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
            let [way, other] = &mut self.way;
            way.free.wait()?;
            // SAFETY: the device's memory was lent to this call; the piece is our own, and is not touched before its mark is
            // reached.
            unsafe { stream.copy(at, way.piece.address(), bytes)? };
            stream.record(&way.free)?;
            if let Some(piece) = before.replace(piece) {
                other.take_out(piece)?;
            }
            self.way.swap(0, 1);
            at += bytes as u64;
        }
        before.map_or(Ok(()), |piece| self.way[1].take_out(piece))
    }

    /// Where the next loss puts its sums.
    pub fn next_loss<'a>(&mut self) -> (PendingSums, LossTotals<'a>) {
        self.losses += 1;
        let at = self.totals.address();
        // SAFETY: they lie there, aligned, as long as the workspace lives, which is freed behind all work. Losses are on one
        // stream, one behind the other.
        let (sums, counts) = unsafe { (SliceMut::new(at, 2), SliceMut::new(at + 16, 2)) };
        (PendingSums { number: self.losses }, LossTotals { sums, counts })
    }

    /// What a loss came to. *Blocks* until everything that was given is done.
    ///
    /// *Panics* if there was another loss since.
    pub fn sums(&mut self, stream: &Stream, of: PendingSums) -> Result<LossSums, DriverError> {
        assert_eq!(of.number, self.losses, "the sums of a loss are read before the next loss");
        let mut words = [0u32; TOTALS];
        self.download(stream, self.totals.address(), &mut words)?;
        let [l0, l1, w0, w1, counted, correct] = words.map(u64::from);
        let float = |low: u64, high: u64| f64::from_bits(high << 32 | low);
        Ok(LossSums { loss: float(l0, l1), weight: float(w0, w1), counted, correct })
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
