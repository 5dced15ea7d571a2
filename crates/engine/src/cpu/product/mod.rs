//! The matrix product: which operand is packed how, and the loops around the tile.
//!
//! Every element of `C` is its own chain: blocks of `k` of at most [`K_BLOCK`], each summed in order from zero by
//! fused multiply-add, added to `C` in order. No loop here can change that, so the order of the loops, the cut into
//! tasks and the size of a tile are free: they are chosen for speed. Since `fma(a, b, c) = fma(b, a, c)`, the two
//! operands may also change places (`C^T = B^T A^T`).
//!
//! *Source*: the loops are those of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008.
//!
//! This file does not know layers.

pub(super) mod bf16;
pub(super) mod leaves;
mod multiplies;
pub(super) mod pack;
mod strip;
pub(super) mod target;
pub(super) mod tile;
pub(super) mod transpose;

use super::isa::{Have, on_every_isa};
use super::pool::{Pool, Workspace};
use crate::device::{Activation, Product, Strides, Write};
use std::ops::Range;
use strip::{KEPT, settle};

pub(super) use bf16::InBf16;
pub(super) use multiplies::{InF32, Multiplies};
pub(super) use strip::{Panels, Starts, Strip, strips};
pub(super) use target::{Finish, Target};
use tile::{Ahead, K_BLOCK, MOST_ROWS, STRIP_ROW, Size};

/// Elements of packed `B` that stay in the second-level cache beside everything else.
const B_BLOCK: usize = 1 << 17;
/// So few rows hide nothing of what it takes to turn the other operand, which waits for memory.
const FEW_ROWS: usize = 16;
/// Terms of a sum that take as long as one element of a point-wise operation.
pub(super) const TERMS: usize = 4;

/// The last index that a matrix touches, plus one.
fn extent(rows: usize, columns: usize, strides: Strides) -> usize {
    if rows == 0 || columns == 0 { 0 } else { (rows - 1) * strides.row + (columns - 1) * strides.col + 1 }
}

/// Where the result goes, after a check that the operands are as long as the shape says; nothing for a result without elements.
fn target_of(shape: &Product, a: &[f32], b: &[f32], c: &mut [f32]) -> Option<Target> {
    let Product { m, n, k, .. } = *shape;
    assert!(k > 0, "a sum without terms: {shape:?}");
    let c_strides = Strides::rows(shape.c_row);
    assert!(a.len() >= extent(m, k, shape.a), "A has {} elements: {shape:?}", a.len());
    assert!(b.len() >= extent(k, n, shape.b), "B has {} elements: {shape:?}", b.len());
    assert!(c.len() >= extent(m, n, c_strides), "C has {} elements: {shape:?}", c.len());
    assert!(m < 2 || shape.c_row >= n, "rows of C overlap: {shape:?}");
    let target = Target { c: c.as_mut_ptr(), row: shape.c_row, column: 1, write: shape.write };
    (m > 0 && n > 0).then_some(target)
}

/// `C = A B` or `C += A B`, then `finish`.
pub(super) fn product(
    isa: Have,
    pool: &Pool,
    shape: &Product,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    finish: Finish<'_>,
) {
    let Some(whole) = Whole::new(isa, shape, a, b, c) else { return };
    whole.in_regions(isa, pool, |rows, columns, workspace| {
        // SAFETY: regions of different tasks do not overlap, and `c` holds them all.
        unsafe { whole.region(isa, rows, columns, finish, workspace) };
    });
}

/// Whether `C^T = B^T A^T` is cheaper: the operand in panels should be the one that is packed by plain copies, and the
/// smaller one.
fn swaps(isa: Have, shape: &Product) -> bool {
    let Product { m, n, k, a, b, .. } = *shape;
    let Size { columns: width, .. } = Size::of(isa);
    // In cycles of 16 elements: the multiplications with padding, the packing, and the turned store of each tile.
    let cost = |m: usize, n: usize, copies: bool| {
        let half = width / 2;
        let packing = if copies {
            2
        } else if m < FEW_ROWS {
            40
        } else {
            4
        };
        m * n.next_multiple_of(half) * k / 16 + n * k * packing / 16
    };
    let plain = cost(m, n, b.col == 1);
    let turned = cost(n, m, a.row == 1) + m * n * k.div_ceil(K_BLOCK) * 6 / 16;
    turned < plain
}

/// How the output is cut into regions, one a task.
struct Regions {
    m: usize,
    n: usize,
    /// Rows or columns of a region, in the direction of the cut.
    step: usize,
    by_rows: bool,
}

