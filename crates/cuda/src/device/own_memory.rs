//! This device's memory as the engine's replica wants it.

use super::CudaDevice;
use crate::driver::{Buffer, DriverError};
use crate::memory::{Element, Slice, SliceMut};
use dtrain_engine::{EngineError, OwnMemory};

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
        Ok(self.workspace().upload(self.stream(), from, to.address())?)
    }
}

impl OwnMemory for CudaDevice {
    type Floats = Buffer<f32>;
    type Words = Buffer<u32>;

    fn floats(&self, len: usize) -> Result<Buffer<f32>, EngineError> {
        self.zeros(len)
    }

    fn words(&self, len: usize) -> Result<Buffer<u32>, EngineError> {
        self.zeros(len)
    }

    fn look(memory: &Buffer<f32>) -> Slice<'_, f32> {
        memory.read()
    }

    fn take(memory: &mut Buffer<f32>) -> SliceMut<'_, f32> {
        memory.write()
    }

    fn ids(memory: &Buffer<u32>) -> Slice<'_, u32> {
        memory.read()
    }

    fn send(&self, from: &[f32], to: &mut Buffer<f32>) -> Result<(), EngineError> {
        self.put(from, to.write().part(0..from.len()))
    }

    fn send_ids(&self, from: &[u32], to: &mut Buffer<u32>) -> Result<(), EngineError> {
        self.put(from, to.write().part(0..from.len()))
    }

    fn fetch(&self, from: &Buffer<f32>, to: &mut [f32]) -> Result<(), EngineError> {
        self.download(from.read().part(0..to.len()), to).map_err(EngineError::from)
    }
}
