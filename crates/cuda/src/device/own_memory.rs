//! This device's memory as the engine's replica wants it.

use super::CudaDevice;
use super::ahead::Ahead;
use crate::collectives::SlotMemory;
use crate::driver::{Buffer, DriverError, Part};
use crate::memory::{Element, Slice, SliceMut};
use dtrain_engine::{EngineError, OwnMemory};
use dtrain_types::DeviceMemory;

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
        let mut ahead = self.ahead();
        let ahead = match &mut *ahead {
            Some(ahead) => ahead,
            none => none.insert(Ahead::new(self.stream())?),
        };
        Ok(ahead.send(from, to.address())?)
    }
}

impl OwnMemory for CudaDevice {
    type Floats = Part<f32>;
    type Words = Buffer<u32>;

    fn floats(&self, len: usize) -> Result<Part<f32>, EngineError> {
        self.zeros(len).map(Part::from)
    }

    fn words(&self, len: usize) -> Result<Buffer<u32>, EngineError> {
        self.zeros(len)
    }

    fn slot(memory: &DeviceMemory) -> Option<Part<f32>> {
        let slot = memory.of::<SlotMemory>()?;
        // SAFETY: an arena touches its slots in collectives alone, which it puts behind the work of the rank's device and
        // which end before more is given, and in leases, which wait for that device.
        Some(unsafe { Part::of(&slot.memory, slot.elements.clone()) })
    }

    fn look(memory: &Part<f32>) -> Slice<'_, f32> {
        memory.read()
    }

    fn take(memory: &mut Part<f32>) -> SliceMut<'_, f32> {
        memory.write()
    }

    fn ids(memory: &Buffer<u32>) -> Slice<'_, u32> {
        memory.read()
    }

    fn send(&self, from: &[f32], to: &mut Part<f32>) -> Result<(), EngineError> {
        self.put(from, to.write().part(0..from.len()))
    }

    fn send_ids(&self, from: &[u32], to: &mut Buffer<u32>) -> Result<(), EngineError> {
        self.put(from, to.write().part(0..from.len()))
    }

    fn send_ahead(&self, from: &[f32], to: &mut Part<f32>) -> Result<(), EngineError> {
        self.put_ahead(from, to.write().part(0..from.len()))
    }

    fn send_ids_ahead(&self, from: &[u32], to: &mut Buffer<u32>) -> Result<(), EngineError> {
        self.put_ahead(from, to.write().part(0..from.len()))
    }

    fn join_ahead(&self) -> Result<(), EngineError> {
        self.ahead().as_ref().map_or(Ok(()), |ahead| Ok(ahead.join(self.stream())?))
    }

    fn fetch(&self, from: &Part<f32>, to: &mut [f32]) -> Result<(), EngineError> {
        self.download(from.read().part(0..to.len()), to).map_err(EngineError::from)
    }
}
