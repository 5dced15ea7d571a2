//! Lists that come to the device beside the work that it was given: the batch of the next pass.
//!
//! A stream of its own copies them. What is sent goes behind all work that was given up to the last join, so memory that only
//! that work uses may be written; what is given after a join goes behind what was sent before it.

use super::way::Way;
use crate::driver::{DriverError, Event, Stream};
use crate::memory::Element;
use crate::values::Half;
use dtrain_engine::cpu::Pool;
use std::sync::Arc;

/// The way beside a stream of work.
#[derive(Debug)]
pub(super) struct Ahead {
    /// First, so that it waits for its copies while their stream is there.
    way: Way,
    stream: Stream,
    /// In the other stream: what came before the last join is done.
    before: Event,
    /// In the own stream: what was sent has come.
    arrived: Event,
}

impl Ahead {
    /// Beside this stream, joined to what it was given so far; lists come by these threads. *Errors*: of the driver.
    pub fn new(work: &Stream, threads: &Arc<Pool>) -> Result<Self, DriverError> {
        let context = work.gpu().context();
        let (before, arrived) = (Event::new(context)?, Event::new(context)?);
        work.record(&before)?;
        Ok(Self { way: Way::new(context, threads)?, stream: Stream::new(work.gpu())?, before, arrived })
    }

    /// Puts a list on its way. *Blocks* while more than two pieces are on theirs.
    ///
    /// *Errors*: of the driver.
    pub fn send<T: Element>(&mut self, from: &[T], to: u64) -> Result<(), DriverError> {
        self.beside(|way, stream| way.upload(stream, from, to))
    }

    /// The same, rounded to halves on the way.
    pub fn send_rounded(&mut self, half: Half, from: &[f32], to: u64) -> Result<(), DriverError> {
        self.beside(|way, stream| way.upload_rounded(stream, half, from, to))
    }

    fn beside(
        &mut self,
        put: impl FnOnce(&mut Way, &Stream) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        self.stream.wait_for(&self.before)?;
        put(&mut self.way, &self.stream)?;
        self.stream.record(&self.arrived)
    }

    /// What `work` is given from now on comes behind what was sent; what is sent from now on comes behind what `work` was given so
    /// far. *Errors*: of the driver.
    pub fn join(&self, work: &Stream) -> Result<(), DriverError> {
        work.wait_for(&self.arrived)?;
        work.record(&self.before)
    }
}
