//! Sums of micro-batches that are added as they come, some that follow one another at once and part by part, along the reduction tree.
//!
//! As `Merger` numbers them, but those that come at once are added up where they lie first: what waits for others between two rounds needs a
//! buffer, and nothing else does. Of each part the micro-batches come in their order; which parts there are, and in which order they come, does not
//! matter. This file does not know what is added, nor whose it is.

use crate::memory::{Memory, Site};
use dtrain_collective::{CollectiveError, DeviceSlot, Spot, add_to};
use dtrain_engine::Flat;
use dtrain_types::{DeviceMemory, Wire};
use std::convert::Infallible;
use std::ops::Range;

/// The subtrees of a step that wait for one another.
#[derive(Clone, Debug, Default)]
pub struct Folding {
    wire: Wire,
    buffers: Buffers,
    /// Where the subtrees lie that are not added up yet, from left to right.
    stack: Vec<Subtree>,
}

/// Where sums wait; the first buffer is lent.
#[derive(Clone, Debug)]
enum Buffers {
    Home(Vec<Flat>),
    There(Vec<Option<DeviceMemory>>),
}

impl Default for Buffers {
    fn default() -> Self {
        Self::Home(Vec::new())
    }
}

/// Where a subtree lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subtree {
    /// In a buffer.
    Waiting(usize),
    /// Among those that came now, in the place of its first micro-batch.
    Fresh(usize),
}

/// How many buffers a step of up to so many micro-batches needs, of which so many come at once.
#[must_use]
pub fn buffers(micro_batches: u32, at_once: u32) -> usize {
    let waits = |count: u32| count.count_ones() as usize;
    let rounds = (1..=micro_batches / at_once).map(|round| waits(round * at_once));
    // The last round may be a short one, of any length.
    rounds.max().unwrap_or(1).max(1)
}

/// Goes through the additions of the next micro-batches; what is left lies in `stack`, and belongs in the buffer of its place.
fn fold<E>(
    stack: &mut Vec<Subtree>,
    Fresh { first, count, is_last, .. }: Fresh,
    mut merge: impl FnMut(Subtree, Subtree) -> Result<(), E>,
) -> Result<(), E> {
    stack.clear();
    stack.extend((0..first.count_ones() as usize).map(Subtree::Waiting));
    for (at, micro_batch) in (first..).take(count).enumerate() {
        stack.push(Subtree::Fresh(at));
        let completes =
            if is_last && at + 1 == count { stack.len() - 1 } else { micro_batch.trailing_ones() as usize };
        for _ in 0..completes {
            let right = stack.pop().expect("a subtree to add");
            merge(*stack.last().expect("a subtree to add it to"), right)?;
        }
    }
    Ok(())
}

impl Folding {
    /// Room in the host's memory for sums of so many elements of steps of up to so many micro-batches, of which so many come at once, each of which
    /// is rounded so; the first buffer is still to be [given](Folding::give).
    #[must_use]
    pub fn new(elements: usize, (micro_batches, at_once): (u32, u32), wire: Wire) -> Self {
        let folding = Self::at(&mut Site::Home, elements, (micro_batches, at_once), wire);
        folding.expect("the host has memory, or ends the process")
    }

    /// The same on this site. *Errors*: it has no room.
    pub(crate) fn at(
        site: &mut Site<'_>,
        elements: usize,
        (micro_batches, at_once): (u32, u32),
        wire: Wire,
    ) -> Result<Self, CollectiveError> {
        // What is over after the last round is added up there.
        let waiting = (0..=micro_batches).map(|count| count.count_ones() as usize).max().unwrap_or(0);
        let others = 1..buffers(micro_batches, at_once);
        let buffers = match site {
            Site::Home => {
                let others = others.map(|_| Flat::zeros(elements));
                Buffers::Home(std::iter::once(Flat::default()).chain(others).collect())
            }
            Site::There(slot) => {
                let others = others.map(|_| slot.memory(elements).map(Some));
                Buffers::There(std::iter::once(Ok(None)).chain(others).collect::<Result<_, _>>()?)
            }
        };
        Ok(Self { wire, buffers, stack: Vec::with_capacity(waiting + 2) })
    }

    /// Gives it the first buffer, in which the sum will be. *Panics* if it is of another site.
    pub fn give(&mut self, buffer: Memory) {
        match (&mut self.buffers, buffer) {
            (Buffers::Home(buffers), Memory::Home(buffer)) => buffers[0] = buffer,
            (Buffers::There(buffers), Memory::There(buffer)) => buffers[0] = Some(buffer),
            _ => panic!("sums wait on one site"),
        }
    }

