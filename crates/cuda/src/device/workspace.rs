//! Memory for partial results, and what is read and written beside operands. Made once, grown in the first pass.
//!
//! Operations of one stream run one after another, so they share it. It does not know which operation wants what.

use super::way::Way;
use crate::driver::{Buffer, Context, DriverError, Stream};
use crate::memory::{Element, SliceMut};
use crate::operations::{LOSS, LossTotals, StepLosses};
use dtrain_engine::cpu::Pool;
use dtrain_engine::device::LossSums;
use std::sync::Arc;

/// Words of what a loss comes to.
const TOTALS: usize = LOSS * 2;
/// What a part of the scratch starts on a multiple of. *Units*: bytes.
const ALIGNED: usize = 256;

#[derive(Debug)]
pub(super) struct Workspace {
    context: Arc<Context>,
    /// For partial results; as large as the largest that was asked for.
    scratch: Buffer<u32>,
    /// Whether there was no room for so much.
    is_short: bool,
    /// Between host and device, behind the operations.
    way: Way,
    /// What the newest losses came to, [`LOSS`] each: two `f64`, two `u32`. Their places are taken in turn.
    totals: Buffer<f64>,
    /// How many losses there were.
    losses: u64,
    /// The class weights that are on the device, and where.
    weights: Option<(Vec<f32>, Buffer<f32>)>,
}

/// What a loss comes to, as long as it is on the device.
#[derive(Debug)]
pub struct PendingSums {
    /// Which loss it was.
    number: u64,
}

/// Parts of the scratch, one after another.
pub(super) struct ScratchParts {
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

impl ScratchParts {
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
    pub fn new(context: &Arc<Context>, threads: &Arc<Pool>) -> Result<Self, DriverError> {
        Ok(Self {
            context: context.clone(),
            scratch: Buffer::new(context, 0)?,
            is_short: false,
            way: Way::new(context, threads)?,
            totals: Buffer::new(context, LOSS)?,
            losses: 0,
            weights: None,
        })
    }

    /// Scratch for an operation. *Blocks* if it has to grow: the driver frees memory behind all work.
    pub fn parts(&mut self, want: Want) -> Result<ScratchParts, DriverError> {
        let words = want.bytes / size_of::<u32>();
        if words > self.scratch.len() {
            // What is there goes first: the larger one may need its place.
            self.scratch = Buffer::new(&self.context, 0)?;
            let larger = Buffer::new(&self.context, words);
            self.is_short |= matches!(larger, Err(DriverError::OutOfMemory { .. }));
            self.scratch = larger?;
        }
        let at = self.scratch.address();
        Ok(ScratchParts { at, end: at + want.bytes as u64 })
    }

    /// Scratch for a product of a library, which may write over it. *Blocks* as [`Workspace::parts`].
    pub fn room_for_library(&mut self, bytes: u64) -> Result<u64, DriverError> {
        Ok(self.parts(Want::default().and::<u8>(bytes as usize))?.at)
    }

    /// Whether an operation has failed for want of memory.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Losses that are kept.
    fn places(&self) -> usize {
        self.totals.len() / LOSS
    }

    /// Keeps at least so many losses from now on.
    pub fn keep_losses(&mut self, losses: usize) -> Result<(), DriverError> {
        if losses > self.places() {
            self.totals = Buffer::new(&self.context, losses * LOSS)?;
        }
        Ok(())
    }

    fn address_of(&self, loss: u64) -> u64 {
        self.totals.address() + (loss % self.places() as u64) * (LOSS * size_of::<f64>()) as u64
    }

    /// Where the next loss puts its sums.
    pub fn next_loss<'a>(&mut self) -> (PendingSums, LossTotals<'a>) {
        self.losses += 1;
        let at = self.address_of(self.losses);
        // SAFETY: they lie there, aligned, as long as the workspace lives, which is freed behind all work. Losses are on one
        // stream, one behind the other.
        let (sums, counts) = unsafe { (SliceMut::new(at, 2), SliceMut::new(at + 16, 2)) };
        (PendingSums { number: self.losses }, LossTotals { sums, counts })
    }

    /// The losses of a step. *Panics* unless they are the last ones, in their order, and kept.
    pub fn losses_of(&self, step: &[PendingSums]) -> StepLosses<'_> {
        let before = self.losses - step.len() as u64;
        let in_order = step.iter().zip(before + 1..).all(|(of, number)| of.number == number);
        assert!(in_order && step.len() <= self.places(), "the last {} losses of {step:?}", self.places());
        let first = ((before + 1) % self.places() as u64) as usize;
        StepLosses { places: self.totals.read(), first, count: step.len() }
    }

    /// The way between host and device.
    pub fn way(&mut self) -> &mut Way {
        &mut self.way
    }

    /// What a loss came to. *Blocks* until everything that was given is done.
    ///
    /// *Panics* if there were so many losses since that it is not kept.
    pub fn sums(&mut self, stream: &Stream, of: PendingSums) -> Result<LossSums, DriverError> {
        let since = self.losses - of.number;
        assert!(since < self.places() as u64, "the sums of a loss are read before {since} other losses");
        let mut words = [0u32; TOTALS];
        self.way.download(stream, self.address_of(of.number), &mut words)?;
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
        self.way.upload(stream, weights, address)?;
        Ok(address)
    }
}
