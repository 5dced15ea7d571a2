//! The gradient buffers of one rank on a GPU.
//!
//! The host cannot reach them. What it leases is a copy: fetched when it is leased, as much as is leased, put back when the device is to work on
//! the slot again ([`GpuSlots::settle`]). Training does not lease; checks, copies of state and tests do.
//!
//! Slots may be filled on another stream than that of the collectives ([`GpuSlots::filled_on`]): whatever is done here is then
//! behind what that stream was given, and what was put back is there before that stream goes on.

use crate::driver::{Buffer, DriverError, Event, Pinned, Stream};
use dtrain_collective::{Arena, Geometry};
use dtrain_types::DeviceMemory;
use std::ops::Range;
use std::sync::Arc;

/// What slots start on a multiple of. *Units*: floats.
const LINE: usize = 64;

/// Floats from one slot to the next.
fn stride(geometry: Geometry) -> usize {
    geometry.len.next_multiple_of(LINE).max(LINE)
}

/// Numbered gradient buffers on a GPU.
#[derive(Debug)]
pub struct GpuSlots {
    geometry: Geometry,
    mirrors: Vec<Mirror>,
    /// Shared with who was lent a slot ([`SlotMemory`]).
    memory: Arc<Buffer<f32>>,
    stream: Arc<Stream>,
    /// The stream that fills them, where that is another one, and a mark to put there.
    filled_on: Option<(Arc<Stream>, Event)>,
}

/// A slot, as an arena lends it to a device ([`Arena::on_device`]), or memory beside it.
#[derive(Debug)]
pub struct SlotMemory {
    /// What it lies in.
    pub memory: Arc<Buffer<f32>>,
    /// Where.
    pub elements: Range<usize>,
}

/// A slot on the host.
#[derive(Debug, Default)]
struct Mirror {
    host: Option<Pinned<f32>>,
    /// What was leased: what the copy holds of it is what the slot should hold.
    leased: Option<Range<usize>>,
}

impl GpuSlots {
    /// Zeroed slots in one allocation. *Errors*: of the driver.
    pub fn new(stream: &Arc<Stream>, geometry: Geometry) -> Result<Self, DriverError> {
        let floats = stride(geometry) * geometry.slots();
        let memory = Arc::new(Buffer::new(stream.gpu().context(), floats)?);
        // SAFETY: it is our own memory, which outlives the stream's work.
        unsafe { stream.fill(memory.address(), floats, 0)? };
        stream.finish()?;
        let mirrors = (0..geometry.slots()).map(|_| Mirror::default()).collect();
        Ok(Self { geometry, mirrors, memory, stream: stream.clone(), filled_on: None })
    }

    /// The same, filled on this stream. *Errors*: of the driver.
    pub fn filled_on(mut self, stream: &Arc<Stream>) -> Result<Self, DriverError> {
        let mark = Event::new(stream.gpu().context())?;
        self.filled_on = Some((stream.clone(), mark));
        Ok(self)
    }

    /// What is put on the own stream from now on comes behind all that the other one was given.
    fn follow(&self) -> Result<(), DriverError> {
        let Some((other, mark)) = &self.filled_on else { return Ok(()) };
        other.record(mark)?;
        self.stream.wait_for(mark)
    }

    /// Where a slot begins on the device. *Panics* if there is no such slot.
    #[must_use]
    pub fn address(&self, slot: usize) -> u64 {
        assert!(slot < self.geometry.slots(), "slot {slot} of {}", self.geometry.slots());
        self.memory.address() + (slot * stride(self.geometry) * size_of::<f32>()) as u64
    }

    /// Puts what was leased back on the device. What is put on the stream afterwards comes behind all that fills the slots.
    /// *Errors*: of the driver.
    pub fn settle(&mut self) -> Result<(), DriverError> {
        self.follow()?;
        (0..self.mirrors.len()).try_for_each(|slot| self.put_back(slot))
    }

    /// What the other stream is given from now on comes behind all that is on the own one. *Errors*: of the driver.
    pub fn lead(&self) -> Result<(), DriverError> {
        let Some((other, mark)) = &self.filled_on else { return Ok(()) };
        self.stream.record(mark)?;
        other.wait_for(mark)
    }

    fn put_back(&mut self, slot: usize) -> Result<(), DriverError> {
        let to = self.address(slot);
        let mirror = &mut self.mirrors[slot];
        if let (Some(leased), Some(host)) = (mirror.leased.take(), &mirror.host) {
            let [at, bytes] = [leased.start, leased.len()].map(|floats| floats * size_of::<f32>());
            // SAFETY: both are our own. Before the host touches the mirror again, a lease waits for the stream.
            unsafe { self.stream.copy(host.address() + at as u64, to + at as u64, bytes)? };
        }
        Ok(())
    }

    /// Makes the mirror hold what the slot holds of a part. *Blocks* for the stream.
    fn fetch(&mut self, slot: usize, part: Range<usize>) -> Result<(), DriverError> {
        let (from, len) = (self.address(slot), self.geometry.len);
        let mirror = &mut self.mirrors[slot];
        let host = match &mut mirror.host {
            Some(host) => host,
            none => none.insert(Pinned::new(self.stream.gpu().context(), len)?),
        };
        // Neighbours of what is leased already are leased with it, and what lies between.
        let held = mirror.leased.clone().unwrap_or(part.start..part.start);
        let all = part.start.min(held.start)..part.end.max(held.end);
        let missing = [all.start..held.start, held.end..all.end];
        if missing.iter().all(Range::is_empty) {
            return Ok(());
        }
        let to = host.address();
        mirror.leased = Some(all);
        self.follow()?;
        for run in missing {
            let [at, bytes] = [run.start, run.len()].map(|floats| floats * size_of::<f32>());
            // SAFETY: both are our own, and the stream is waited for.
            unsafe { self.stream.copy(from + at as u64, to + at as u64, bytes)? };
        }
        self.stream.finish()
    }

    /// Makes the slot what was leased of it, for work on any stream. *Blocks* for the stream if anything was.
    fn give(&mut self, slot: usize) -> Result<(), DriverError> {
        if self.mirrors[slot].leased.is_some() {
            self.follow()?;
            self.put_back(slot)?;
            self.stream.finish()?;
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
        self.lease_part(slot, 0..self.geometry.len)
    }

    /// *Panics* as [`GpuSlots::lease`].
    fn lease_part(&mut self, slot: usize, part: Range<usize>) -> &mut [f32] {
        self.fetch(slot, part.clone()).unwrap_or_else(|error| panic!("{error}"));
        &mut self.mirrors[slot].host.as_mut().expect("fetched just now").write()[part]
    }

    /// *Panics* as [`GpuSlots::lease`].
    fn lease_pair(&mut self, left: usize, right: usize) -> (&mut [f32], &mut [f32]) {
        for slot in [left, right] {
            self.fetch(slot, 0..self.geometry.len).unwrap_or_else(|error| panic!("{error}"));
        }
        let pair = self.mirrors.get_disjoint_mut([left, right]).expect("a pair is two slots");
        pair.map(|mirror| mirror.host.as_mut().expect("fetched just now").write()).into()
    }

    /// *Panics* as [`GpuSlots::lease`].
    fn on_device(&mut self, slot: usize) -> Option<DeviceMemory> {
        self.give(slot).unwrap_or_else(|error| panic!("{error}"));
        let first = slot * stride(self.geometry);
        let elements = first..first + self.geometry.len;
        Some(DeviceMemory::new(SlotMemory { memory: self.memory.clone(), elements }))
    }
}