impl Regions {
    fn new(isa: Have, threads: usize, whole: &Whole<'_>) -> Self {
        let Whole { m, n, k, .. } = *whole;
        let size = Size::of(isa);
        let parts = if m * n * k / TERMS < super::pool::FORK { 1 } else { threads };
        // A cut across the columns packs A for each part, one across the rows B, which costs twice as much an element.
        let by_rows = parts > 1 && (n < size.columns * parts || m > 2 * n);
        let (whole, unit) = if by_rows { (m, size.rows) } else { (n, size.columns) };
        let step = if parts == 1 { whole } else { whole.div_ceil(parts).next_multiple_of(unit) };
        Self { m, n, step, by_rows }
    }

    fn count(&self) -> usize {
        (if self.by_rows { self.m } else { self.n }).div_ceil(self.step)
    }

    fn region(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let whole = if self.by_rows { self.m } else { self.n };
        let part = task * self.step..((task + 1) * self.step).min(whole);
        if self.by_rows { (part, 0..self.n) } else { (0..self.m, part) }
    }
}

/// A product whose operands have taken their places.
struct Whole<'a> {
    m: usize,
    n: usize,
    k: usize,
    a: &'a [f32],
    a_strides: Strides,
    b: &'a [f32],
    b_strides: Strides,
    target: Target,
    /// Whether the operands changed places: then the target's columns are the rows of the caller's `C`.
    turned: bool,
}

impl<'a> Whole<'a> {
    /// The operands in their places; nothing for a result without elements. `c` is the whole's until it is dropped.
    fn new(isa: Have, shape: &Product, a: &'a [f32], b: &'a [f32], c: &'a mut [f32]) -> Option<Self> {
        let Product { m, n, k, .. } = *shape;
        let target = target_of(shape, a, b, c)?;
        if !swaps(isa, shape) {
            return Some(Self {
                m,
                n,
                k,
                a,
                a_strides: shape.a,
                b,
                b_strides: shape.b,
                target,
                turned: false,
            });
        }
        let turned = |s: Strides| Strides { row: s.col, col: s.row };
        let target = Target { row: target.column, column: target.row, ..target };
        let (a_strides, b_strides) = (turned(shape.b), turned(shape.a));
        Some(Self { m: n, n: m, k, a: b, a_strides, b: a, b_strides, target, turned: true })
    }

    /// Runs `task` for regions that together are the whole, on all threads.
    fn in_regions(
        &self,
        isa: Have,
        pool: &Pool,
        task: impl Fn(Range<usize>, Range<usize>, &mut Workspace) + Sync,
    ) {
        let cut = Regions::new(isa, pool.threads(), self);
        pool.run(self.m * self.n * self.k / TERMS, cut.count(), [], |index, [], workspace| {
            let (rows, columns) = cut.region(index);
            task(rows, columns, workspace);
        });
    }
}

/// Where a strip is packed, and where its sums wait.
struct Room<'a> {
    a: &'a mut [f32],
    kept: &'a mut [f32],
}

