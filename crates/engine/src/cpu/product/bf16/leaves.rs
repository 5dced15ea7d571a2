//! A product whose terms are the leaves of a tree of sums: the weight gradients of several micro-batches, added up before
//! any of them reaches memory.
//!
//! Each leaf of an element is summed as [`super::product`] does it; leaves are added in the order of the reduction tree. A leaf begins with
//! a step of its own.
//!
//! This file does not know what a micro-batch is.

use super::tile::{KEPT, KEPT_ROW, Unit, Units};
use super::units::{Order, SIDE, STEP, UNIT, as_words_mut};
use super::{B_BLOCK, Finish, TILE, Whole, cut, product};
use crate::cpu::isa::Have;
use crate::cpu::pool::{Pool, Workspace};
use crate::cpu::product::leaves::{add, round};
use crate::device::{Leaf, Product, Write};
use dtrain_types::{Merger, Wire};
use std::ops::Range;

/// `C` = the tree of sums over leaves of so many terms.
pub(in crate::cpu) fn product_of_leaves(
    isa: Have,
    pool: &Pool,
    shape: &Product,
    leaf: Leaf,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
) {
    if leaf.terms >= shape.k {
        return product(isa, pool, shape, a, b, c, Finish::NONE);
    }
    assert!(leaf.terms > 0 && shape.write == Write::Set, "{leaf:?}: {shape:?}");
    let Some(whole) = Whole::new(shape, a, b, c) else { return };
    whole.in_regions(pool, |rows, columns, workspace| {
        // SAFETY: regions of different tasks do not overlap, and `c` holds them all.
        unsafe { whole.leaves(isa, leaf, rows, columns, workspace) };
    });
}

/// The operands of one tile, packed.
struct Operands<'a> {
    a: &'a [u32],
    b: &'a [u32],
    /// The first unit of `b` and how many across, and how many of `a` down.
    first: usize,
    sizes: [usize; 2],
    /// Steps of all leaves, and of each but the last.
    depth: usize,
    each: usize,
}

impl Whole<'_> {
    /// Computes the elements in `rows` x `columns`.
    ///
    /// SAFETY: the target holds the region, and nobody else touches it meanwhile.
    unsafe fn leaves(
        &self,
        isa: Have,
        leaf: Leaf,
        rows: Range<usize>,
        columns: Range<usize>,
        workspace: &mut Workspace,
    ) {
        let unit = Unit::new(isa);
        let steps = Steps::new(self.k, leaf.terms);
        let (depth, count) = (steps.len(), self.k.div_ceil(leaf.terms));
        let width = (B_BLOCK / (depth * SIDE) / TILE * TILE).max(TILE);
        let Workspace { a, b, rest, .. } = workspace;
        let kept = rest.take(KEPT * Merger::buffers(count as u32));
        for columns in cut(columns, width) {
            let b = as_words_mut(b.take(columns.len().div_ceil(SIDE) * depth * UNIT));
            self.b.pack(isa, columns.clone(), steps.clone(), Order::OfPair, b);
            for rows in cut(rows.clone(), TILE) {
                let a = as_words_mut(a.take(rows.len().div_ceil(SIDE) * depth * UNIT));
                self.a.pack(isa, rows.clone(), steps.clone(), Order::OfLane, a);
                for across in cut(columns.clone(), TILE) {
                    let operands = Operands {
                        a,
                        b,
                        first: (across.start - columns.start) / SIDE,
                        sizes: [rows.len(), across.len()].map(|len| len.div_ceil(SIDE)),
                        depth,
                        each: steps.each(),
                    };
                    operands.sum(isa, &unit, leaf.wire, kept);
                    for (row, kept) in rows.clone().zip(kept.chunks_exact(KEPT_ROW)) {
                        let to = self.at(row, across.start, Write::Set).c;
                        // SAFETY: a run of neighbours inside the region.
                        let to = unsafe { std::slice::from_raw_parts_mut(to, across.len()) };
                        to.copy_from_slice(&kept[..to.len()]);
                    }
                }
            }
        }
    }
}

impl Operands<'_> {
    /// Leaves the sum of all leaves in the first buffer.
    fn sum(&self, isa: Have, unit: &Unit, wire: Wire, kept: &mut [f32]) {
        let used = self.sizes[0] * SIDE * KEPT_ROW;
        let mut merger = Merger::default();
        for steps in cut(0..self.depth, self.each) {
            let sum = &mut kept[merger.next_buffer() * KEPT..][..KEPT];
            let of =
                |words, first, count| Units::new(words, self.depth, first, count, steps.start, steps.len());
            let (a, b) = (of(self.a, 0, self.sizes[0]), of(self.b, self.first, self.sizes[1]));
            // SAFETY: the buffer has room for any tile.
            unsafe { unit.times(a, b, sum.as_mut_ptr(), KEPT_ROW, Write::Set) };
            round(isa, wire, &mut sum[..used]);
            merger.push(|l, r| add(isa, wire, kept, [KEPT, used], [l, r]));
        }
        merger.finish(|l, r| add(isa, wire, kept, [KEPT, used], [l, r]));
    }
}

/// The terms of each step of each leaf.
#[derive(Clone)]
struct Steps {
    terms: usize,
    leaf: usize,
    next: Range<usize>,
}

impl Steps {
    fn new(terms: usize, leaf: usize) -> Self {
        let each = leaf.div_ceil(STEP);
        let last = terms - (terms - 1) / leaf * leaf;
        Self { terms, leaf, next: 0..(terms - 1) / leaf * each + last.div_ceil(STEP) }
    }

    /// Steps of a leaf.
    fn each(&self) -> usize {
        self.leaf.div_ceil(STEP)
    }
}

impl Iterator for Steps {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.next.next()?;
        let (leaf, step) = (step / self.each(), step % self.each());
        let from = leaf * self.leaf;
        let end = (from + self.leaf).min(self.terms);
        Some(from + step * STEP..(from + (step + 1) * STEP).min(end))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.next.size_hint()
    }
}

impl ExactSizeIterator for Steps {}
