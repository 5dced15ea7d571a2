//! A sum of lists in a given order, planned once and run in every step.

use crate::driver::{Buffer, DriverError, Stream};
use crate::memory::Slice;
use crate::operations::{TreeSum, program, sum_tree, table};
use dtrain_collective::SumOrder;

/// What the kernel reads: leaves, steps and the target, one behind the other.
#[derive(Debug)]
pub struct PlannedSum {
    words: Buffer<u32>,
    leaves: usize,
    steps: usize,
    /// Floats of each list.
    floats: usize,
}

impl PlannedSum {
    /// Plans the sum of `leaves` to a target, which may be a leaf. *Blocks* until the plan is on the device.
    ///
    /// *Order*: for every element that of `order`. *Errors*: of the driver.
    pub fn new(
        stream: &Stream,
        order: &SumOrder,
        leaves: &[u64],
        target: u64,
        floats: usize,
    ) -> Result<Self, DriverError> {
        let parts = [table(leaves), program(order), table(&[target])];
        let (leaves, steps) = (parts[0].len(), parts[1].len());
        let all = parts.concat();
        let context = stream.gpu().context();
        let (words, mut way) =
            (Buffer::new(context, all.len())?, crate::driver::Pinned::new(context, all.len())?);
        way.write().copy_from_slice(&all);
        // SAFETY: both are our own, and the stream is waited for.
        unsafe { stream.copy(way.address(), words.address(), size_of_val(all.as_slice()))? };
        stream.finish()?;
        Ok(Self { words, leaves, steps, floats })
    }

    /// Puts the sum on a stream.
    ///
    /// # Safety
    /// As [`sum_tree`], for the addresses that it was planned with.
    pub unsafe fn run(&self, stream: &Stream) {
        let all: Slice<'_, u32> = self.words.read();
        let behind = self.leaves + self.steps;
        let sum = TreeSum {
            leaves: all.part(0..self.leaves),
            steps: all.part(self.leaves..behind),
            targets: all.part(behind..behind + 2),
        };
        // SAFETY: the caller's promise; the steps are those of an order over the leaves.
        unsafe { sum_tree(stream, &sum, self.floats) };
    }
}
