//! Some packed rows of `A` times the panels of a `B`: a row of tiles, and the ways of their sums into the result.
//!
//! Where neighbours in a row of the result are neighbours in memory, a tile adds to it itself. Otherwise, and at the edge of
//! the result, it writes into a buffer in the first-level cache, and what is there is put where it belongs afterwards.
//!
//! This file does not know the loops around a strip.

use super::target::Target;
use super::tile::{self, Ahead, Form, K_BLOCK, MOST_COLUMNS, MOST_ROWS, STRIP_ROW, Size};
use super::transpose::{Source, turn};
use crate::cpu::isa::Have;
use crate::device::Write;
use std::ops::Range;

/// Cuts rows into tiles of nearly equal height.
pub(in crate::cpu) fn strips(isa: Have, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let count = rows.len().div_ceil(Size::of(isa).rows);
    let at = move |i: usize| rows.start + rows.len() * i / count.max(1);
    (0..count).map(move |i| at(i)..at(i + 1))
}

/// Where the panels of a `B` are.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Panels<'a> {
    /// As [`pack::panels`] leaves them, `depth` rows of `k` each, of which those from `from` are meant.
    Packed {
        /// The panels.
        data: &'a [f32],
        /// Rows of `k` in a panel.
        depth: usize,
        /// The first row meant.
        from: usize,
    },
    /// Each row is contiguous from its start, and so much longer than needed that the last panel can be read whole.
    Rows {
        /// All of them.
        data: &'a [f32],
        /// Where each starts.
        starts: Starts<'a>,
    },
}

/// Where rows start, in any order.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Starts<'a> {
    starts: &'a [usize],
    /// The greatest of them.
    last: usize,
}

impl<'a> Starts<'a> {
    /// These.
    pub(in crate::cpu) fn new(starts: &'a [usize]) -> Self {
        Self { starts, last: starts.iter().copied().max().unwrap_or(0) }
    }
}

impl<'a> Panels<'a> {
    /// The same, of which the rows from `row` on are meant.
    pub(super) fn rows_from(self, row: usize) -> Self {
        match self {
            Panels::Packed { data, depth, from } => Panels::Packed { data, depth, from: from + row },
            Panels::Rows { data, starts } => {
                Panels::Rows { data, starts: Starts { starts: &starts.starts[row..], ..starts } }
            }
        }
    }

    /// The panel that starts at column `first`, after a check that `k` rows of `width` columns can be read there.
    pub(super) fn panel(&self, first: usize, width: usize, k: usize) -> tile::Panel {
        match *self {
            Panels::Packed { data, depth, from } => {
                assert!(from + k <= depth, "rows {from}+{k} of {depth}");
                let start = first * depth + from * width;
                tile::Panel::Packed(data[start..start + k * width].as_ptr())
            }
            Panels::Rows { data, starts: Starts { starts, last } } => {
                assert!(k <= starts.len(), "{k} rows of {}", starts.len());
                assert!(last + first + width <= data.len(), "a short row of B");
                tile::Panel::Scattered(data[first..].as_ptr(), starts.as_ptr())
            }
        }
    }
}

/// Some packed rows of `A`.
pub(in crate::cpu) struct Strip<'a> {
    /// How `a` was packed.
    pub(in crate::cpu) form: Form,
    /// Its rows.
    pub(in crate::cpu) rows: usize,
    /// Terms of a sum.
    pub(in crate::cpu) k: usize,
    /// The packed rows.
    pub(in crate::cpu) a: &'a [f32],
    /// What to fetch meanwhile, if anything.
    pub(in crate::cpu) ahead: Option<Ahead>,
}

impl<'a> Strip<'a> {
    /// Rows that lie [`STRIP_ROW`] apart, and nothing to fetch meanwhile.
    pub(in crate::cpu) fn of_rows(rows: usize, k: usize, a: &'a [f32]) -> Self {
        Self { form: Form::Strip, rows, k, a, ahead: None }
    }

    /// Writes `rows` x `n` elements of a target whose columns are neighbours.
    ///
    /// SAFETY: these elements are the caller's.
    pub(in crate::cpu) unsafe fn times(&self, isa: Have, b: Panels<'_>, n: usize, target: Target) {
        assert!(target.column == 1, "neighbours in a row of the result lie {} apart", target.column);
        self.check();
        let width = Size::of(isa).columns;
        for first in (0..n).step_by(width) {
            let columns = width.min(n - first);
            let halves = if columns * 2 <= width { 1 } else { 2 };
            let c = target.c.wrapping_add(first);
            if columns == halves * width / 2 {
                // SAFETY: all of the tile's rows and columns are the caller's.
                unsafe { self.tile(isa, b, first, halves, c, target.row, target.write) };
                continue;
            }
            let mut sums = Sums([0.0; KEPT]);
            // SAFETY: the buffer has room for any tile.
            unsafe { self.tile(isa, b, first, halves, sums.0.as_mut_ptr(), MOST_COLUMNS, Write::Set) };
            // SAFETY: only the caller's rows and columns are touched.
            unsafe { settle_runs(&sums.0, MOST_COLUMNS, [self.rows, columns], c, target.row, target.write) };
        }
    }

