//! What a backend needs of a device: a stream, memory, marks in the stream, copies, and additions in a given order.
//!
//! Small on purpose: whoever has streams and a kernel that adds can implement it. Nothing here waits; the backend looks
//! whether a mark was reached. It does not know ranks.

use dtrain_collective::{Arena, SumOrder};
use dtrain_types::DeviceMemory;
use nccl_sys::cudaStream_t;
use std::ffi::c_void;

/// An address on a device, or of host memory that the device can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub *mut u8);

// SAFETY: it is a number; who follows it answers for that.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// That many bytes further on.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// That many floats further on.
    #[must_use]
    pub fn float(self, floats: usize) -> Self {
        self.plus(floats * size_of::<f32>())
    }

    pub(crate) fn cast(self) -> *mut c_void {
        self.0.cast()
    }
}

/// A stream as the library takes it: a CUDA stream, or the address of a [`nccl_sys::HostStream`].
#[derive(Clone, Copy, Debug)]
pub struct Stream(pub cudaStream_t);

/// Where memory is to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPlace {
    /// On the device.
    Device,
    /// On the host, where the device's copies can reach it (pinned).
    Host,
}

/// What a device said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// Gradient buffers on a device.
pub trait DeviceArena: Arena {
    /// Where a slot begins. *Panics* if there is no such slot.
    fn address(&self, slot: usize) -> Address;

    /// Puts on the stream what the host wrote into leases that are copies of slots, behind all that fills the slots; nothing where a lease is the slot.
    fn settle(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// What fills the slots comes behind all that is on the stream; nothing where the host fills them.
    fn hand_over(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A device with one stream, as far as collectives need it. Work is done in the order in which it was put on the stream.
///
/// # Safety
/// Memory stays where it is until it is dropped. `has_happened` says yes only when everything before the mark is done.
pub unsafe trait Device: Send {
    /// Its gradient buffers.
    type Arena: DeviceArena;
    /// Other memory; freed when dropped.
    type Memory: Send;
    /// A mark that can be put into the stream again and again.
    type Event: Send;
    /// An addition that was planned.
    type Sum: Send;

    /// What it is, for the log.
    fn describe(&self) -> String;

    /// Makes the calling thread one from which the library finds this device: it asks the driver for the thread's own.
    fn enter(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The stream on which everything is put.
    fn stream(&self) -> Stream;

    /// Zeroed memory. *Errors*: there is not so much.
    fn allocate(&self, place: MemoryPlace, bytes: usize) -> Result<Self::Memory, DeviceError>;

    /// Zeroed memory of the device, which whoever fills the slots knows as well. *Errors*: there is not so much.
    fn share(&self, floats: usize) -> Result<DeviceMemory, DeviceError>;

    /// Where shared memory begins, and how many floats it has; none if it is of another device.
    fn reach(&self, memory: &DeviceMemory) -> Option<(Address, usize)>;

    /// Where memory begins; a multiple of 64.
    fn address(&self, memory: &Self::Memory) -> Address;

    /// Puts a copy on the stream, between places of any kind.
    ///
    /// # Safety
    /// Both are `bytes` bytes of this device's memory that do not overlap, and live until the stream has passed this.
    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Puts on the stream that `floats` floats become `value`, bit for bit.
    ///
    /// # Safety
    /// They are floats of this device's memory, and live until the stream has passed this.
    unsafe fn fill(&self, at: Address, floats: usize, value: f32) -> Result<(), DeviceError>;

    /// Puts on the stream that floats are added to others: `into += from`, each rounded once.
    ///
    /// # Safety
    /// Both are `floats` floats of this device's memory that do not overlap, and live until the stream has passed this.
    unsafe fn add_to(&self, from: Address, into: Address, floats: usize) -> Result<(), DeviceError>;

    /// Plans the sum of `leaves`, `floats` long, to `out`, which may be the address of a leaf.
    ///
    /// *Order*: for every element that of `order`; no addition is reassociated or fused.
    fn plan_sum(
        &self,
        order: &SumOrder,
        leaves: &[Address],
        out: Address,
        floats: usize,
    ) -> Result<Self::Sum, DeviceError>;

    /// Puts a planned addition on the stream.
    ///
    /// # Safety
    /// The addresses it was planned with are floats of this device's memory, and live until the stream has passed this.
    unsafe fn add(&self, sum: &Self::Sum) -> Result<(), DeviceError>;

    /// Makes a mark, as if it had been reached.
    fn event(&self) -> Result<Self::Event, DeviceError>;

    /// Puts a mark into the stream, here.
    fn record(&self, event: &Self::Event) -> Result<(), DeviceError>;

    /// Whether the stream has passed a mark where it was put last. *Errors*: what the device failed in.
    fn has_happened(&self, event: &Self::Event) -> Result<bool, DeviceError>;
}
