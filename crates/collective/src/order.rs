//! The order of a sum as a small program, made once per generation and run for every block of every step.
//!
//! A program is a stack machine over *leaves*: the contributions of all ranks, by rank and left to right. It says
//! which two values meet in which addition, so whoever runs it gets the same bits.

use dtrain_types::{Fold, FoldStep, MicroRange, Trailer};

/// One instruction of a [`SumOrder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumStep {
    /// Pushes a leaf.
    Load(usize),
    /// Pushes `left leaf + right leaf`.
    Pair(usize, usize),
    /// Replaces the top by `top + leaf`.
    AddLeaf(usize),
    /// Replaces the two topmost values by `lower + top`.
    Merge,
}

/// How leaves are added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumOrder {
    steps: Vec<SumStep>,
    depth: usize,
}

impl SumOrder {
    /// Along the reduction tree over `0..count`, whose roots, left to right, are the leaves.
    ///
    /// *Panics* if the roots do not make up that tree.
    #[must_use]
    pub fn tree(all_roots: &[MicroRange], count: u32) -> Self {
        Self::compile(Fold::new(all_roots, count).steps())
    }

    /// One after the other: `((a + b) + c) + ...`.
    #[must_use]
    pub fn in_turn(leaves: impl IntoIterator<Item = usize>) -> Self {
        let mut steps = Vec::new();
        for leaf in leaves {
            let first = steps.is_empty();
            steps.push(FoldStep::Push(leaf));
            if !first {
                steps.push(FoldStep::Add);
            }
        }
        Self::compile(&steps)
    }

    /// Fuses each addition with the loads before it, so that a leaf is read from where it lies.
    fn compile(fold: &[FoldStep]) -> Self {
        let mut steps = Vec::new();
        for step in fold {
            match *step {
                FoldStep::Push(leaf) => steps.push(SumStep::Load(leaf)),
                FoldStep::Add => {
                    let right = steps.pop().expect("a fold has two values at each add");
                    match (steps.last().copied(), right) {
                        (Some(SumStep::Load(left)), SumStep::Load(right)) => {
                            *steps.last_mut().expect("seen above") = SumStep::Pair(left, right);
                        }
                        (_, SumStep::Load(leaf)) => steps.push(SumStep::AddLeaf(leaf)),
                        (_, other) => steps.extend([other, SumStep::Merge]),
                    }
                }
            }
        }
        let (mut now, mut depth) = (0usize, 0usize);
        for step in &steps {
            match step {
                SumStep::Load(_) | SumStep::Pair(..) => now += 1,
                SumStep::AddLeaf(_) => {}
                SumStep::Merge => now -= 1,
            }
            depth = depth.max(now);
        }
        Self { steps, depth }
    }

    /// The program.
    #[must_use]
    #[inline]
    pub fn steps(&self) -> &[SumStep] {
        &self.steps
    }

    /// The most values that are on the stack at once; 0 for a sum of nothing.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Adds trailers in this order; `stack` is only room to work in.
    ///
    /// *Panics* if a leaf is missing. A sum of nothing is [`Trailer::EMPTY`].
    pub fn sum_trailers(&self, leaves: &[Trailer], stack: &mut Vec<Trailer>) -> Trailer {
        stack.clear();
        for step in &self.steps {
            match *step {
                SumStep::Load(leaf) => stack.push(leaves[leaf]),
                SumStep::Pair(left, right) => stack.push(leaves[left].merge(&leaves[right])),
                SumStep::AddLeaf(leaf) => {
                    let top = stack.last_mut().expect("an add has a value to add to");
                    *top = top.merge(&leaves[leaf]);
                }
                SumStep::Merge => {
                    let right = stack.pop().expect("a merge has two values");
                    let left = stack.last_mut().expect("a merge has two values");
                    *left = left.merge(&right);
                }
            }
        }
        stack.pop().unwrap_or(Trailer::EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{cut_evenly, roots};

    #[test]
    fn a_compiled_tree_adds_what_the_fold_adds_in_its_order() {
        for count in 1..=40u32 {
            for world in 1..=9 {
                let all: Vec<MicroRange> =
                    cut_evenly(40, world).into_iter().flat_map(|range| roots(range, count)).collect();
                let leaf = |i: usize| Trailer {
                    loss: 0.1 + i as f64 * 1e3f64.powi(i as i32 % 5 - 2),
                    ..Trailer::EMPTY
                };
                let leaves: Vec<Trailer> = (0..all.len()).map(leaf).collect();
                let want = Fold::new(&all, count).run(&leaves, Trailer::merge);
                let got = SumOrder::tree(&all, count).sum_trailers(&leaves, &mut Vec::new());
                assert_eq!(got.loss.to_bits(), want.loss.to_bits(), "{count} over {world}");
            }
        }
    }

    #[test]
    fn two_aligned_halves_are_one_fused_addition() {
        let halves = [MicroRange { lo: 0, hi: 4 }, MicroRange { lo: 4, hi: 8 }];
        assert_eq!(SumOrder::tree(&halves, 8).steps(), [SumStep::Pair(0, 1)]);
        assert_eq!(SumOrder::in_turn([2, 0, 1]).steps(), [SumStep::Pair(2, 0), SumStep::AddLeaf(1)]);
        assert_eq!(SumOrder::in_turn([]).depth(), 0);
    }
}
