//! Sums of micro-batches that are added as they come, part by part, along the reduction tree.
//!
//! As `Merger` numbers them, but a micro-batch that completes a subtree is added to it where it is: it needs no buffer of its own. Of each part the
//! micro-batches come in their order; which parts there are, and in which order they come, does not matter. This file does not know what is
//! added, nor whose it is.

use dtrain_collective::add_to;
use dtrain_engine::Flat;
use dtrain_types::Wire;
use std::ops::Range;

/// The subtrees of a step that wait for one another.
#[derive(Debug, Default)]
pub struct Folding {
    wire: Wire,
    buffers: Vec<Flat>,
}

/// How many buffers a step of up to so many micro-batches needs.
#[must_use]
pub fn buffers(micro_batches: u32) -> usize {
    (1..=micro_batches).map(|count| count.count_ones() as usize).max().unwrap_or(1)
}

impl Folding {
    /// Room for sums of so many elements of steps of up to so many micro-batches, each of which is rounded so; the first buffer is still to be
    /// [given](Folding::give).
    #[must_use]
    pub fn new(elements: usize, micro_batches: u32, wire: Wire) -> Self {
        let others = (1..buffers(micro_batches)).map(|_| Flat::zeros(elements));
        Self { wire, buffers: std::iter::once(Flat::default()).chain(others).collect() }
    }

    /// Gives it the first buffer, in which the sum will be.
    pub fn give(&mut self, buffer: Flat) {
        self.buffers[0] = buffer;
    }

    /// Takes the sum.
    pub fn take(&mut self) -> Flat {
        std::mem::take(&mut self.buffers[0])
    }

    /// Adds a part of a micro-batch, which is rounded as sums are.
    pub fn add(&mut self, micro_batch: u32, part: Range<usize>, values: &[f32]) {
        let waiting = micro_batch.count_ones() as usize;
        let completes = micro_batch.trailing_ones() as usize;
        if completes == 0 {
            return self.buffers[waiting][part].copy_from_slice(values);
        }
        add_to(self.wire, &mut self.buffers[waiting - 1][part.clone()], values);
        for left in (waiting - completes..waiting - 1).rev() {
            self.merge(left, part.clone());
        }
    }

    /// Adds up what waits after the last of so many micro-batches.
    pub fn finish(&mut self, micro_batches: u32) {
        let waiting = micro_batches.count_ones() as usize;
        for left in (0..waiting.saturating_sub(1)).rev() {
            let all = 0..self.buffers[left].len();
            self.merge(left, all);
        }
    }

    fn merge(&mut self, left: usize, part: Range<usize>) {
        let (into, from) = self.buffers.split_at_mut(left + 1);
        add_to(self.wire, &mut into[left][part.clone()], &from[0][part]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::Merger;

    fn leaf(micro_batch: u32, element: usize) -> f32 {
        1.0 / (3.0 + f64::from(micro_batch) + element as f64) as f32
    }

    #[test]
    fn sums_that_are_added_part_by_part_are_those_of_the_tree() {
        for count in 1..=40 {
            let mut folding = Folding::new(3, count, Wire::F32);
            folding.give(Flat::zeros(3));
            let mut merger = Merger::default();
            let mut pending = vec![[0.0f32; 3]; Merger::buffers(count)];
            let add = |pending: &mut Vec<[f32; 3]>, left: usize, right: usize| {
                pending[left] = std::array::from_fn(|at| pending[left][at] + pending[right][at]);
            };
            for m in 0..count {
                for part in [2..3, 0..2] {
                    let values: Vec<f32> = part.clone().map(|element| leaf(m, element)).collect();
                    folding.add(m, part, &values);
                }
                pending[merger.next_buffer()] = std::array::from_fn(|element| leaf(m, element));
                merger.push(|left, right| add(&mut pending, left, right));
            }
            merger.finish(|left, right| add(&mut pending, left, right));
            folding.finish(count);
            assert_eq!(folding.take()[..], pending[0], "{count} micro-batches");
        }
        assert_eq!([1, 2, 3, 4, 7, 8, 64].map(buffers), [1, 1, 2, 2, 3, 3, 6]);
    }
}
