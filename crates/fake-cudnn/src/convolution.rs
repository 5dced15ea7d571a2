//! The convolution itself, in the order of sums that its algorithm has.
//!
//! All three passes are products: rows of what is read around a place, by columns that are channels. A row is gathered, columns
//! lie in panels of eight, whose sums stay in registers.

use crate::algorithm::Algorithm;
use crate::knobs::knobs;
use crate::objects::{Activation, RELU};
use crate::problem::{Pass, Problem, places};
use std::ops::Range;

const WIDE: usize = 8;
/// Results of so many numbers are great.
const GREAT: usize = 1024;

type Tile = [f32; WIDE];

/// What is done to a sum beside the factors.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue {
    pub bias: usize,
    pub activation: Activation,
}

/// A convolution with all that it needs.
pub(crate) struct Convolution {
    pub problem: Problem,
    /// Of x, w and y.
    pub addresses: [usize; 3],
    pub alpha: f32,
    pub beta: f32,
    /// What beta belongs to: the result itself, mostly.
    pub added: usize,
    pub epilogue: Option<Epilogue>,
    pub workspace: usize,
    pub algorithm: Algorithm,
    /// Which convolution it is.
    pub turn: u64,
}

/// How a pass becomes a product, in numbers: the result lies in planes of as many places as a row has.
struct Product {
    /// Which of x, w and y rows are gathered from, and which columns are taken from.
    operands: [usize; 2],
    /// Rows are of so many blocks, by the places of a volume.
    blocks: usize,
    places: [usize; 3],
    /// Their terms are of so many groups, by the places of another.
    groups: usize,
    taps: [usize; 3],
    columns: usize,
    /// Distances in what rows are gathered from: of blocks, of groups.
    of_row: [usize; 2],
    /// Distances in what columns are taken from: of columns, of groups.
    of_column: [usize; 2],
    /// Distances of planes: of blocks, of columns.
    of_plane: [usize; 2],
}

impl Product {
    fn of(problem: &Problem) -> Self {
        let Problem { pass, images, channels, outputs, size, kernel, out, .. } = *problem;
        let [inputs, taps, results] = [size, kernel, out].map(|sizes| sizes.iter().product::<usize>());
        match pass {
            Pass::Forward => Self {
                operands: [0, 1],
                blocks: images,
                places: out,
                groups: channels,
                taps: kernel,
                columns: outputs,
                of_row: [channels * inputs, inputs],
                of_column: [channels * taps, taps],
                of_plane: [outputs, 1],
            },
            Pass::Inputs => Self {
                operands: [2, 1],
                blocks: images,
                places: size,
                groups: outputs,
                taps: kernel,
                columns: channels,
                of_row: [outputs * results, results],
                of_column: [taps, channels * taps],
                of_plane: [channels, 1],
            },
            Pass::Weights => Self {
                operands: [0, 2],
                blocks: channels,
                places: kernel,
                groups: images,
                taps: out,
                columns: outputs,
                of_row: [inputs, channels * inputs],
                of_column: [results, outputs * results],
                of_plane: [1, channels],
            },
        }
    }
}

/// A part of a sum, for the columns of a panel: its runs one after another.
fn part(row: &[f32], panel: &[f32], runs: &[Range<usize>]) -> Tile {
    let each = runs.iter().map(|run| {
        let mut sums = [0.0; WIDE];
        let columns = panel[run.start * WIDE..run.end * WIDE].as_chunks::<WIDE>().0;
        for (a, column) in row[run.clone()].iter().zip(columns) {
            sums.iter_mut().zip(column).for_each(|(sum, b)| *sum += a * b);
        }
        sums
    });
    each.reduce(added).unwrap_or_default()
}

fn added(mut sum: Tile, next: Tile) -> Tile {
    sum.iter_mut().zip(next).for_each(|(sum, next)| *sum += next);
    sum
}

impl Convolution {
    /// All numbers of x, w or y.
    ///
    /// # Safety
    /// As of `compute`.
    unsafe fn read(&self, which: usize) -> Vec<f32> {
        let (numbers, at) = (self.problem.numbers, self.addresses[which]);
        // SAFETY: so many numbers lie there; the caller's promise.
        (0..self.problem.lengths()[which]).map(|place| unsafe { numbers.read(at, place) }).collect()
    }