    /// Writes `rows` x `n` elements into buffers of [`KEPT`] elements, one for each tile.
    pub(super) fn keep(&self, isa: Have, b: Panels<'_>, n: usize, write: Write, kept: &mut [f32]) {
        self.check();
        let width = Size::of(isa).columns;
        for (first, kept) in (0..n).step_by(width).zip(kept.chunks_exact_mut(KEPT)) {
            let halves = if (n - first) * 2 <= width { 1 } else { 2 };
            // SAFETY: the buffer has room for any tile.
            unsafe { self.tile(isa, b, first, halves, kept.as_mut_ptr(), MOST_COLUMNS, write) };
        }
    }

    fn check(&self) {
        let needed = match self.form {
            Form::Strip => (self.rows - 1) * STRIP_ROW + self.k,
            Form::Interleaved => self.rows * self.k,
        };
        assert!(self.a.len() >= needed && self.k <= K_BLOCK, "a strip of {} for {needed}", self.a.len());
    }

    /// The tile that starts at column `first`.
    ///
    /// SAFETY: the strip was checked; `c` has the tile's rows, `c_row` elements apart, and its columns.
    // What a tile is given goes through registers: a structure that is put together in memory and copied from there at once
    // waits for all stores before it, those of the last tile too.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    unsafe fn tile(
        &self,
        isa: Have,
        b: Panels<'_>,
        first: usize,
        halves: usize,
        c: *mut f32,
        c_row: usize,
        write: Write,
    ) {
        let width = Size::of(isa).columns;
        let (tile, panel) = (tile::tile(isa, self.form, self.rows, halves), b.panel(first, width, self.k));
        let ahead = self.ahead.unwrap_or(Ahead::nothing_but(self.a)).after(first / width * self.k);
        // SAFETY: the strip was checked, so was the panel, and the caller vouches for the result.
        unsafe { tile(self.k, self.a.as_ptr(), panel, c, c_row, write, ahead) };
    }
}

/// Elements of a buffer for the sums of a tile, whose rows are [`MOST_COLUMNS`] apart.
pub(super) const KEPT: usize = MOST_ROWS * MOST_COLUMNS;

/// Such a buffer on the stack.
#[repr(align(64))]
struct Sums([f32; KEPT]);

/// Puts the kept sums of tiles, one after the other, where they belong: `rows` x `columns` elements of the target.
///
/// SAFETY: these elements are the caller's.
pub(super) unsafe fn settle(isa: Have, kept: &[f32], rows: usize, columns: usize, target: Target) {
    let width = Size::of(isa).columns;
    for (first, kept) in (0..columns).step_by(width).zip(kept.chunks_exact(KEPT)) {
        let columns = width.min(columns - first);
        let c = target.c.wrapping_add(first * target.column);
        if target.column == 1 {
            // SAFETY: some of the caller's elements.
            unsafe { settle_runs(kept, MOST_COLUMNS, [rows, columns], c, target.row, target.write) };
            continue;
        }
        assert!(target.row == 1 && rows <= MOST_ROWS, "{rows} rows that lie {} apart", target.row);
        let sums = Source { x: kept.as_ptr(), row: MOST_COLUMNS, rows, columns };
        // SAFETY: as above; `kept` has all rows of a tile.
        unsafe { turn(isa, sums, c, target.column, target.write) };
    }
}

/// Copies or adds runs of neighbours, which lie `step` apart here and `apart` there.
///
/// SAFETY: the elements of the runs at `c` are the caller's.
unsafe fn settle_runs(
    from: &[f32],
    step: usize,
    [runs, len]: [usize; 2],
    c: *mut f32,
    apart: usize,
    write: Write,
) {
    for run in 0..runs {
        // SAFETY: a run of the caller's elements.
        let to = unsafe { std::slice::from_raw_parts_mut(c.add(run * apart), len) };
        let from = &from[run * step..][..len];
        if write == Write::Add {
            to.iter_mut().zip(from).for_each(|(to, sum)| *to += sum);
        } else {
            to.copy_from_slice(from);
        }
    }
}
