//! What others do on slot 0 between collectives: copies and additions on the stream of the backend, with memory that it lends.
//!
//! It does not know what the floats are.

use super::{Held, NcclBackend};
use crate::device::{Address, Device, DeviceArena, DeviceError};
use dtrain_collective::{Arena, CollectiveError, DeviceSlot, Spot};
use dtrain_types::DeviceMemory;
use std::ops::Range;

impl<D: Device> NcclBackend<D> {
    /// Does something on the stream between collectives, behind what fills the slots.
    fn between<T>(
        &mut self,
        work: impl FnOnce(&mut Held<D>) -> Result<T, DeviceError>,
    ) -> Result<T, CollectiveError> {
        self.alive()?;
        self.progress.assert_idle();
        self.settle()?;
        let done = work(self.held.as_mut().expect("only the end takes it")).map_err(CollectiveError::from);
        self.or_die(done)
    }
}

impl<D: Device> Held<D> {
    /// Where so many floats of memory lie that was lent. *Panics* beyond its end, or if it is of another device.
    fn floats(&self, memory: &DeviceMemory, from: usize, floats: usize) -> Address {
        let (address, len) = self.device.reach(memory).expect("what was lent is memory of this device");
        assert!(from + floats <= len, "elements {from} to {} of {len}", from + floats);
        address.float(from)
    }

    /// The same of slot 0.
    fn in_slot(&self, from: usize, floats: usize) -> Address {
        let len = self.arena.geometry().len;
        assert!(from + floats <= len, "elements {from} to {} of a slot of {len}", from + floats);
        self.arena.address(0).float(from)
    }

    fn spot(&self, spot: Spot<'_>, floats: usize) -> Address {
        match spot {
            Spot::Slot(at) => self.in_slot(at, floats),
            Spot::Memory(memory, at) => self.floats(memory, at, floats),
        }
    }
}

impl<D: Device> DeviceSlot for NcclBackend<D> {
    fn memory(&mut self, floats: usize) -> Result<DeviceMemory, CollectiveError> {
        self.alive()?;
        let held = self.held.as_mut().expect("only the end takes it");
        let memory = held.device.share(floats)?;
        // The stream may work on it as long as there is one.
        held.lent.push(memory.clone());
        Ok(memory)
    }

    fn put(&mut self, from: &DeviceMemory, part: Range<usize>, at: usize) -> Result<(), CollectiveError> {
        self.between(|held| {
            let (from, to) = (held.floats(from, part.start, part.len()), held.in_slot(at, part.len()));
            // SAFETY: both lie inside of what lives until the stream is at rest, and memory is apart from the slots.
            unsafe { held.device.copy(from, to, part.len() * size_of::<f32>()) }
        })
    }

    fn take(&mut self, part: Range<usize>, to: &DeviceMemory, at: usize) -> Result<(), CollectiveError> {
        self.between(|held| {
            let (from, to) = (held.in_slot(part.start, part.len()), held.floats(to, at, part.len()));
            // SAFETY: as above.
            unsafe { held.device.copy(from, to, part.len() * size_of::<f32>()) }
        })
    }

    fn add(&mut self, into: Spot<'_>, from: Spot<'_>, floats: usize) -> Result<(), CollectiveError> {
        self.between(|held| {
            let (from, into) = (held.spot(from, floats), held.spot(into, floats));
            // SAFETY: as above; by the caller's word they do not overlap.
            unsafe { held.device.add_to(from, into, floats) }
        })
    }

    fn hand_over(&mut self) -> Result<(), CollectiveError> {
        self.alive()?;
        let handed = self.held.as_mut().expect("only the end takes it").arena.hand_over();
        self.or_die(handed.map_err(CollectiveError::from))
    }
}