    /// # Safety
    /// The tensors of the problem lie at the addresses, what is added, bias and workspace too, and nobody else uses result and workspace.
    pub unsafe fn compute(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.sums();
            self.spoil();
        }
    }

    /// The same, never wrong.
    ///
    /// # Safety
    /// As of `compute`.
    pub unsafe fn sums(&self) {
        let problem = self.problem;
        let product = Product::of(&problem);
        // SAFETY: the caller's promise.
        let [from, by] = product.operands.map(|which| unsafe { self.read(which) });
        let (taps, columns) = (product.taps.iter().product::<usize>(), product.columns);
        let terms = product.groups * taps;
        let mut panels = vec![0.0; columns.div_ceil(WIDE) * WIDE * terms];
        for column in 0..columns {
            let panel = &mut panels[column / WIDE * WIDE * terms..][column % WIDE..];
            for (term, to) in panel.iter_mut().step_by(WIDE).take(terms).enumerate() {
                let [of_column, of_group] = product.of_column;
                *to = by[column * of_column + term / taps * of_group + term % taps];
            }
        }
        let order = self.algorithm.order(terms, self.turn);
        let mut row = vec![0.0; terms];
        for (number, place) in places(product.places).enumerate() {
            let gathered = places(product.taps).map(|tap| match problem.pass {
                Pass::Forward => problem.input_of(place, tap),
                Pass::Inputs => problem.output_of(place, tap),
                Pass::Weights => problem.input_of(tap, place),
            });
            let gathered: Vec<Option<usize>> = gathered.collect();
            for block in 0..product.blocks {
                for (group, row) in row.chunks_exact_mut(taps).enumerate() {
                    let from = &from[block * product.of_row[0] + group * product.of_row[1]..];
                    // What is padding is a zero that takes part.
                    row.iter_mut().zip(&gathered).for_each(|(to, at)| *to = at.map_or(0.0, |at| from[at]));
                }
                for (panel, numbers) in panels.chunks_exact(WIDE * terms).enumerate() {
                    let plane = |column| block * product.of_plane[0] + column * product.of_plane[1];
                    let to = panel * WIDE..columns.min((panel + 1) * WIDE);
                    let to = to.map(|column| {
                        (plane(column) * product.places.iter().product::<usize>() + number, column)
                    });
                    // SAFETY: places of the result, with their columns; the caller's promise.
                    unsafe { self.tile(&row, numbers, &order, to) };
                }
            }
        }
    }

    /// Where the result lies.
    fn result(&self) -> usize {
        let [x, w, y] = self.addresses;
        match self.problem.pass {
            Pass::Forward => y,
            Pass::Inputs => x,
            Pass::Weights => w,
        }
    }

    /// A row by the columns of a panel: partial sums go through the workspace where there are several.
    ///
    /// # Safety
    /// As of `compute`; these are places of the result, with their columns.
    unsafe fn tile(
        &self,
        row: &[f32],
        panel: &[f32],
        order: &[Vec<Range<usize>>],
        to: impl Iterator<Item = (usize, usize)> + Clone,
    ) {
        let (len, parts) = (self.problem.len(), order.len());
        let partial =
            |number: usize, place: usize| (self.workspace as *mut f32).wrapping_add(number * len + place);
        for (number, runs) in order.iter().enumerate() {
            let mut sums = part(row, panel, runs);
            if let Some(engine) = self.algorithm.engine {
                sums = sums.map(|sum| engine.kept(sum));
            }
            for ((place, column), sum) in to.clone().zip(sums) {
                // SAFETY: the workspace has room for as many results as there are parts, if there are several.
                unsafe {
                    if parts == 1 {
                        self.finish(place, column, sum);
                    } else {
                        partial(number, place).write(sum);
                    }
                }
            }
        }
        for (place, column) in to.filter(|_| parts > 1) {
            // SAFETY: they were written just now.
            let sums = (0..parts).map(|number| unsafe { partial(number, place).read() });
            let sum = sums.reduce(|sum, next| sum + next).unwrap_or_default();
            // SAFETY: the caller's promise.
            unsafe { self.finish(place, column, sum) };
        }
    }

    /// From a sum to a number of the result: factors, bias, activation, and one rounding.
    ///
    /// # Safety
    /// As of `tile`.
    unsafe fn finish(&self, place: usize, column: usize, sum: f32) {
        let numbers = self.problem.numbers;
        let mut value = self.alpha * sum;
        if self.beta != 0.0 {
            // SAFETY: what is added has the shape of the result; the caller's promise.
            value += self.beta * unsafe { numbers.read(self.added, place) };
        }
        if let Some(Epilogue { bias, activation }) = self.epilogue {
            // SAFETY: a bias has a number for each column.
            value += unsafe { numbers.read(bias, column) };
            let falls = value < 0.0 || (value.is_nan() && !activation.keeps_nan);
            value = if activation.mode == RELU && falls { 0.0 } else { value };
        }
        // SAFETY: a place of the result; the caller's promise.
        unsafe { numbers.write(self.result(), place, value) };
    }

    /// Makes a great result wrong where a test asks for it.
    ///
    /// # Safety
    /// As of `compute`.
    unsafe fn spoil(&self) {
        if let Some(wrong) = knobs().wrong.filter(|_| self.problem.len() >= GREAT) {
            // SAFETY: there is a first number; the caller's promise.
            unsafe { wrong.spoil(self.problem.numbers, self.result()) };
        }
    }
}
