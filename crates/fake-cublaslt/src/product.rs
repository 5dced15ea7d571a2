//! The product itself, in the order of sums that its algorithm has.
//!
//! Both operands are widened into panels, of eight rows and of four columns, along which K is contiguous. The sums of a panel by a
//! panel stay in registers. What blocks share by split-K goes through the workspace.

use crate::knobs::knobs;
use crate::problem::{Activation, Problem};
use std::ops::Range;

const ROWS: usize = 8;
const COLUMNS: usize = 4;

/// Sums of a panel by a panel, by columns.
type Tile = [[f32; ROWS]; COLUMNS];

/// A product with all that it needs.
pub(crate) struct Product {
    pub problem: Problem,
    /// Of A, B, C and D.
    pub addresses: [usize; 4],
    pub alpha: f32,
    pub beta: f32,
    pub workspace: usize,
    /// The runs of each block.
    pub order: Vec<Vec<Range<usize>>>,
}

/// How K is cut: among blocks, and in each into runs. An unsteady library cuts each run of more than one at a place that `turn` moves.
pub(crate) fn order(inner: usize, cuts: usize, runs: usize, turn: Option<usize>) -> Vec<Vec<Range<usize>>> {
    let cut = |range: Range<usize>, into: usize| -> Vec<Range<usize>> {
        let at = |i: usize| range.start + range.len() * i / into;
        (0..into).map(|i| at(i)..at(i + 1)).filter(|part| !part.is_empty()).collect()
    };
    let unsteady = |run: Range<usize>| match turn {
        Some(turn) if run.len() > 1 => {
            let middle = run.start + 1 + turn % (run.len() - 1);
            vec![run.start..middle, middle..run.end]
        }
        _ => vec![run],
    };
    let of_block = |block| cut(block, runs).into_iter().flat_map(unsteady).collect();
    cut(0..inner, cuts).into_iter().map(of_block).collect()
}

/// Panels of so many lines: the numbers of the lines of a panel lie together, and what is no line any more is zeros.
fn panels(lines: usize, wide: usize, inner: usize, read: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let mut all = vec![0.0; lines.div_ceil(wide) * wide * inner];
    for line in 0..lines {
        let panel = &mut all[line / wide * wide * inner..][..wide * inner];
        for (k, place) in panel.iter_mut().skip(line % wide).step_by(wide).enumerate() {
            *place = read(line, k);
        }
    }
    all
}

/// One run of K, from its first number to its last.
fn run_of(left: &[f32], right: &[f32]) -> Tile {
    let mut sums = [[0.0; ROWS]; COLUMNS];
    for (a, b) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
        for (column, b) in sums.iter_mut().zip(b) {
            column.iter_mut().zip(a).for_each(|(sum, a)| *sum += a * b);
        }
    }
    sums
}

/// The runs of one block, one after another.
fn block(left: &[f32], right: &[f32], runs: &[Range<usize>]) -> Tile {
    let each = runs.iter().map(|run| {
        run_of(&left[run.start * ROWS..run.end * ROWS], &right[run.start * COLUMNS..run.end * COLUMNS])
    });
    let add = |mut sum: Tile, next: Tile| {
        sum.iter_mut().flatten().zip(next.iter().flatten()).for_each(|(sum, next)| *sum += next);
        sum
    };
    each.reduce(add).unwrap_or_default()
}

impl Product {
    /// # Safety
    /// The matrices of the problem lie at the addresses, its bias, what is kept and the workspace too, and nobody else uses what is written.
    pub unsafe fn compute(&self) {
        let Problem { a, b, d, inner, turned_a, turned_b, .. } = self.problem;
        let [at_a, at_b, ..] = self.addresses;
        let left = panels(d.rows, ROWS, inner, |row, k| {
            let place = if turned_a { a.place(k, row) } else { a.place(row, k) };
            // SAFETY: a place of A; the caller's promise.
            unsafe { a.numbers.read(at_a, place) }
        });
        let right = panels(d.columns, COLUMNS, inner, |column, k| {
            let place = if turned_b { b.place(column, k) } else { b.place(k, column) };
            // SAFETY: a place of B; the caller's promise.
            unsafe { b.numbers.read(at_b, place) }
        });
        for (column, right) in right.chunks_exact(COLUMNS * inner).enumerate() {
            for (row, left) in left.chunks_exact(ROWS * inner).enumerate() {
                // SAFETY: the caller's promise.
                unsafe { self.tile([row * ROWS, column * COLUMNS], left, right) };
            }
        }
        // SAFETY: D is not empty.
        unsafe { self.spoil() };
    }

