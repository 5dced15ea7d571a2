//! Sums of micro-batches that are added as they come, some that follow one another at once and part by part, along the reduction tree.
//!
//! As `Merger` numbers them, but those that come at once are added up where they lie first: what waits for others between two rounds needs a
//! buffer, and nothing else does. Of each part the micro-batches come in their order; which parts there are, and in which order they come, does not
//! matter. This file does not know what is added, nor whose it is.

use dtrain_collective::add_to;
use dtrain_engine::Flat;
use dtrain_types::Wire;
use std::ops::Range;

/// The subtrees of a step that wait for one another.
#[derive(Clone, Debug, Default)]
pub struct Folding {
    wire: Wire,
    buffers: Vec<Flat>,
    /// Where the subtrees lie that are not added up yet, from left to right.
    stack: Vec<Subtree>,
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

impl Folding {
    /// Room for sums of so many elements of steps of up to so many micro-batches, of which so many come at once, each of which is rounded so; the
    /// first buffer is still to be [given](Folding::give).
    #[must_use]
    pub fn new(elements: usize, (micro_batches, at_once): (u32, u32), wire: Wire) -> Self {
        // What is over after the last round is added up there.
        let waiting = (0..=micro_batches).map(|count| count.count_ones() as usize).max().unwrap_or(0);
        let others = (1..buffers(micro_batches, at_once)).map(|_| Flat::zeros(elements));
        let buffers = std::iter::once(Flat::default()).chain(others).collect();
        Self { wire, buffers, stack: Vec::with_capacity(waiting + 2) }
    }

    /// Gives it the first buffer, in which the sum will be.
    pub fn give(&mut self, buffer: Flat) {
        self.buffers[0] = buffer;
    }

    /// Takes the sum.
    pub fn take(&mut self) -> Flat {
        std::mem::take(&mut self.buffers[0])
    }

    /// Adds a part of the next micro-batches, from `first` on and up to the last one of the step or not: those elements of each of them, whose
    /// gradients lie one behind the other in `fresh`, each from an element `from` on; what lies there is spoilt. They are rounded as sums are.
    pub fn add(&mut self, of: Fresh, part: Range<usize>, from: usize, fresh: &mut [f32]) {
        let Fresh { first, count, len, is_last } = of;
        let Self { wire, buffers, stack } = self;
        stack.clear();
        stack.extend((0..first.count_ones() as usize).map(Subtree::Waiting));
        let place = |subtree: usize| subtree * len + from..subtree * len + from + part.len();
        let mut merge = |left: Subtree, right: Subtree, fresh: &mut [f32]| match (left, right) {
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
        };
        for (at, micro_batch) in (first..).take(count).enumerate() {
            stack.push(Subtree::Fresh(at));
            let completes = if is_last && at + 1 == count {
                stack.len() - 1
            } else {
                micro_batch.trailing_ones() as usize
            };
            for _ in 0..completes {
                let right = stack.pop().expect("a subtree to add");
                merge(*stack.last().expect("a subtree to add it to"), right, fresh);
            }
        }
        for (buffer, subtree) in stack.iter().enumerate() {
            if let Subtree::Fresh(at) = subtree {
                buffers[buffer][part.clone()]
                    .copy_from_slice(&fresh[*at * len + from..*at * len + from + part.len()]);
            }
        }
    }
}

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
            folding.give(Flat::zeros(3));
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
            assert_eq!(folding.take()[..], pending[0], "{count} micro-batches, {at_once} at once");
        }
        assert_eq!(
            [(8, 1), (8, 2), (8, 8), (8, 16), (8, 3), (1, 4)].map(|(m, n)| buffers(m, n)),
            [3, 2, 1, 1, 2, 1]
        );
    }
}
