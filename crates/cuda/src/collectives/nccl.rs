//! What the backend over NCCL needs of a GPU.

use super::slots::{GpuSlots, SlotMemory};
use super::sum::PlannedSum;
use crate::driver::{Buffer, DriverError, Event, Gpu, Pinned, Stream};
use crate::memory::{Slice, SliceMut};
use crate::operations::add_to;
use dtrain_collective::SumOrder;
use dtrain_nccl::{Address, Device, DeviceArena, DeviceError, MemoryPlace};
use dtrain_types::DeviceMemory;
use std::sync::Arc;

/// A GPU with a stream for communication.
#[derive(Debug)]
pub struct NcclDevice {
    stream: Arc<Stream>,
}

/// Memory on the device or on the host.
#[derive(Debug)]
pub enum NcclMemory {
    /// On the device.
    Device(Buffer<u32>),
    /// Pinned.
    Host(Pinned<u32>),
}

impl NcclDevice {
    /// A stream of its own on a GPU. *Errors*: of the driver.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, DriverError> {
        Ok(Self { stream: Arc::new(Stream::new(gpu)?) })
    }

    /// The stream: for the arena, and to wait for what was computed on another one.
    #[must_use]
    pub fn communication(&self) -> &Arc<Stream> {
        &self.stream
    }
}

impl From<DriverError> for DeviceError {
    fn from(error: DriverError) -> Self {
        Self(error.to_string())
    }
}

fn number(address: Address) -> u64 {
    address.0 as u64
}

impl DeviceArena for GpuSlots {
    fn address(&self, slot: usize) -> Address {
        Address(GpuSlots::address(self, slot) as *mut u8)
    }

    fn settle(&mut self) -> Result<(), DeviceError> {
        GpuSlots::settle(self).map_err(Into::into)
    }

    fn hand_over(&mut self) -> Result<(), DeviceError> {
        self.lead().map_err(Into::into)
    }
}

// SAFETY: memory of the driver is never moved; a mark is an event of the stream, which keeps the order of its work.
unsafe impl Device for NcclDevice {
    type Arena = GpuSlots;
    type Memory = NcclMemory;
    type Event = Event;
    type Sum = PlannedSum;

    fn describe(&self) -> String {
        let about = self.stream.gpu().context().about();
        format!("GPU {} ({})", about.ordinal, about.name)
    }

    fn enter(&self) -> Result<(), DeviceError> {
        Ok(self.stream.gpu().context().enter()?)
    }

    fn stream(&self) -> dtrain_nccl::Stream {
        dtrain_nccl::Stream(self.stream.handle().cast())
    }

    fn allocate(&self, place: MemoryPlace, bytes: usize) -> Result<NcclMemory, DeviceError> {
        let (context, words) = (self.stream.gpu().context(), bytes.div_ceil(size_of::<u32>()));
        match place {
            MemoryPlace::Host => Ok(NcclMemory::Host(Pinned::new(context, words)?)),
            MemoryPlace::Device => {
                let memory = Buffer::new(context, words)?;
                // SAFETY: it is nobody else's, and the stream is waited for.
                unsafe { self.stream.fill(memory.address(), words, 0)? };
                self.stream.finish()?;
                Ok(NcclMemory::Device(memory))
            }
        }
    }

    fn share(&self, floats: usize) -> Result<DeviceMemory, DeviceError> {
        let memory = Buffer::new(self.stream.gpu().context(), floats)?;
        // SAFETY: it is nobody else's, and the stream is waited for.
        unsafe { self.stream.fill(memory.address(), floats, 0)? };
        self.stream.finish()?;
        Ok(DeviceMemory::new(SlotMemory { memory: Arc::new(memory), elements: 0..floats }))
    }

    fn reach(&self, memory: &DeviceMemory) -> Option<(Address, usize)> {
        let SlotMemory { memory, elements } = memory.of::<SlotMemory>()?;
        Some((Address(memory.address() as *mut u8).float(elements.start), elements.len()))
    }

    fn address(&self, memory: &NcclMemory) -> Address {
        let address = match memory {
            NcclMemory::Device(memory) => memory.address(),
            NcclMemory::Host(memory) => memory.address(),
        };
        Address(address as *mut u8)
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.copy(number(from), number(to), bytes) }.map_err(Into::into)
    }

    unsafe fn fill(&self, at: Address, floats: usize, value: f32) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise; a float is a word.
        unsafe { self.stream.fill(number(at), floats, value.to_bits()) }.map_err(Into::into)
    }

    unsafe fn add_to(&self, from: Address, into: Address, floats: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let (from, into) = unsafe { (Slice::new(number(from), floats), SliceMut::new(number(into), floats)) };
        add_to(&self.stream, from, into);
        // A launch that was refused has left its error there.
        self.stream.gpu().context().check().map_err(Into::into)
    }

    fn plan_sum(
        &self,
        order: &SumOrder,
        leaves: &[Address],
        out: Address,
        floats: usize,
    ) -> Result<PlannedSum, DeviceError> {
        let leaves: Vec<u64> = leaves.iter().copied().map(number).collect();
        Ok(PlannedSum::new(&self.stream, order, &leaves, number(out), floats)?)
    }

    unsafe fn add(&self, sum: &PlannedSum) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { sum.run(&self.stream) };
        // A launch that was refused has left its error there.
        self.stream.gpu().context().check().map_err(Into::into)
    }

    fn event(&self) -> Result<Event, DeviceError> {
        Ok(Event::new(self.stream.gpu().context())?)
    }

    fn record(&self, event: &Event) -> Result<(), DeviceError> {
        self.stream.record(event).map_err(Into::into)
    }

    fn has_happened(&self, event: &Event) -> Result<bool, DeviceError> {
        Ok(event.has_happened()?)
    }
}
