//! The add kernel: runs a [`SumOrder`] over `f32` slices, block by block, each block in one pass through the cache.
//!
//! Plain loops over equal slices, which the compiler turns into vector code. Additions are never reassociated or
//! fused, and each sum is rounded where it is made, so the bits are those of the scalar loop on every instruction set. It does
//! not know ranks or chunks.

use crate::{SumOrder, SumStep};
use dtrain_types::{Wire, to_bf16};

/// Floats in a block: 4 KiB, so that a stack of several blocks and their leaves stay in the L1 cache.
pub const BLOCK: usize = 1024;

/// Sums `n <= BLOCK` elements of all leaves; the result is `stack[..n]`.
///
/// `leaf(i)` gives the `n` elements of leaf `i`, rounded as `wire` says; `stack` has room for `order.depth()` blocks.
///
/// *Order*: that of `order`, per element, each sum rounded as `wire` says. *Panics* if the stack or a leaf is too short, or
/// if the sum has no leaf.
pub fn sum_block<'a>(
    order: &SumOrder,
    wire: Wire,
    n: usize,
    stack: &mut [f32],
    leaf: impl Fn(usize) -> &'a [f32],
) {
    assert!(n <= BLOCK && order.depth() > 0, "a block has at most {BLOCK} elements, not {n}");
    let mut top = 0;
    for step in order.steps() {
        match *step {
            SumStep::Load(i) => {
                stack[top * BLOCK..][..n].copy_from_slice(&leaf(i)[..n]);
                top += 1;
            }
            SumStep::Pair(left, right) => {
                add_pair(wire, &mut stack[top * BLOCK..][..n], &leaf(left)[..n], &leaf(right)[..n]);
                top += 1;
            }
            SumStep::AddLeaf(i) => add_to(wire, &mut stack[(top - 1) * BLOCK..][..n], &leaf(i)[..n]),
            SumStep::Merge => {
                top -= 1;
                let (lower, upper) = stack.split_at_mut(top * BLOCK);
                add_to(wire, &mut lower[(top - 1) * BLOCK..][..n], &upper[..n]);
            }
        }
    }
}

fn add_pair(wire: Wire, out: &mut [f32], left: &[f32], right: &[f32]) {
    let pairs = out.iter_mut().zip(left).zip(right);
    match wire {
        Wire::F32 => pairs.for_each(|((out, left), right)| *out = left + right),
        Wire::Bf16 => pairs.for_each(|((out, left), right)| *out = to_bf16(left + right)),
    }
}

/// `out = out + right`, element by element, each sum rounded as `wire` says.
pub fn add_to(wire: Wire, out: &mut [f32], right: &[f32]) {
    let pairs = out.iter_mut().zip(right);
    match wire {
        Wire::F32 => pairs.for_each(|(out, right)| *out += right),
        Wire::Bf16 => pairs.for_each(|(out, right)| *out = to_bf16(*out + right)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{Fold, Key, MicroBatch, Seed, Site, Step, cut_evenly, roots};

    fn leaf(index: usize, n: usize) -> Vec<f32> {
        let key = Key::new(Seed(5), Step(0), MicroBatch(index as u32), Site(0));
        (0..n as u32)
            .map(|i| (key.unit_f32(i) - 0.5) * 10f32.powi((key.bits(i + 9_999) % 9) as i32 - 4))
            .collect()
    }

    #[test]
    fn every_block_has_the_bits_of_the_fold_element_by_element() {
        for count in 1..=24u32 {
            for world in [1, 2, 3, 5, 8, 24] {
                for (n, wire) in [0, 1, 7, 16, 33, BLOCK - 1, BLOCK]
                    .into_iter()
                    .flat_map(|n| [Wire::F32, Wire::Bf16].map(|wire| (n, wire)))
                {
                    let all: Vec<_> =
                        cut_evenly(count, world).into_iter().flat_map(|r| roots(r, count)).collect();
                    let mut leaves: Vec<Vec<f32>> = (0..all.len()).map(|i| leaf(i, n)).collect();
                    leaves.iter_mut().for_each(|leaf| wire.round(leaf));
                    let order = SumOrder::tree(&all, count);
                    let mut stack = vec![f32::NAN; order.depth() * BLOCK];
                    sum_block(&order, wire, n, &mut stack, |i| &leaves[i]);
                    let fold = Fold::new(&all, count);
                    for i in 0..n {
                        let column: Vec<f32> = leaves.iter().map(|leaf| leaf[i]).collect();
                        let want = fold.run(&column, |a, b| match wire {
                            Wire::F32 => a + b,
                            Wire::Bf16 => to_bf16(a + b),
                        });
                        assert_eq!(stack[i].to_bits(), want.to_bits());
                    }
                }
            }
        }
    }

    #[test]
    fn negative_zero_survives_a_sum_of_one() {
        let mut stack = vec![0.0; BLOCK];
        sum_block(&SumOrder::in_turn([0]), Wire::F32, 1, &mut stack, |_| &[-0.0]);
        assert_eq!(stack[0].to_bits(), (-0.0f32).to_bits());
    }
}
