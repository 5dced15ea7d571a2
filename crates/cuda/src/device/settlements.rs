//! Updates that the device settles by itself: what their kernels are given, and what the host hears of them, behind.
//!
//! It does not know when anybody asks.

use crate::driver::{Buffer, Context, DriverError, Event, Pinned, Stream};
use crate::memory::{Slice, SliceMut};
use crate::operations::{FOUND, NUMBERS, Scalar};
use dtrain_engine::device::LossSums;
use dtrain_engine::{Findings, Verdict};
use std::sync::Arc;

/// A number that this device's operations are given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeviceScalar {
    /// As it is.
    Known(f32),
    /// As the device finds it.
    Found(Found),
}

/// Which of the numbers that a device finds, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// What gradients are multiplied by.
    Gradient = 0,
    /// What sums of statistics are multiplied by.
    Stats = 1,
    /// One, if the update is made.
    One = 2,
    /// What the loss is scaled by.
    LossScale = 3,
    /// What the squares are of.
    Mean = 4,
    /// Whether an update has halted.
    Halted = 5,
}

impl From<f32> for DeviceScalar {
    fn from(value: f32) -> Self {
        Self::Known(value)
    }
}

/// What is on its way to the host.
#[derive(Debug)]
struct News {
    found: Pinned<f64>,
    arrived: Event,
}

/// An update that the host has not heard of.
#[derive(Debug)]
pub struct PendingFindings {
    news: usize,
}

/// The memory of it.
#[derive(Debug)]
pub(super) struct Settlements {
    numbers: Buffer<f32>,
    found: Buffer<f64>,
    /// In turn: one may be read while the other one comes.
    news: [News; 2],
    next: usize,
}

impl Settlements {
    /// With a loss scale of one, and nothing halted.
    pub fn new(context: &Arc<Context>, stream: &Stream) -> Result<Self, DriverError> {
        let news = || -> Result<News, DriverError> {
            Ok(News { found: Pinned::new(context, FOUND)?, arrived: Event::new(context)? })
        };
        let made = Self {
            numbers: Buffer::new(context, NUMBERS)?,
            found: Buffer::new(context, FOUND)?,
            news: [news()?, news()?],
            next: 0,
        };
        // SAFETY: the memory is as long, and freed behind all work.
        unsafe { stream.fill(made.numbers.address(), NUMBERS, 0)? };
        made.set(stream, Found::LossScale, 1.0f32.to_bits())?;
        Ok(made)
    }

    /// Writes a number, behind the work of the stream.
    pub fn set(&self, stream: &Stream, which: Found, bits: u32) -> Result<(), DriverError> {
        // SAFETY: it is one of the numbers; they are written and read on this stream alone, and freed behind all work.
        unsafe { stream.fill(self.address_of(which), 1, bits) }
    }

    /// Where a number lies.
    pub fn address_of(&self, which: Found) -> u64 {
        self.numbers.address() + 4 * which as u64
    }

    /// A number as kernels of the stream are given it.
    ///
    /// # Safety
    /// The device, whose memory it is, lives until they are on the stream.
    pub unsafe fn scalar<'a>(&self, of: DeviceScalar) -> Scalar<'a> {
        match of {
            DeviceScalar::Known(value) => Scalar::Known(value),
            DeviceScalar::Found(which) => {
                // SAFETY: it lies there, and is written on the same stream; the caller's promise.
                Scalar::At(unsafe { Slice::new(self.address_of(which), 1) })
            }
        }
    }

    /// All numbers, and what is found, to write.
    pub fn write(&mut self) -> (SliceMut<'_, f32>, SliceMut<'_, f64>) {
        (self.numbers.write(), self.found.write())
    }

    /// Puts what was found on its way to the host.
    pub fn send(&mut self, stream: &Stream) -> Result<PendingFindings, DriverError> {
        let at = self.next;
        self.next = (at + 1) % self.news.len();
        let news = &self.news[at];
        // SAFETY: both are as long; the pinned memory is read behind its mark alone, and what it held was read before: only two are
        // ever on their way.
        unsafe { stream.copy(self.found.address(), news.found.address(), FOUND * size_of::<f64>())? };
        stream.record(&news.arrived)?;
        Ok(PendingFindings { news: at })
    }

    /// What has come. *Blocks* until it is there.
    pub fn read(&self, of: &PendingFindings) -> Result<Findings, DriverError> {
        let news = &self.news[of.news];
        news.arrived.wait()?;
        let words = |at: usize| {
            let bits = news.found.read()[at].to_bits();
            [bits as u32, (bits >> 32) as u32]
        };
        let [loss, weight, squares] = [0, 1, 2].map(|at| news.found.read()[at]);
        let [counted, correct] = [3, 4].map(|at| news.found.read()[at].to_bits());
        let ([broken, verdict], [_, stats_broken]) = (words(5), words(6));
        Ok(Findings {
            sums: LossSums { loss, weight, counted, correct },
            non_finite: broken.checked_sub(1),
            squares,
            stats_finite: stats_broken == 0,
            verdict: match verdict {
                0 => Verdict::Made,
                1 => Verdict::Skipped,
                _ => Verdict::Halted,
            },
        })
    }
}
