//! Checks of the addition of the reduction tree.

use super::{Buffer, Extent, StandIn, numbers};
use dtrain_collective::{BLOCK, SumOrder, sum_block};
use dtrain_cuda::operations::{self, TreeSum, program, table};
use dtrain_types::{MicroRange, Wire, cut_evenly, roots};

/// Leaves of this step, cut between so many ranks: more than two values are on the stack at once.
const STEP: u32 = 13;

/// The host's bits, in targets that are leaves and in one that is none.
pub fn sum_tree(q: &StandIn, extent: Extent) {
    for &(world, len) in extent.of(2, &[(1, 100), (4, 0), (13, 1), (2, 1000), (5, 257)]) {
        let leaves: Vec<MicroRange> =
            cut_evenly(STEP, world).into_iter().flat_map(|range| roots(range, STEP)).collect();
        let order = SumOrder::tree(&leaves, STEP);
        // Magnitudes differ, so that the order of the sum shows.
        let values = |leaf: usize| -> Vec<f32> {
            let scale = 10f32.powi(leaf as i32 % 7 - 3);
            numbers(leaf as u32, len).iter().map(|v| v * scale).collect()
        };
        let lists: Vec<Vec<f32>> = (0..leaves.len()).map(values).collect();
        let lists_: Vec<Buffer<'_, f32>> = lists.iter().map(|list| Buffer::of(q, "leaf", list)).collect();
        let other = Buffer::empty(q, "target", len);
        let addresses: Vec<u64> = lists_.iter().map(|list| list.read().address()).collect();
        let targets = [lists_[0].write().address(), other.write().address()];
        let words = [table(&addresses), program(&order), table(&targets)];
        let [leaves, steps, targets] = words.each_ref().map(|words| Buffer::of(q, "words", words));
        let sum = TreeSum { leaves: leaves.read(), steps: steps.read(), targets: targets.read() };
        // SAFETY: all lists have `len` elements, and live until the end of this check.
        unsafe { operations::sum_tree(q, &sum, len) };
        let wanted = plain(&order, &lists, len);
        lists_[0].has_bits("sum_tree over a leaf", &wanted);
        other.has_bits("sum_tree", &wanted);
    }
}

/// The order of the CPU's collectives.
fn plain(order: &SumOrder, lists: &[Vec<f32>], len: usize) -> Vec<f32> {
    let (mut all, mut stack) = (Vec::new(), vec![0.0; order.depth() * BLOCK]);
    for start in (0..len).step_by(BLOCK) {
        let n = BLOCK.min(len - start);
        sum_block(order, Wire::F32, n, &mut stack, |leaf| &lists[leaf][start..start + n]);
        all.extend_from_slice(&stack[..n]);
    }
    all
}
