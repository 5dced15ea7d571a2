//! The seam for slots on a device: what is copied and added there beside what collectives do, behind one another and in front of the next one.
//!
//! It does not know what the floats are, nor what else works on the device.

use crate::CollectiveError;
use dtrain_types::DeviceMemory;
use std::ops::Range;

/// Slot 0 of a backend, in the memory of a device.
///
/// Whatever is asked for is done there behind what was asked for before, and behind all that those who fill slots and such memory were given
/// to do; nobody waits for it. *Errors* of all functions: of the device, or the backend is dead. *Panics* between `start` and `finish`, beyond the end of
/// anything, and if memory is not of this device.
pub trait DeviceSlot {
    /// Zeroed memory for so many floats, which lives as long as the backend at least. *Errors*: also if there is not so much.
    fn memory(&mut self, floats: usize) -> Result<DeviceMemory, CollectiveError>;

    /// Copies a part of memory into the slot, from element `at` on.
    fn put(&mut self, from: &DeviceMemory, part: Range<usize>, at: usize) -> Result<(), CollectiveError>;

    /// Copies a part of the slot into memory, from element `at` on.
    fn take(&mut self, part: Range<usize>, to: &DeviceMemory, at: usize) -> Result<(), CollectiveError>;

    /// Adds so many floats to others, which do not overlap: `into += from`, and the sum is not rounded further.
    fn add(&mut self, into: Spot<'_>, from: Spot<'_>, floats: usize) -> Result<(), CollectiveError>;

    /// What those who fill slots and memory are given to do from now on comes behind all that was asked for.
    fn hand_over(&mut self) -> Result<(), CollectiveError>;
}

/// Where floats begin.
#[derive(Clone, Copy, Debug)]
pub enum Spot<'a> {
    /// At this element of the slot.
    Slot(usize),
    /// At this element of memory.
    Memory(&'a DeviceMemory, usize),
}