    /// Takes the sum. *Panics* if nothing was given.
    pub fn take(&mut self) -> Memory {
        match &mut self.buffers {
            Buffers::Home(buffers) => Memory::Home(std::mem::take(&mut buffers[0])),
            Buffers::There(buffers) => Memory::There(buffers[0].take().expect(GIVEN)),
        }
    }

    /// Adds a part of the next micro-batches, from `first` on and up to the last one of the step or not: those elements of each of them, whose
    /// gradients lie one behind the other in `fresh`, each from an element `from` on; what lies there is spoilt. They are rounded as sums are.
    ///
    /// *Panics* if sums wait elsewhere.
    pub fn add(&mut self, of: Fresh, part: Range<usize>, from: usize, fresh: &mut [f32]) {
        let Self { wire, buffers: Buffers::Home(buffers), stack } = self else { panic!("{ELSEWHERE}") };
        let len = of.len;
        let place = |subtree: usize| subtree * len + from..subtree * len + from + part.len();
        let merged = fold(stack, of, |left, right| {
            match (left, right) {
                (Subtree::Waiting(left), Subtree::Fresh(right)) => {
                    add_to(*wire, &mut buffers[left][part.clone()], &fresh[place(right)]);
                }
                (Subtree::Fresh(left), Subtree::Fresh(right)) => {
                    let (into, other) = fresh.split_at_mut(right * len);
                    add_to(*wire, &mut into[place(left)], &other[from..from + part.len()]);
                }
                (Subtree::Waiting(left), Subtree::Waiting(right)) => {
                    let (into, other) = buffers.split_at_mut(right);
                    add_to(*wire, &mut into[left][part.clone()], &other[0][part.clone()]);
                }
                (Subtree::Fresh(_), Subtree::Waiting(_)) => unreachable!("what waits came before"),
            }
            Ok::<(), Infallible>(())
        });
        let Ok(()) = merged;
        for (buffer, subtree) in stack.iter().enumerate() {
            if let Subtree::Fresh(at) = subtree {
                buffers[buffer][part.clone()].copy_from_slice(&fresh[place(*at)]);
            }
        }
    }

    /// The same on a device, of gradients that lie in its slot. Nothing is rounded.
    ///
    /// *Errors*: of the device. *Panics* if sums wait elsewhere, or are to be rounded.
    pub fn add_there(
        &mut self,
        of: Fresh,
        part: Range<usize>,
        from: usize,
        slot: &mut dyn DeviceSlot,
    ) -> Result<(), CollectiveError> {
        let Self { wire, buffers: Buffers::There(buffers), stack } = self else { panic!("{ELSEWHERE}") };
        assert_eq!(*wire, Wire::F32, "a device rounds no sums");
        let buffer = |number: usize| buffers[number].as_ref().expect(GIVEN);
        let spot = |subtree: Subtree| match subtree {
            Subtree::Waiting(number) => Spot::Memory(buffer(number), part.start),
            Subtree::Fresh(at) => Spot::Slot(at * of.len + from),
        };
        fold(stack, of, |left, right| slot.add(spot(left), spot(right), part.len()))?;
        for (number, subtree) in stack.iter().enumerate() {
            if let Subtree::Fresh(at) = subtree {
                let first = at * of.len + from;
                slot.take(first..first + part.len(), buffer(number), part.start)?;
            }
        }
        Ok(())
    }
}

/// Why a buffer is there.
const GIVEN: &str = "the first buffer is given when a step begins";
/// Why sums wait where they are looked for.
const ELSEWHERE: &str = "sums wait where windows come";