impl Whole<'_> {
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
        let width = Size::of(isa).columns;
        let block = (B_BLOCK / self.k.clamp(1, K_BLOCK) / width * width).max(width);
        // Memory is taken for what there is.
        let block = block.min(columns.len().next_multiple_of(width));
        let Workspace { a, b, rest, .. } = workspace;
        let room = &mut Room { a: a.take(MOST_ROWS * STRIP_ROW), kept: rest.take(KEPT * (block / width)) };
        for from in columns.clone().step_by(block) {
            let columns = from..(from + block).min(columns.end);
            // Few columns leave room for several blocks of `k`.
            let terms = (B_BLOCK / columns.len().next_multiple_of(width) / K_BLOCK).max(1) * K_BLOCK;
            let mut write = self.target.write;
            for start in (0..self.k).step_by(terms) {
                let k = start..(start + terms).min(self.k);
                let b = b.take(pack::panels_len(isa, k.len(), columns.len()));
                pack::panels(isa, self.b, self.b_strides, k.clone(), columns.clone(), b);
                for m in strips(isa, rows.clone()) {
                    let next = m.end..(m.end + m.len()).min(rows.end);
                    // SAFETY: the strip's rows and columns are inside the region.
                    unsafe { self.strip(isa, [&m, &next, &columns, &k], b, write, room) };
                }
                write = Write::Add;
            }
            // SAFETY: as above.
            unsafe { self.finish(isa, rows.clone(), columns, finish) };
        }
    }

    /// Computes the elements in some rows of one tile's height, over terms whose rows of `B` are packed.
    ///
    /// SAFETY: as for `region`.
    unsafe fn strip(
        &self,
        isa: Have,
        [rows, next, columns, terms]: [&Range<usize>; 4],
        b: &[f32],
        mut write: Write,
        room: &mut Room<'_>,
    ) {
        let tiles = columns.len().div_ceil(Size::of(isa).columns);
        let ahead = self.ahead(next, terms, tiles);
        // Sums whose neighbours are apart are put in their places once if nothing is there yet.
        let gathers = self.turned && write == Write::Set;
        for from in terms.clone().step_by(K_BLOCK) {
            let k = from..(from + K_BLOCK).min(terms.end);
            pack::rows(self.a, self.a_strides, rows.clone(), k.clone(), room.a);
            let is_last = k.end == terms.end;
            let ahead = ahead.map(|ahead| ahead.after((from - terms.start) * tiles));
            let form = pack::form_of(self.a_strides);
            let strip = Strip { form, rows: rows.len(), k: k.len(), a: room.a, ahead };
            let panels = Panels::Packed { data: b, depth: terms.len(), from: from - terms.start };
            let target = self.at(rows.start, columns.start, write);
            if self.turned {
                let keep = if gathers { write } else { Write::Set };
                strip.keep(isa, panels, columns.len(), keep, room.kept);
                if is_last || !gathers {
                    let target = if gathers { Target { write: Write::Set, ..target } } else { target };
                    // SAFETY: the caller's promise.
                    unsafe { settle(isa, room.kept, rows.len(), columns.len(), target) };
                }
            } else {
                // SAFETY: the caller's promise.
                unsafe { strip.times(isa, panels, columns.len(), target) };
            }
            write = Write::Add;
        }
    }

    /// The rows of `A` that are packed next, for so many tiles and terms; nothing if they are not one run of memory.
    fn ahead(&self, rows: &Range<usize>, terms: &Range<usize>, tiles: usize) -> Option<Ahead> {
        let whole = self.a_strides.col == 1 && self.a_strides.row == terms.len() && !rows.is_empty();
        let all = || &self.a[rows.start * terms.len()..rows.end * terms.len()];
        whole.then(|| Ahead::over(all(), tiles * terms.len()))
    }

    fn at(&self, row: usize, column: usize, write: Write) -> Target {
        let Target { c, row: r, column: s, .. } = self.target;
        Target { c: c.wrapping_add(row * r + column * s), write, ..self.target }
    }

    /// Adds bias and activation to whole elements.
    ///
    /// SAFETY: as for `region`.
    unsafe fn finish(&self, isa: Have, rows: Range<usize>, columns: Range<usize>, finish: Finish<'_>) {
        if finish.bias.is_empty() && finish.activation == Activation::None {
            return;
        }
        // The inner direction is that of neighbours in memory, and the bias belongs to it.
        let (outer, inner, stride) =
            if self.turned { (columns, rows, self.target.column) } else { (rows, columns, self.target.row) };
        for r in outer {
            // SAFETY: a run of neighbours inside the region.
            let c = unsafe {
                std::slice::from_raw_parts_mut(self.target.c.add(r * stride + inner.start), inner.len())
            };
            let bias = if finish.bias.is_empty() { &[] } else { &finish.bias[inner.clone()] };
            finish_neighbours(isa, c, bias, finish.activation);
        }
    }
}

on_every_isa! {
    /// [`finish_row`], compiled for what the CPU has.
    fn finish_neighbours(c: &mut [f32], bias: &[f32], activation: Activation) {
        finish_row(c, bias, activation);
    }
}

/// `c = act(c + bias)`.
#[inline(always)]
pub(super) fn finish_row(c: &mut [f32], bias: &[f32], activation: Activation) {
    for (c, &bias) in c.iter_mut().zip(bias) {
        *c += bias;
    }
    if activation == Activation::Relu {
        for c in c {
            *c = if *c <= 0.0 { 0.0 } else { *c };
        }
    }
}

/// `A[m, k] B[k, n]` for a `B` that lies in panels, on this thread; `strip` is room for packed rows of `A`.
///
/// SAFETY: the target's `m` x `n` elements are the caller's.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn multiply(
    isa: Have,
    a: &[f32],
    strides: Strides,
    [m, n, k]: [usize; 3],
    panels: &[f32],
    depth: usize,
    target: Target,
    room: &mut super::pool::Buffer,
) {
    let room = room.take(MOST_ROWS * STRIP_ROW);
    for rows in strips(isa, 0..m) {
        let mut write = target.write;
        for from in (0..k).step_by(K_BLOCK) {
            let terms = from..(from + K_BLOCK).min(k);
            pack::rows(a, strides, rows.clone(), terms.clone(), room);
            let form = pack::form_of(strides);
            let strip = Strip { form, rows: rows.len(), k: terms.len(), a: room, ahead: None };
            let c = target.c.wrapping_add(rows.start * target.row);
            // SAFETY: some rows of the caller's elements.
            unsafe {
                strip.times(
                    isa,
                    Panels::Packed { data: panels, depth, from },
                    n,
                    Target { c, write, ..target },
                )
            };
            write = Write::Add;
        }
    }
}
