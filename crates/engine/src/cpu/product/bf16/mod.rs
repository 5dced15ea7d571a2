//! Products whose operands are rounded to bf16: the loops around the tile.
//!
//! Every element of `C` is one chain of steps of thirty-two terms, from zero or from what is there; a step is what AMX makes of it (see
//! `tile`). Missing terms of the last step are zero. A sum that waits in `C` between two blocks of terms is the same float that it was in
//! a register, so no loop here can change a bit: how terms, rows and columns are cut is free.
//!
//! This file does not know layers.

#[cfg(target_arch = "x86_64")]
mod amx;
mod leaves;
mod pack;
mod panels;
mod round;
mod tile;
mod units;

use super::target::{Finish, Target};
use super::{TERMS, finish_neighbours, target_of};
use crate::cpu::isa::Have;
use crate::cpu::pool::{FORK, Pool, Workspace};
use crate::device::{Activation, Product, Write};
pub(in crate::cpu) use leaves::product_of_leaves;
use pack::Operand;
pub(in crate::cpu) use panels::InBf16;
use std::ops::Range;
use tile::{KEPT, KEPT_ROW, MOST, Unit, Units};
use units::{Order, SIDE, STEP, as_words_mut, units_len};

/// Rows and columns of the largest tile.
const TILE: usize = MOST * SIDE;
/// The most terms whose operands are packed at once. Meanwhile sums stay in registers; the way to memory and back costs more than it
/// saves that operands stay in the first-level cache.
const MOST_TERMS: usize = 2048;
/// Words of packed `B` that stay in the second-level cache beside everything else.
const B_BLOCK: usize = 1 << 18;
/// How much longer AVX-512 takes for a term.
const FASTER: usize = 4;

/// `C = A B` or `C += A B`, then `finish`.
pub(in crate::cpu) fn product(
    isa: Have,
    pool: &Pool,
    shape: &Product,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    finish: Finish<'_>,
) {
    let Some(whole) = Whole::new(shape, a, b, c) else { return };
    whole.in_regions(pool, |rows, columns, workspace| {
        // SAFETY: regions of different tasks do not overlap, and `c` holds them all.
        unsafe { whole.region(isa, rows, columns, finish, workspace) };
    });
}

/// A product whose operands were held against its shape.
struct Whole<'a> {
    m: usize,
    n: usize,
    k: usize,
    a: Operand<'a>,
    b: Operand<'a>,
    target: Target,
}

impl<'a> Whole<'a> {
    /// The operands; nothing for a result without elements. `c` is the whole's until it is dropped.
    fn new(shape: &Product, a: &'a [f32], b: &'a [f32], c: &'a mut [f32]) -> Option<Self> {
        let Product { m, n, k, .. } = *shape;
        let target = target_of(shape, a, b, c)?;
        let (a, b) = (Operand::rows(a, shape.a), Operand::columns(b, shape.b));
        Some(Self { m, n, k, a, b, target })
    }

    /// Runs `task` for regions that together are the whole, on all threads.
    fn in_regions(&self, pool: &Pool, task: impl Fn(Range<usize>, Range<usize>, &mut Workspace) + Sync) {
        let work = self.m * self.n * self.k / TERMS / FASTER;
        let parts = if work < FORK { 1 } else { pool.threads() };
        // What is cut across the columns is packed once, the other operand for each part.
        let by_rows = parts > 1 && self.m > self.n;
        let whole = if by_rows { self.m } else { self.n };
        let step = whole.div_ceil(parts).next_multiple_of(TILE);
        pool.run(work, whole.div_ceil(step), [], |index, [], workspace| {
            let part = index * step..((index + 1) * step).min(whole);
            let (rows, columns) = if by_rows { (part, 0..self.n) } else { (0..self.m, part) };
            task(rows, columns, workspace);
        });
    }

