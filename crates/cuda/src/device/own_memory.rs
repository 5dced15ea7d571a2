//! This device's memory as the engine's replica wants it.

use super::CudaDevice;
use super::ahead::Ahead;
use super::settlements::{DeviceScalar, Found, PendingFindings};
use super::workspace::{PendingSums, Want};
use crate::collectives::SlotMemory;
use crate::driver::{Buffer, DriverError, Part};
use crate::memory::{Element, Slice, SliceMut};
use crate::operations::{self as kernels, to_half};
use crate::values::{Values, ValuesMut};
use dtrain_engine::{EngineError, Factors, Findings, Normaliser, OwnMemory, Settling, UpdateScalars};
use dtrain_types::{Bytes, DeviceMemory};

impl From<DriverError> for EngineError {
    fn from(error: DriverError) -> Self {
        match error {
            DriverError::OutOfMemory { .. } => Self::NoRoom(error.to_string()),
            error => Self::Device(error.to_string()),
        }
    }
}

impl CudaDevice {
    /// Zeroed memory.
    fn zeros<T: Element>(&self, len: usize) -> Result<Buffer<T>, EngineError> {
        let buffer = Buffer::new(self.gpu().context(), len)?;
        // SAFETY: it is as long, nobody else knows of it yet, and it is freed behind all work.
        let filled = unsafe { self.stream().fill(buffer.address(), len * size_of::<T>() / 4, 0) };
        filled?;
        Ok(buffer)
    }

    /// Puts a list on its way, behind everything that was given; nobody waits for it.
    fn put<T: Element>(&self, from: &[T], to: SliceMut<'_, T>) -> Result<(), EngineError> {
        Ok(self.workspace().way().upload(self.stream(), from, to.address())?)
    }

    /// Puts a list on its way beside the work that was given since the last join.
    fn put_ahead<T: Element>(&self, from: &[T], to: SliceMut<'_, T>) -> Result<(), EngineError> {
        self.ahead_of(|ahead| ahead.send(from, to.address()))
    }

    fn ahead_of(&self, send: impl FnOnce(&mut Ahead) -> Result<(), DriverError>) -> Result<(), EngineError> {
        let mut ahead = self.ahead();
        let ahead = match &mut *ahead {
            Some(ahead) => ahead,
            none => none.insert(Ahead::new(self.stream(), &self.threads)?),
        };
        Ok(send(ahead)?)
    }
}

/// f32 memory, for parameters with a copy in halves that products read.
#[derive(Debug)]
pub struct DeviceFloats {
    all: Part<f32>,
    copy: Option<Buffer<u16>>,
}

impl DeviceFloats {
    /// Lent for reading.
    #[must_use]
    pub fn read(&self) -> Values<'_> {
        let all = self.all.read();
        match &self.copy {
            Some(copy) => Values::with_copy(all, copy.read().part(0..all.len())),
            None => all.into(),
        }
    }

    /// Lent for writing.
    #[must_use]
    pub fn write(&mut self) -> ValuesMut<'_> {
        let all = self.all.write();
        let len = all.len();
        match &mut self.copy {
            Some(copy) => ValuesMut::with_copy(all, copy.write().split(len).0),
            None => all.into(),
        }
    }
}

impl From<Part<f32>> for DeviceFloats {
    fn from(all: Part<f32>) -> Self {
        Self { all, copy: None }
    }
}

impl OwnMemory for CudaDevice {
    type Floats = DeviceFloats;
    type Words = Buffer<u32>;
    type Pending = PendingFindings;

    fn floats(&self, len: usize) -> Result<DeviceFloats, EngineError> {
        Ok(Part::from(self.zeros(len)?).into())
    }

    fn copy_to(&self, from: Values<'_>, to: &mut DeviceFloats, at: usize) {
        let part = at..at + from.len();
        kernels::copy(self.stream(), from, to.all.write().part(part.clone()));
        if let (Some(copy), Some(half)) = (&mut to.copy, self.precision.half()) {
            to_half(self.stream(), half, to.all.read().part(part.clone()), copy.write().part(part));
        }
    }