    /// The numbers of D from one on, as many as a tile has and D has there.
    ///
    /// # Safety
    /// As of `compute`.
    unsafe fn tile(&self, first: [usize; 2], left: &[f32], right: &[f32]) {
        let d = self.problem.d;
        let places = || {
            let inside = |i: usize, j: usize| first[0] + i < d.rows && first[1] + j < d.columns;
            (0..COLUMNS).flat_map(|j| (0..ROWS).map(move |i| (i, j))).filter(move |(i, j)| inside(*i, *j))
        };
        let tiles = self.order.iter().map(|runs| block(left, right, runs));
        if self.order.len() == 1 {
            for tile in tiles {
                for (i, j) in places() {
                    // SAFETY: a place of D; the caller's promise.
                    unsafe { self.finish(first[0] + i, first[1] + j, tile[j][i]) };
                }
            }
            return;
        }
        // Partial sums of all D, one block's behind the other's.
        let partial = |cut: usize, (i, j): (usize, usize)| {
            let place = (cut * d.columns + first[1] + j) * d.rows + first[0] + i;
            (self.workspace as *mut f32).wrapping_add(place)
        };
        for (cut, tile) in tiles.enumerate() {
            // SAFETY: the workspace has room for as many matrices as there are blocks.
            places().for_each(|(i, j)| unsafe { partial(cut, (i, j)).write(tile[j][i]) });
        }
        for (i, j) in places() {
            // SAFETY: they were written just now.
            let sums = (0..self.order.len()).map(|cut| unsafe { partial(cut, (i, j)).read() });
            let sum = sums.reduce(|sum, next| sum + next).unwrap_or_default();
            // SAFETY: a place of D; the caller's promise.
            unsafe { self.finish(first[0] + i, first[1] + j, sum) };
        }
    }

    /// From a sum to a number of D: factors, C, bias, activation, and one rounding.
    ///
    /// # Safety
    /// As of `compute`; the place is one of D.
    unsafe fn finish(&self, row: usize, column: usize, sum: f32) {
        let Problem { c, d, bias, activation, .. } = self.problem;
        let [.., at_c, at_d] = self.addresses;
        let mut value = self.alpha * sum;
        if self.beta != 0.0 {
            // SAFETY: a place of C; the caller's promise.
            value += self.beta * unsafe { c.numbers.read(at_c, c.place(row, column)) };
        }
        if let Some(bias) = bias {
            // SAFETY: a bias has a number for each row; the caller's promise.
            value += unsafe { d.numbers.read(bias, row) };
        }
        let value = match activation {
            Activation::None => value,
            Activation::Relu => {
                if value < 0.0 {
                    0.0
                } else {
                    value
                }
            }
            Activation::Gelu { at, pitch } => {
                // SAFETY: what is kept lies as D does, columns so far apart; the caller's promise.
                unsafe { d.numbers.write(at, column * pitch + row, value) };
                // 0.7978846 is the root of 2 / pi.
                let inside = 0.797_884_6 * (value + 0.044_715 * value * value * value);
                0.5 * value * (1.0 + inside.tanh())
            }
        };
        // SAFETY: a place of D; the caller's promise.
        unsafe { d.numbers.write(at_d, d.place(row, column), value) };
    }

    /// Makes a great D wrong where a test asks for it.
    ///
    /// # Safety
    /// As of `compute`.
    unsafe fn spoil(&self) {
        let (d, at) = (self.problem.d, self.addresses[3]);
        if let Some(wrong) = knobs().wrong.filter(|_| d.rows >= 64) {
            // SAFETY: D has a first number; the caller's promise.
            unsafe { wrong.spoil(d.numbers, at) };
        }
    }
}