    /// Computes the elements in `rows` x `columns`.
    ///
    /// SAFETY: the target holds the region, and nobody else touches it meanwhile.
    unsafe fn region(
        &self,
        isa: Have,
        rows: Range<usize>,
        columns: Range<usize>,
        finish: Finish<'_>,
        workspace: &mut Workspace,
    ) {
        let unit = Unit::new(isa);
        let Workspace { a: a_room, b: b_room, .. } = workspace;
        let block = even(self.k, MOST_TERMS);
        let width = (2 * B_BLOCK / block / TILE * TILE).min(columns.len());
        for columns in cut(columns, width) {
            let mut write = self.target.write;
            for terms in cut(0..self.k, block) {
                let b = as_words_mut(b_room.take(units_len(columns.len(), terms.len())));
                self.b.pack(isa, columns.clone(), steps(terms.clone()), Order::OfPair, b);
                for strip in cut(rows.clone(), TILE) {
                    let a = as_words_mut(a_room.take(units_len(strip.len(), terms.len())));
                    self.a.pack(isa, strip.clone(), steps(terms.clone()), Order::OfLane, a);
                    let to = self.at(strip.start, columns.start, write);
                    let depth = terms.len().div_ceil(STEP);
                    // SAFETY: the strip's rows and columns are inside the region.
                    unsafe { strip_times(&unit, [a, b], depth, [strip.len(), columns.len(), depth], to) };
                }
                write = Write::Add;
            }
            // SAFETY: as above.
            unsafe { self.finish(isa, rows.clone(), columns, finish) };
        }
    }

    fn at(&self, row: usize, column: usize, write: Write) -> Target {
        Target { write, ..self.target.shifted(row * self.target.row + column) }
    }

    /// Adds bias and activation to whole elements.
    ///
    /// SAFETY: as for `region`.
    unsafe fn finish(&self, isa: Have, rows: Range<usize>, columns: Range<usize>, finish: Finish<'_>) {
        if finish.bias.is_empty() && finish.activation == Activation::None {
            return;
        }
        let bias = if finish.bias.is_empty() { &[] } else { &finish.bias[columns.clone()] };
        for row in rows {
            let c = self.target.c.wrapping_add(row * self.target.row + columns.start);
            // SAFETY: a run of neighbours inside the region.
            let c = unsafe { std::slice::from_raw_parts_mut(c, columns.len()) };
            finish_neighbours(isa, c, bias, finish.activation);
        }
    }
}

/// So many terms in parts of one size, a multiple of a step and at most `most`.
fn even(terms: usize, most: usize) -> usize {
    terms.div_ceil(terms.div_ceil(most)).next_multiple_of(STEP)
}

/// A range in parts of so many.
fn cut(range: Range<usize>, each: usize) -> impl ExactSizeIterator<Item = Range<usize>> + Clone {
    let end = range.end;
    range.step_by(each).map(move |from| from..(from + each).min(end))
}

/// The terms of each step.
fn steps(terms: Range<usize>) -> impl ExactSizeIterator<Item = Range<usize>> + Clone {
    cut(terms, STEP)
}

/// Rows of `A` that are packed `depth` steps deep times the columns of `B` that are packed as deep as that says.
///
/// SAFETY: the target's `rows` x `columns` elements are the caller's.
unsafe fn strip_times(
    unit: &Unit,
    [a, b]: [&[u32]; 2],
    b_depth: usize,
    [rows, columns, depth]: [usize; 3],
    target: Target,
) {
    let a = Units::new(a, depth, 0, rows.div_ceil(SIDE), 0, depth);
    for first in (0..columns).step_by(TILE) {
        let width = TILE.min(columns - first);
        let b = Units::new(b, b_depth, first / SIDE, width.div_ceil(SIDE), 0, depth);
        let c = target.c.wrapping_add(first);
        if rows.is_multiple_of(SIDE) && width.is_multiple_of(SIDE) {
            // SAFETY: whole units of the caller's elements.
            unsafe { unit.times(a, b, c, target.row, target.write) };
            continue;
        }
        let mut kept = Kept([0.0; KEPT]);
        let row = |row: usize| {
            // SAFETY: a row of the caller's elements.
            unsafe { std::slice::from_raw_parts_mut(c.wrapping_add(row * target.row), width) }
        };
        if target.write == Write::Add {
            (0..rows).for_each(|r| kept.0[r * KEPT_ROW..][..width].copy_from_slice(row(r)));
        }
        // SAFETY: the buffer has room for any tile.
        unsafe { unit.times(a, b, kept.0.as_mut_ptr(), KEPT_ROW, target.write) };
        (0..rows).for_each(|r| row(r).copy_from_slice(&kept.0[r * KEPT_ROW..][..width]));
    }
}

/// Where the sums of a tile at an edge wait.
#[repr(align(64))]
struct Kept([f32; KEPT]);