    fn squares(&self, g: Values<'_>, scale: f32, to: &mut DeviceFloats) {
        let (all, blocks) = (to.all.write(), kernels::sum_of_squares_scratch(g.len()));
        assert!(2 * blocks <= all.len(), "{blocks} sums for {} floats", all.len());
        // SAFETY: an f64 is as long as two floats, whatever was allocated begins on a multiple of it, and all of it is lent to this call.
        let parts = unsafe { SliceMut::<f64>::new(all.address(), blocks) };
        kernels::square_parts(self.stream(), g.floats(), scale, parts);
    }

    fn copy_len(&self, parameters: usize) -> usize {
        if self.precision.half().is_some() { parameters.div_ceil(2) } else { 0 }
    }

    fn parameters(&self, len: usize) -> Result<DeviceFloats, EngineError> {
        let all = self.floats(len)?;
        // Zeros are counted in words.
        let copy = self.precision.half().filter(|_| len > 0).map(|_| self.zeros(len.next_multiple_of(2)));
        Ok(DeviceFloats { copy: copy.transpose()?, ..all })
    }

    fn words(&self, len: usize) -> Result<Buffer<u32>, EngineError> {
        self.zeros(len)
    }

    fn slot(memory: &DeviceMemory) -> Option<DeviceFloats> {
        let slot = memory.of::<SlotMemory>()?;
        // SAFETY: an arena touches its slots, and a backend the memory that it lends, in collectives, which end before more is given, in leases, which wait
        // for this device, and between collectives (`DeviceSlot`): behind the work of this device, and in front of what it is given once that is handed over.
        Some(unsafe { Part::of(&slot.memory, slot.elements.clone()) }.into())
    }

