//! A product whose terms are the leaves of a tree of sums: the weight gradients of several micro-batches, added up before
//! any of them reaches memory.
//!
//! Each leaf of an element is summed as [`super::product`] does it; leaves are added in the order of the reduction tree.
//! Both operands are packed for many leaves at once. A tile computes one leaf after the other and merges them like a binary
//! counter in a few buffers that stay in the first-level cache; only the sum of all is written.
//!
//! This file does not know what a micro-batch is.

use super::tile::{self, Ahead, Form, K_BLOCK, MOST_COLUMNS, MOST_ROWS, Size};
use super::{Finish, KEPT, Panels, Whole, pack, product, settle, strips};
use crate::cpu::elementwise;
use crate::cpu::isa::Have;
use crate::cpu::pool::{Pool, Workspace};
use crate::device::{Leaf, Product, Write};
use dtrain_types::{Merger, Wire};
use std::ops::Range;

/// Elements of packed `B` that stay in the second-level cache beside everything else.
const B_BLOCK: usize = 1 << 17;

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
    let Some(whole) = Whole::new(isa, shape, a, b, c) else { return };
    whole.in_regions(isa, pool, |rows, columns, workspace| {
        // SAFETY: regions of different tasks do not overlap, and `c` holds them all.
        unsafe { whole.leaves(isa, leaf, rows, columns, workspace) };
    });
}

/// The operands of one tile, packed.
struct Operands<'a> {
    /// Interleaved.
    a: &'a [f32],
    rows: usize,
    b: Panels<'a>,
    first: usize,
    tile: tile::Tile,
    width: usize,
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
        let width = Size::of(isa).columns;
        let chunk = chunk(self.k, leaf);
        let block = (B_BLOCK / chunk / width * width).max(width);
        let Workspace { a, b, rest, .. } = workspace;
        let kept = rest.take(KEPT * Merger::buffers(chunk.div_ceil(leaf.terms) as u32));
        for from in columns.clone().step_by(block) {
            let columns = from..(from + block).min(columns.end);
            let mut write = Write::Set;
            for start in (0..self.k).step_by(chunk) {
                let k = start..(start + chunk).min(self.k);
                let b = b.take(pack::panels_len(isa, k.len(), columns.len()));
                pack::panels(isa, self.b, self.b_strides, k.clone(), columns.clone(), b);
                let a = a.take(MOST_ROWS * k.len());
                for m in strips(isa, rows.clone()) {
                    pack::interleaved(self.a, self.a_strides, m.clone(), k.clone(), a);
                    for first in (0..columns.len()).step_by(width) {
                        let count = width.min(columns.len() - first);
                        let halves = if count * 2 <= width { 1 } else { 2 };
                        let operands = Operands {
                            a: &a[..m.len() * k.len()],
                            rows: m.len(),
                            b: Panels::Packed { data: b, depth: k.len(), from: 0 },
                            first,
                            tile: tile::tile(isa, Form::Interleaved, m.len(), halves),
                            width,
                        };
                        operands.sum(isa, leaf, k.len(), kept);
                        let target = self.at(m.start, columns.start + first, write);
                        // SAFETY: rows and columns of the region.
                        unsafe { settle(isa, &kept[..KEPT], m.len(), count, target) };
                    }
                }
                write = Write::Add;
            }
        }
    }
}

/// Terms that are packed together: all of them, or so many whole leaves, a power of two, as fit into a block of `k`, where
/// the result is the sum of up to three such chunks in order. Rounded sums are packed whole: chunks are added where they end.
fn chunk(k: usize, leaf: Leaf) -> usize {
    match (K_BLOCK / leaf.terms).checked_ilog2() {
        // Chunks of `2^i` leaves are added in order by the tree itself while there are no more than three.
        Some(log) if leaf.wire == Wire::F32 && k <= (3 * leaf.terms) << log => leaf.terms << log,
        _ => k,
    }
}

impl Operands<'_> {
    /// Leaves the sum of all leaves in the first buffer. Leaves go in pairs, so that most right ones are added as they
    /// leave the registers; not if they are to be rounded first.
    fn sum(&self, isa: Have, leaf: Leaf, k: usize, kept: &mut [f32]) {
        let Leaf { terms, wire } = leaf;
        let of = |index: usize| (index * terms).min(k)..((index + 1) * terms).min(k);
        let used = self.rows * MOST_COLUMNS;
        let mut merger = Merger::default();
        for left in (0..k.div_ceil(terms)).step_by(2) {
            let buffer = merger.next_buffer();
            self.one(of(left), Write::Set, &mut kept[buffer * KEPT..][..KEPT]);
            round(isa, wire, &mut kept[buffer * KEPT..][..used]);
            let right = of(left + 1);
            if right.is_empty() {
                merger.push_subtree(1, |l, r| add(isa, wire, kept, [KEPT, used], [l, r]));
                continue;
            }
            if right.len() <= K_BLOCK && wire == Wire::F32 {
                self.one(right, Write::Add, &mut kept[buffer * KEPT..][..KEPT]);
            } else {
                self.one(right, Write::Set, &mut kept[(buffer + 1) * KEPT..][..KEPT]);
                round(isa, wire, &mut kept[(buffer + 1) * KEPT..][..used]);
                add(isa, wire, kept, [KEPT, used], [buffer, buffer + 1]);
            }
            merger.push_subtree(2, |l, r| add(isa, wire, kept, [KEPT, used], [l, r]));
        }
        merger.finish(|l, r| add(isa, wire, kept, [KEPT, used], [l, r]));
    }

    /// One leaf, or what of it is one chain: blocks of terms in order.
    fn one(&self, terms: Range<usize>, write: Write, kept: &mut [f32]) {
        let mut write = write;
        for from in terms.clone().step_by(K_BLOCK) {
            let k = K_BLOCK.min(terms.end - from);
            let b = self.b.rows_from(from).panel(self.first, self.width, k);
            let a = &self.a[from * self.rows..][..k * self.rows];
            let ahead = Ahead::nothing_but(a);
            assert!(kept.len() >= self.rows * MOST_COLUMNS, "a tile of {} rows", self.rows);
            // SAFETY: `a` has the rows in the form of this tile, the panel was checked, `kept` has room for any tile.
            unsafe { (self.tile)(k, a.as_ptr(), b, kept.as_mut_ptr(), MOST_COLUMNS, write, ahead) };
            write = Write::Add;
        }
    }
}

/// Adds buffer `right` to buffer `left`, and rounds the sum: the first `used` elements of each, which lie `apart`.
pub(super) fn add(
    isa: Have,
    wire: Wire,
    kept: &mut [f32],
    [apart, used]: [usize; 2],
    [left, right]: [usize; 2],
) {
    let (before, from) = kept.split_at_mut(right * apart);
    let sum = &mut before[left * apart..][..used];
    elementwise::add_to(isa, &from[..used], sum);
    round(isa, wire, sum);
}

/// Rounds what is whole. In f32 that is no call at all.
#[inline]
pub(super) fn round(isa: Have, wire: Wire, kept: &mut [f32]) {
    if wire != Wire::F32 {
        elementwise::round(isa, wire, kept);
    }
}
