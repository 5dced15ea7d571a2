//! The addition of the reduction tree between ranks, over lists that lie anywhere on the device.
//!
//! This file does not know ranks: it is given addresses and an order.

use super::{Ids, size};
use crate::kernels;
use crate::launch::{KernelLaunch, Queue};
use dtrain_collective::{SumOrder, SumStep};

/// The most values that the kernel has on its stack.
const DEPTH: usize = 32;

/// Where leaves and targets lie, and in which order leaves are added: words of the device's memory.
#[derive(Clone, Copy, Debug)]
pub struct TreeSum<'a> {
    /// From [`table`].
    pub leaves: Ids<'a>,
    /// From [`program`].
    pub steps: Ids<'a>,
    /// From [`table`]; each gets the sum.
    pub targets: Ids<'a>,
}

/// Addresses as the kernel reads them.
#[must_use]
pub fn table(addresses: &[u64]) -> Vec<u32> {
    addresses.iter().flat_map(|address| [*address as u32, (*address >> 32) as u32]).collect()
}

/// An order as the kernel reads it; empty for a sum of nothing.
///
/// *Panics* on an order with more than 32 values at once, which no tree with less than 2^31 leaves has.
#[must_use]
pub fn program(order: &SumOrder) -> Vec<u32> {
    assert!(order.depth() <= DEPTH, "a sum with {} values at once", order.depth());
    let word = |what: u32, leaf: usize| (size(leaf) << 2) | what;
    let steps = order.steps().iter().flat_map(|step| match *step {
        SumStep::Load(leaf) => [Some(word(0, leaf)), None],
        SumStep::Pair(left, right) => [Some(word(0, left)), Some(word(1, right))],
        SumStep::AddLeaf(leaf) => [Some(word(1, leaf)), None],
        SumStep::Merge => [Some(word(2, 0)), None],
    });
    steps.flatten().collect()
}

/// `targets = leaves`, added in the order of the steps, for `len` elements each. A target may be a leaf.
///
/// # Safety
/// At each address of the tables lie `len` elements of this device; until the queue has done this they live, nobody else
/// touches targets, and nobody else writes leaves. The steps are those of an order over the leaves.
pub unsafe fn sum_tree(queue: &impl Queue, sum: &TreeSum<'_>, len: usize) {
    if len > 0 && sum.steps.len() > 0 {
        let arguments = [
            sum.leaves.into(),
            sum.steps.into(),
            sum.targets.into(),
            size(sum.steps.len()).into(),
            size(sum.targets.len() / 2).into(),
            (len as u64).into(),
        ];
        queue.launch(&KernelLaunch::over(&kernels::SUM_TREE, len, arguments));
    }
}