    fn look(memory: &DeviceFloats) -> Values<'_> {
        memory.read()
    }

    fn take(memory: &mut DeviceFloats) -> ValuesMut<'_> {
        memory.write()
    }

    fn ids(memory: &Buffer<u32>) -> Slice<'_, u32> {
        memory.read()
    }

    fn send_to(&self, from: &[f32], to: &mut DeviceFloats, at: usize) -> Result<(), EngineError> {
        let part = at..at + from.len();
        self.put(from, to.all.write().part(part.clone()))?;
        if let (Some(copy), Some(half)) = (&mut to.copy, self.precision.half()) {
            to_half(self.stream(), half, to.all.read().part(part.clone()), copy.write().part(part));
        }
        Ok(())
    }

    fn send_activations(&self, from: &[f32], to: &mut DeviceFloats) -> Result<(), EngineError> {
        let Some(half) = self.precision.half() else { return self.send(from, to) };
        let to = to.all.write().address();
        Ok(self.workspace().way().upload_rounded(self.stream(), half, from, to)?)
    }

    fn send_ids(&self, from: &[u32], to: &mut Buffer<u32>) -> Result<(), EngineError> {
        self.put(from, to.write().part(0..from.len()))
    }

    fn send_ahead(&self, from: &[f32], to: &mut DeviceFloats) -> Result<(), EngineError> {
        self.put_ahead(from, to.all.write().part(0..from.len()))
    }

    fn send_activations_ahead(&self, from: &[f32], to: &mut DeviceFloats) -> Result<(), EngineError> {
        let Some(half) = self.precision.half() else { return self.send_ahead(from, to) };
        let to = to.all.write().address();
        self.ahead_of(|ahead| ahead.send_rounded(half, from, to))
    }

    fn send_ids_ahead(&self, from: &[u32], to: &mut Buffer<u32>) -> Result<(), EngineError> {
        self.put_ahead(from, to.write().part(0..from.len()))
    }

    fn join_ahead(&self) -> Result<(), EngineError> {
        self.ahead().as_ref().map_or(Ok(()), |ahead| Ok(ahead.join(self.stream())?))
    }

    fn fetch_from(&self, from: &DeviceFloats, at: usize, to: &mut [f32]) -> Result<(), EngineError> {
        self.download(from.all.read().part(at..at + to.len()), to).map_err(EngineError::from)
    }

    fn fetch_activations(&self, from: &DeviceFloats, to: &mut [f32]) -> Result<(), EngineError> {
        let Some(half) = self.precision.half() else { return self.fetch(from, to) };
        let mut halves = vec![0u16; to.len()];
        self.workspace().way().download(self.stream(), from.all.read().address(), &mut halves)?;
        half.widen(&halves, to);
        Ok(())
    }

    fn peak_memory(&self) -> Bytes {
        Bytes(self.gpu().context().peak_memory())
    }

    fn keep_losses(&self, losses: usize) -> Result<(), EngineError> {
        Ok(self.workspace().keep_losses(losses)?)
    }

    fn loss_scale(&self) -> DeviceScalar {
        DeviceScalar::Found(Found::LossScale)
    }

    fn set_loss_scale(&self, factor: f32) -> Result<(), EngineError> {
        Ok(self.settlements().set(self.stream(), Found::LossScale, factor.to_bits())?)
    }

    fn settle(
        &self,
        update: &Settling<'_>,
        normaliser: Normaliser<'_, PendingSums>,
        gradient: Values<'_>,
        mut stats: ValuesMut<'_>,
    ) -> Result<Option<UpdateScalars<DeviceScalar>>, EngineError> {
        let Settling { facts, clip_norm, samples } = *update;
        let (stream, mut workspace, mut settlements) = (self.stream(), self.workspace(), self.settlements());
        let losses = match normaliser {
            Normaliser::Known(weight) => Err(weight),
            Normaliser::Losses(step) => Ok(workspace.losses_of(step)),
        };
        // SAFETY: what it lends is of this device.
        let mean = unsafe { settlements.scalar(DeviceScalar::Found(Found::Mean)) };
        let (numbers, found) = settlements.write();
        kernels::weigh(stream, losses, found, numbers);
        let grads = gradient.part(0..facts.parameters).floats();
        let sums = gradient.part(facts.parameters..facts.parameters + facts.stats).floats();
        let squares = kernels::sum_of_squares_scratch(grads.len());
        let words = kernels::all_finite_scratch(sums.len());
        let mut parts = workspace.parts(Want::default().and::<f64>(squares).and::<u32>(words))?;
        // SAFETY: the workspace is locked until all of it is on the stream.
        let (squares, words) = unsafe { (parts.take::<f64>(squares), parts.take::<u32>(words)) };
        let (numbers, mut found) = settlements.write();
        kernels::sum_of_squares(stream, grads, mean, found.part(2..3), squares);
        if sums.len() > 0 {
            kernels::all_finite(stream, sums, found.part(6..7).words().split(1).0, words);
        }
        let scale = facts
            .scaling
            .map(|scaling| (stats.part(facts.stats..facts.stats + 2).floats(), scaling.interval));
        let share = (1.0 / samples.max(1) as f64) as f32;
        kernels::settle(stream, kernels::Rule { clip_norm, stats: share, scale }, found, numbers);
        let [gradient, stats, parameters] =
            [Found::Gradient, Found::Stats, Found::One].map(DeviceScalar::Found);
        let factors = Factors { gradient, parameters };
        Ok(Some(UpdateScalars { factors, stats }))
    }

    fn send_findings(&self) -> Result<PendingFindings, EngineError> {
        Ok(self.settlements().send(self.stream())?)
    }

    fn findings(&self, of: PendingFindings) -> Result<Findings, EngineError> {
        Ok(self.settlements().read(&of)?)
    }

    fn go_on(&self) -> Result<(), EngineError> {
        Ok(self.settlements().set(self.stream(), Found::Halted, 0)?)
    }
}