/// Micro-batches that come at once.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// The first of them.
    pub first: u32,
    /// How many.
    pub count: usize,
    /// Elements from one to the next.
    pub len: usize,
    /// Whether the step ends with them.
    pub is_last: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::Merger;

    fn leaf(micro_batch: u32, element: usize) -> f32 {
        1.0 / (3.0 + f64::from(micro_batch) + element as f64) as f32
    }

    #[test]
    fn sums_that_are_added_round_by_round_and_part_by_part_are_those_of_the_tree() {
        for (count, at_once) in (1..=40).flat_map(|count| (1..=9).map(move |at_once| (count, at_once))) {
            let mut folding = Folding::new(3, (count, at_once), Wire::F32);
            folding.give(Memory::Home(Flat::zeros(3)));
            let mut merger = Merger::default();
            let mut pending = vec![[0.0f32; 3]; Merger::buffers(count)];
            let add = |pending: &mut Vec<[f32; 3]>, left: usize, right: usize| {
                pending[left] = std::array::from_fn(|at| pending[left][at] + pending[right][at]);
            };
            for first in (0..count).step_by(at_once as usize) {
                let now = at_once.min(count - first);
                // Of each there is an element more in front of what is added.
                let all = (first..first + now).flat_map(|m| [9.0, leaf(m, 0), leaf(m, 1), leaf(m, 2)]);
                let mut fresh: Vec<f32> = all.collect();
                let of = Fresh { first, count: now as usize, len: 4, is_last: first + now == count };
                for part in [2..3, 0..2] {
                    folding.add(of, part.clone(), 1 + part.start, &mut fresh);
                }
                for m in first..first + now {
                    pending[merger.next_buffer()] = std::array::from_fn(|element| leaf(m, element));
                    merger.push(|left, right| add(&mut pending, left, right));
                }
            }
            merger.finish(|left, right| add(&mut pending, left, right));
            assert_eq!(folding.take().home()[..], pending[0], "{count} micro-batches, {at_once} at once");
        }
        assert_eq!(
            [(8, 1), (8, 2), (8, 8), (8, 16), (8, 3), (1, 4)].map(|(m, n)| buffers(m, n)),
            [3, 2, 1, 1, 2, 1]
        );
    }

    /// A slot that is a list, and memory that are lists.
    struct Lists(Vec<f32>);

    type List = std::sync::Mutex<Vec<f32>>;

    /// Why there is memory.
    const ROOM: &str = "a list has room";

    fn list(memory: &DeviceMemory) -> std::sync::MutexGuard<'_, Vec<f32>> {
        memory.of::<List>().expect("a list").lock().expect("no holder panics")
    }

    impl DeviceSlot for Lists {
        fn memory(&mut self, floats: usize) -> Result<DeviceMemory, CollectiveError> {
            Ok(DeviceMemory::new(List::new(vec![0.0; floats])))
        }

        fn put(&mut self, from: &DeviceMemory, part: Range<usize>, at: usize) -> Result<(), CollectiveError> {
            self.0[at..at + part.len()].copy_from_slice(&list(from)[part]);
            Ok(())
        }

        fn take(&mut self, part: Range<usize>, to: &DeviceMemory, at: usize) -> Result<(), CollectiveError> {
            list(to)[at..at + part.len()].copy_from_slice(&self.0[part]);
            Ok(())
        }

        fn add(&mut self, into: Spot<'_>, from: Spot<'_>, floats: usize) -> Result<(), CollectiveError> {
            let read = |spot: Spot<'_>, at: usize| match spot {
                Spot::Slot(first) => self.0[first + at],
                Spot::Memory(memory, first) => list(memory)[first + at],
            };
            let sums: Vec<f32> = (0..floats).map(|at| read(into, at) + read(from, at)).collect();
            match into {
                Spot::Slot(first) => self.0[first..first + floats].copy_from_slice(&sums),
                Spot::Memory(memory, first) => list(memory)[first..first + floats].copy_from_slice(&sums),
            }
            Ok(())
        }

        fn hand_over(&mut self) -> Result<(), CollectiveError> {
            Ok(())
        }
    }

    #[test]
    fn sums_on_a_device_have_the_bits_of_those_of_the_host() {
        for (count, at_once) in (1..=24).flat_map(|count| (1..=5).map(move |at_once| (count, at_once))) {
            let mut slot = Lists(vec![0.0; 4 * at_once as usize]);
            let mut home = Folding::new(3, (count, at_once), Wire::F32);
            home.give(Memory::Home(Flat::zeros(3)));
            let there = Folding::at(&mut Site::There(&mut slot), 3, (count, at_once), Wire::F32);
            let mut there = there.expect(ROOM);
            there.give(Memory::There(slot.memory(3).expect(ROOM)));
            for first in (0..count).step_by(at_once as usize) {
                let now = at_once.min(count - first);
                let all = (first..first + now).flat_map(|m| [9.0, leaf(m, 0), leaf(m, 1), leaf(m, 2)]);
                let mut fresh: Vec<f32> = all.collect();
                slot.0[..fresh.len()].copy_from_slice(&fresh);
                let of = Fresh { first, count: now as usize, len: 4, is_last: first + now == count };
                for part in [2..3, 0..2] {
                    home.add(of, part.clone(), 1 + part.start, &mut fresh);
                    there.add_there(of, part.clone(), 1 + part.start, &mut slot).expect("lists can be added");
                }
            }
            let Memory::There(sum) = there.take() else { panic!("it was given there") };
            assert_eq!(home.take().home()[..], list(&sum)[..], "{count} micro-batches, {at_once} at once");
        }
    }
}
