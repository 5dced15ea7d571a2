//! The gradient buffers of one rank on a GPU.
//!
//! The host cannot reach them. What it leases is a copy: fetched when it is leased, put back when the device is to work on
//! the slot again ([`GpuSlots::settle`]). Training does not lease; checks, copies of state and tests do.

use crate::driver::{Buffer, DriverError, Pinned, Stream};
use crate::memory::SliceMut;
use dtrain_collective::{Arena, Geometry};
use std::sync::Arc;

/// What slots start on a multiple of. *Units*: floats.
const LINE: usize = 64;

/// Floats from one slot to the next.
pub(super) fn stride(geometry: Geometry) -> usize {
    geometry.len.next_multiple_of(LINE).max(LINE)
}

/// Numbered gradient buffers on a GPU.
#[derive(Debug)]
pub struct GpuSlots {
    geometry: Geometry,
    first: u64,
    mirrors: Vec<Mirror>,
    /// Shared with the other ranks, if they lie in one allocation.
    _memory: Arc<Buffer<f32>>,
    stream: Arc<Stream>,
}

/// A slot on the host.
#[derive(Debug, Default)]
struct Mirror {
    host: Option<Pinned<f32>>,
    /// It was leased: what it holds is what the slot should hold.
    leased: bool,
}

impl GpuSlots {
    /// Zeroed slots in one allocation. *Errors*: of the driver.
    pub fn new(stream: &Arc<Stream>, geometry: Geometry) -> Result<Self, DriverError> {
        let floats = stride(geometry) * geometry.slots();
        let memory = Arc::new(Buffer::new(stream.gpu().context(), floats)?);
        // SAFETY: it is our own memory, which outlives the stream's work.
        unsafe { stream.fill(memory.address(), floats, 0)? };
        stream.finish()?;
        let first = memory.address();
        Ok(Self::inside(stream, geometry, memory, first))
    }

    /// Slots that begin at an address of memory that is there. The caller answers for nobody else having them.
    pub(super) fn inside(
        stream: &Arc<Stream>,
        geometry: Geometry,
        memory: Arc<Buffer<f32>>,
        first: u64,
    ) -> Self {
        let mirrors = (0..geometry.slots()).map(|_| Mirror::default()).collect();
        Self { geometry, first, mirrors, _memory: memory, stream: stream.clone() }
    }

    /// The stream on which slots are copied.
    #[must_use]
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Where a slot begins on the device. *Panics* if there is no such slot.
    #[must_use]
    pub fn address(&self, slot: usize) -> u64 {
        assert!(slot < self.geometry.slots(), "slot {slot} of {}", self.geometry.slots());
        self.first + (slot * stride(self.geometry) * size_of::<f32>()) as u64
    }

    /// A slot for the device's kernels on [`GpuSlots::stream`]: what was leased is put back first.
    ///
    /// *Errors*: of the driver. *Panics* if there is no such slot.
    pub fn slot(&mut self, slot: usize) -> Result<SliceMut<'_, f32>, DriverError> {
        self.put_back(slot)?;
        // SAFETY: the slot lies there, is this value's own, and is lent once at a time.
        Ok(unsafe { SliceMut::new(self.address(slot), self.geometry.len) })
    }

    /// Puts what was leased back on the device, behind what is on the stream. *Errors*: of the driver.
    pub fn settle(&mut self) -> Result<(), DriverError> {
        (0..self.mirrors.len()).try_for_each(|slot| self.put_back(slot))
    }

    fn put_back(&mut self, slot: usize) -> Result<(), DriverError> {
        let (to, bytes) = (self.address(slot), self.geometry.len * size_of::<f32>());
        let mirror = &mut self.mirrors[slot];
        if let (true, Some(host)) = (mirror.leased, &mirror.host) {
            // SAFETY: both are our own. Before the host touches the mirror again, a lease waits for the stream.
            unsafe { self.stream.copy(host.address(), to, bytes)? };
        }
        mirror.leased = false;
        Ok(())
    }

    /// Makes the mirror hold what the slot holds. *Blocks* for the stream.
    fn fetch(&mut self, slot: usize) -> Result<(), DriverError> {
        let (from, len) = (self.address(slot), self.geometry.len);
        let mirror = &mut self.mirrors[slot];
        let host = match &mut mirror.host {
            Some(host) => host,
            none => none.insert(Pinned::new(self.stream.gpu().context(), len)?),
        };
        if !mirror.leased {
            // SAFETY: both are our own, and the stream is waited for.
            unsafe { self.stream.copy(from, host.address(), len * size_of::<f32>())? };
            self.stream.finish()?;
            mirror.leased = true;
        }
        Ok(())
    }
}

impl Arena for GpuSlots {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// *Panics* with the driver's words if the device has failed.
    fn lease(&mut self, slot: usize) -> &mut [f32] {
        self.fetch(slot).unwrap_or_else(|error| panic!("{error}"));
        self.mirrors[slot].host.as_mut().expect("fetched just now").write()
    }

    /// *Panics* as [`GpuSlots::lease`].
    fn lease_pair(&mut self, left: usize, right: usize) -> (&mut [f32], &mut [f32]) {
        for slot in [left, right] {
            self.fetch(slot).unwrap_or_else(|error| panic!("{error}"));
        }
        let pair = self.mirrors.get_disjoint_mut([left, right]).expect("a pair is two slots");
        pair.map(|mirror| mirror.host.as_mut().expect("fetched just now").write()).into()
    }

    fn on_device(&mut self, slot: usize) -> Option<u64> {
        self.put_back(slot).unwrap_or_else(|error| panic!("{error}"));
        Some(self.address(slot))
    }
}
