//! Where gradients live: numbered slots of equal length, lent for the compute phase only.
//!
//! A lease borrows the arena mutably, so it cannot outlive it into a collective, where peers read and write the
//! same memory. This file does not know what is written into a slot.

use crate::Geometry;
use dtrain_types::DeviceMemory;
use std::ops::Range;

/// Numbered gradient buffers; see [`Geometry`] for which is which.
pub trait Arena: Send {
    /// How many slots there are and how long they are.
    fn geometry(&self) -> Geometry;

    /// Lends one slot. *Shape* (`[geometry.len]`). *Panics* if there is no such slot.
    fn lease(&mut self, slot: usize) -> &mut [f32];

    /// Lends two slots at once, for a merge. *Panics* if they are the same or there is no such slot.
    fn lease_pair(&mut self, left: usize, right: usize) -> (&mut [f32], &mut [f32]);

    /// Lends part of one slot: all that may be leased while the rest is offered. *Panics* if there is no such part.
    fn lease_part(&mut self, slot: usize, part: Range<usize>) -> &mut [f32] {
        &mut self.lease(slot)[part]
    }

    /// Lends a part of two slots at once. *Panics* as [`Arena::lease_pair`], and if there is no such part.
    fn lease_pair_part(&mut self, left: usize, right: usize, part: Range<usize>) -> (&mut [f32], &mut [f32]) {
        let (left, right) = self.lease_pair(left, right);
        (&mut left[part.clone()], &mut right[part])
    }

    /// A slot in the memory of a device that the host cannot reach, for who works on that device; `None` where the slot
    /// itself is leased. What such an arena leases is a copy of the slot: fetched with the lease, and put back when the slot
    /// is asked for here or a collective starts. *Panics* if there is no such slot.
    fn on_device(&mut self, _slot: usize) -> Option<DeviceMemory> {
        None
    }
}

/// The slots of one rank as a machine sees them in a collective: part by part.
///
/// A part that is not borrowed may meanwhile be read by others, for instance by the peers of a host that fetch what has
/// arrived. A machine reads and writes nothing but the parts that it asks for.
pub trait Slots {
    /// How many slots there are and how long they are.
    fn geometry(&self) -> Geometry;

    /// Part of a slot, to read. *Panics* if there is no such part.
    fn read(&self, slot: usize, part: Range<usize>) -> &[f32];

    /// Part of a slot, to write. *Panics* if there is no such part.
    fn write(&mut self, slot: usize, part: Range<usize>) -> &mut [f32];
}

/// Floats in a cache line: slots start on one.
const LINE: usize = 16;

/// An arena in this process's own memory.
#[derive(Debug)]
pub struct HostArena {
    geometry: Geometry,
    memory: Vec<f32>,
    /// Where the first cache line starts in `memory`.
    first: usize,
    stride: usize,
}

impl HostArena {
    /// Allocates zeroed slots.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let stride = geometry.len.next_multiple_of(LINE);
        let memory = vec![0.0f32; stride * geometry.slots() + LINE];
        let first = memory.as_ptr().align_offset(LINE * size_of::<f32>());
        // `align_offset` may decline to answer; alignment is for speed only, so any start is right.
        let first = if first < LINE { first } else { 0 };
        Self { geometry, memory, first, stride }
    }

    /// Reads one slot. *Panics* if there is no such slot.
    #[must_use]
    pub fn slot(&self, slot: usize) -> &[f32] {
        assert!(slot < self.geometry.slots(), "slot {slot} of {}", self.geometry.slots());
        &self.memory[self.first + slot * self.stride..][..self.geometry.len]
    }
}

impl Arena for HostArena {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn lease(&mut self, slot: usize) -> &mut [f32] {
        assert!(slot < self.geometry.slots(), "slot {slot} of {}", self.geometry.slots());
        &mut self.memory[self.first + slot * self.stride..][..self.geometry.len]
    }

    fn lease_pair(&mut self, left: usize, right: usize) -> (&mut [f32], &mut [f32]) {
        let (slots, len) = (self.geometry.slots(), self.geometry.len);
        assert!(left != right && left < slots && right < slots, "slots {left} and {right} of {slots}");
        let (low, high) = (left.min(right), left.max(right));
        let (a, b) = self.memory[self.first..].split_at_mut(high * self.stride);
        let (a, b) = (&mut a[low * self.stride..][..len], &mut b[..len]);
        if left < right { (a, b) } else { (b, a) }
    }
}

impl Slots for HostArena {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, slot: usize, part: Range<usize>) -> &[f32] {
        &self.slot(slot)[part]
    }

    fn write(&mut self, slot: usize, part: Range<usize>) -> &mut [f32] {
        &mut self.lease(slot)[part]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_apart_and_a_pair_comes_in_the_order_asked_for() {
        let mut arena = HostArena::new(Geometry { len: 17, root_slots: 2, scratch_slots: 1 });
        for slot in 0..3 {
            arena.lease(slot).fill(slot as f32);
        }
        assert!((0..3).all(|slot| arena.slot(slot).iter().all(|x| *x == slot as f32)));
        let (left, right) = arena.lease_pair(2, 0);
        assert_eq!((left[16], right[16]), (2.0, 0.0));
    }

    #[test]
    fn an_arena_of_empty_slots_lends_empty_slices() {
        let mut arena = HostArena::new(Geometry { len: 0, root_slots: 1, scratch_slots: 1 });
        let (left, right) = arena.lease_pair(0, 1);
        assert!(left.is_empty() && right.is_empty());
    }
}
