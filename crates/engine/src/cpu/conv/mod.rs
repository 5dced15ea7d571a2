//! Convolutions of one to three dimensions as products whose operand is the image itself.
//!
//! An image is copied once with its padding into a *grid* in which each row of the patch matrix (one for each channel and
//! place in the kernel) is a contiguous run, so nothing is packed (`grid`). The output is computed at the pitch of the
//! grid, a few columns of which mean nothing. The gradient of the input is the convolution of the padded gradient of the
//! output with the turned kernel, each phase of the stride for itself. The gradient of the weights is in `weights`. Kernels of
//! 3 x 3 over many channels are computed in tiles (`winograd`), for all three.
//!
//! Of small images those few columns would be half of all. Several are therefore turned so that a cell has an element of
//! each: then a row of results alone is whole tiles, and nothing between the rows is computed.
//!
//! *Order*: `y` and `dx`: channel, then the places of the kernel in order, in blocks of 512. `db`: a sum for each image, in
//! order.
//!
//! This file does not know batch norm or pooling.

mod grid;
mod weights;
mod winograd;

use super::isa::{Have, on_every_isa};
use super::math::sum;
use super::pool::{Buffer, Cut, Pool, Workspace};
use super::product::tile::{MOST_ROWS, STRIP_ROW, Size};
use super::product::transpose::transpose;
use super::product::{Finish, Panels, Starts, Strip, TERMS, Target, finish_row, strips};
use crate::device::{Activation, Conv3dShape, Write};
use grid::{Axes, Lines, Sweep, volume};
use std::ops::Range;
use winograd::Tiles;

/// Columns of the patch matrix whose sums are kept at once, in the first-level cache.
const CELLS: usize = 1024;

/// How many small images are computed at once, as far as there are so many.
const GROUPS: &[usize] = &[16, 8, 4, 1];

/// Elements of scratch for any of the three operations: the kernel turned, or the sums of its gradient.
pub(super) fn scratch(shape: &Conv3dShape) -> usize {
    let direct = shape.outputs * shape.channels * volume(shape.kernel);
    Tiles::of(shape).map_or(0, Tiles::scratch).max(direct)
}

/// `y = act(x * w + bias)`.
pub(super) fn forward(
    isa: Have,
    pool: &Pool,
    shape: &Conv3dShape,
    [x, w]: [&[f32]; 2],
    finish: Finish<'_>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    if let Some(tiles) = Tiles::of(shape) {
        return winograd::forward(isa, pool, tiles, [x, w], finish, y, scratch);
    }
    let sweep = Sweep::forward(shape);
    let work = Work { sweep, channels: shape.channels, outputs: shape.outputs, w, finish };
    work.batch(isa, pool, shape, x, y);
}

/// `dx`.
pub(super) fn input_gradient(
    isa: Have,
    pool: &Pool,
    shape: &Conv3dShape,
    w: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    scratch: &mut [f32],
) {
    if let Some(tiles) = Tiles::of(shape) {
        return winograd::input_gradient(isa, pool, tiles, [w, dy], dx, scratch);
    }
    let sweep = Sweep::backward(shape);
    let turned = &mut scratch[..w.len()];
    turn(shape, &sweep, w, turned);
    let work =
        Work { sweep, channels: shape.outputs, outputs: shape.channels, w: turned, finish: Finish::NONE };
    work.batch(isa, pool, shape, dy, dx);
}

/// `dw`.
pub(super) fn weight_gradient(
    isa: Have,
    pool: &Pool,
    shape: &Conv3dShape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    scratch: &mut [f32],
) {
    match Tiles::of(shape) {
        Some(tiles) => winograd::weight_gradient(isa, pool, tiles, [x, dy], dw, scratch),
        None => weights::weight_gradient(isa, pool, shape, x, dy, dw, scratch),
    }
}

/// The kernels as the sweeps of a backward pass take them: a matrix `[channels, outputs x taps]` for each phase.
fn turn(shape: &Conv3dShape, sweep: &Sweep, w: &[f32], turned: &mut [f32]) {
    let area = volume(shape.kernel);
    let mut rest = turned;
    for phase in phases(sweep.apart) {
        let taps = sweep.taps(phase);
        if taps.len() == 0 {
            continue;
        }
        let (matrix, after) = rest.split_at_mut(shape.channels * shape.outputs * taps.len());
        for (i, to) in matrix.chunks_exact_mut(taps.len()).enumerate() {
            let (channel, output) = (i / shape.outputs, i % shape.outputs);
            taps.turn(&w[(output * shape.channels + channel) * area..][..area], to);
        }
        rest = after;
    }
}

/// All phases, in order.
fn phases(apart: Axes) -> impl Iterator<Item = Axes> {
    let [_, rows, columns] = apart;
    (0..volume(apart)).map(move |i| [i / (rows * columns), i / columns % rows, i % columns])
}

/// A convolution of a batch.
struct Work<'a> {
    sweep: Sweep,
    channels: usize,
    outputs: usize,
    /// For each phase a matrix `[outputs, channels x taps]`.
    w: &'a [f32],
    finish: Finish<'a>,
}

/// What a task works in.
struct Room<'a> {
    /// An image or a group of them.
    grid: &'a mut [f32],
    /// Where the rows of the patch matrix start, phase after phase.
    starts: &'a [usize],
    /// Kernels that are used now.
    strip: &'a mut [f32],
    /// Sums that are not in their places yet.
    kept: &'a mut Buffer,
}

impl Work<'_> {
    /// All images: small ones in groups, then what is left.
    fn batch(&self, isa: Have, pool: &Pool, shape: &Conv3dShape, mut x: &[f32], mut y: &mut [f32]) {
        let sizes = if self.sweep.is_small() { GROUPS } else { &[1] };
        let [taken, made] = self.lens();
        for &lanes in sizes {
            let images = y.len() / made / lanes * lanes;
            let (group, rest) = y.split_at_mut(images * made);
            let work = Work { sweep: self.sweep.of_images(lanes), ..*self };
            work.run(isa, pool, shape, &x[..images * taken], group);
            (x, y) = (&x[images * taken..], rest);
        }
    }

    /// Elements that one image or group has and gives.
    fn lens(&self) -> [usize; 2] {
        [self.sweep.grid.source_len(), self.outputs * self.sweep.result_len()]
    }

    /// Some images or groups a task.
    fn run(&self, isa: Have, pool: &Pool, shape: &Conv3dShape, x: &[f32], y: &mut [f32]) {
        let grid = &self.sweep.grid;
        let [taken, made] = self.lens();
        let groups = y.len() / made;
        let share = match pool.threads() {
            1 => groups.max(1),
            threads => groups.div_ceil(4 * threads).max(1),
        };
        // As many as in the forward pass, whichever pass this is.
        let terms = groups * grid.lanes() * volume(shape.output_size()) * self.w.len();
        let cut = [Cut::new(y, made * share)];
        pool.run(terms / TERMS, groups.div_ceil(share), cut, |task, [y], workspace| {
            let Workspace { a, b, image, rest, offsets } = workspace;
            offsets.clear();
            for phase in phases(self.sweep.apart) {
                self.sweep.taps(phase).starts(grid, offsets);
            }
            let (strip, room) = (a.take(MOST_ROWS * STRIP_ROW), image.take(grid.len()));
            let mut room = Room { grid: room, starts: offsets, strip, kept: rest };
            // The zeros around all images stay.
            room.grid.fill(0.0);
            for (i, y) in y.chunks_exact_mut(made).enumerate() {
                let x = &x[(task * share + i) * taken..][..taken];
                match grid.lanes() {
                    1 => {
                        grid.lay(isa, x, room.grid);
                        self.image(isa, y, &mut room);
                    }
                    lanes => {
                        let between = b.take(taken.max(made));
                        transpose(isa, x, taken / lanes, lanes, taken / lanes, between, lanes);
                        grid.lay(isa, &between[..taken], room.grid);
                        self.image(isa, &mut between[..made], &mut room);
                        transpose(isa, between, lanes, made / lanes, lanes, y, made / lanes);
                    }
                }
            }
        });
    }

    /// One image or group, which lies in the room.
    fn image(&self, isa: Have, y: &mut [f32], room: &mut Room<'_>) {
        let [depth, height, width] = self.sweep.apart;
        for rows in strips(isa, 0..self.outputs) {
            let mut before = 0;
            for (z, place) in (0..depth).flat_map(|z| (0..height).map(move |place| (z, place))) {
                let lines = self.sweep.on_grid([z, place, 0]);
                let most = (CELLS / width / lines.row).max(1);
                let parts = lines.count().div_ceil(most);
                for part in 0..parts {
                    let part = lines.count() * part / parts..lines.count() * (part + 1) / parts;
                    self.part(isa, rows.clone(), [z, place, 0], before, part, y, room);
                }
                let terms = |x| self.channels * self.sweep.taps([z, place, x]).len();
                before += (0..width).map(terms).sum::<usize>();
            }
        }
    }

    /// Some rows of the results of some outputs, in all phases that lie between each other in a row. The terms of earlier
    /// phases are `before`.
    #[allow(clippy::too_many_arguments)]
    fn part(
        &self,
        isa: Have,
        rows: Range<usize>,
        mut phase: Axes,
        mut before: usize,
        part: Range<usize>,
        y: &mut [f32],
        room: &mut Room<'_>,
    ) {
        let lines = self.sweep.on_grid(phase);
        let cells = lines.cells(part.clone());
        // Whole tiles: what they compute too much is never read.
        let columns = cells.len().next_multiple_of(Size::of(isa).columns / 2);
        let between = self.sweep.apart[2];
        let kept = room.kept.take(between * MOST_ROWS * columns);
        for (x, kept) in kept.chunks_exact_mut(MOST_ROWS * columns).enumerate() {
            phase[2] = x;
            let taps = self.sweep.taps(phase);
            let terms = self.channels * taps.len();
            let w = &self.w[self.outputs * before..][..self.outputs * terms];
            let starts = &room.starts[before..before + terms];
            before += terms;
            let mut write = Write::Set;
            for block in taps.blocks(self.channels) {
                for (row, out) in rows.clone().zip(room.strip.chunks_mut(STRIP_ROW)) {
                    out[..block.len()].copy_from_slice(&w[row * terms..][block.clone()]);
                }
                let strip = Strip::of_rows(rows.len(), block.len(), room.strip);
                let starts = Starts::new(&starts[block]);
                let target = Target { c: kept.as_mut_ptr(), row: columns, column: 1, write };
                let run = |first: usize, len: usize| {
                    let panels = Panels::Rows { data: &room.grid[first..], starts };
                    // SAFETY: `kept` has room for as many rows of columns as a strip has.
                    unsafe { strip.times(isa, panels, len, target.shifted(first - cells.start)) };
                };
                match self.sweep.grid.lanes() {
                    1 => run(cells.start, columns),
                    _ => lines.starts(part.clone()).for_each(|start| run(start, lines.width)),
                }
                write = Write::Add;
            }
            if write == Write::Set {
                // No tap reaches this phase.
                kept.fill(0.0);
            }
        }
        let placing = Placing { sweep: &self.sweep, lines, part, phase, apart: MOST_ROWS * columns };
        for (i, row) in rows.enumerate() {
            let bias = self.finish.bias.get(row).copied().unwrap_or(-0.0);
            let size = self.sweep.result_len();
            let (kept, y) = (&kept[i * columns..], &mut y[row * size..][..size]);
            match self.finish.activation {
                Activation::None => settle::<false>(isa, &placing, kept, bias, y),
                Activation::Relu => settle::<true>(isa, &placing, kept, bias, y),
            }
        }
    }
}

/// Where kept sums go.
struct Placing<'a> {
    sweep: &'a Sweep,
    lines: Lines,
    /// The rows that are kept.
    part: Range<usize>,
    phase: Axes,
    /// Elements from the sums of one phase to those of the next in a row.
    apart: usize,
}

/// Takes the cells that mean something, adds the bias (-0 for none, which changes nothing), activates, and puts the
/// phases of a row between each other.
fn settle<const RELU: bool>(isa: Have, placing: &Placing<'_>, kept: &[f32], bias: f32, y: &mut [f32]) {
    match (RELU, placing.sweep.apart[2]) {
        (true, _) => settle_activated(isa, placing, kept, bias, y),
        (false, 1) => settle_plain(isa, placing, kept, bias, y),
        (false, _) => settle_between(isa, placing, kept, y),
    }
}

impl Placing<'_> {
    /// Where each kept row starts among the sums, and in the result.
    #[inline(always)]
    fn rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let (to, first) = self.sweep.in_result(self.phase);
        let from = self.lines.start(self.part.start);
        let starts = self.lines.starts(self.part.clone()).map(move |start| start - from);
        starts.zip(to.starts(self.part.clone()).map(move |start| first + start))
    }
}

on_every_isa! {
    fn settle_activated(placing: &Placing<'_>, kept: &[f32], bias: f32, y: &mut [f32]) {
        let width = placing.lines.width;
        for (from, to) in placing.rows() {
            finish_line::<true>(&kept[from..from + width], bias, &mut y[to..to + width]);
        }
    }
}

on_every_isa! {
    fn settle_plain(placing: &Placing<'_>, kept: &[f32], bias: f32, y: &mut [f32]) {
        let width = placing.lines.width;
        for (from, to) in placing.rows() {
            finish_line::<false>(&kept[from..from + width], bias, &mut y[to..to + width]);
        }
    }
}

on_every_isa! {
    fn settle_between(placing: &Placing<'_>, kept: &[f32], y: &mut [f32]) {
        let (width, between, apart) = (placing.sweep.size[2], placing.sweep.apart[2], placing.apart);
        for (from, to) in placing.rows() {
            let (kept, y) = (&kept[from..], &mut y[to..to + width]);
            if between != 2 {
                for x in 0..between.min(width) {
                    let to = y[x..].iter_mut().step_by(between);
                    to.zip(&kept[x * apart..]).for_each(|(to, from)| *to = *from);
                }
                continue;
            }
            let (even, odd) = (&kept[..width.div_ceil(2)], &kept[apart..apart + width / 2]);
            let (pairs, last) = y.as_chunks_mut::<2>();
            for ((pair, even), odd) in pairs.iter_mut().zip(even).zip(odd) {
                *pair = [*even, *odd];
            }
            if let [last] = last {
                *last = even[width / 2];
            }
        }
    }
}

/// `y = act(sums + bias)`.
#[inline(always)]
fn finish_line<const RELU: bool>(sums: &[f32], bias: f32, y: &mut [f32]) {
    #[inline(always)]
    fn some<const RELU: bool, const LEN: usize>(sums: &[f32], bias: f32, y: &mut [f32]) {
        for (y, &sum) in y[..LEN].iter_mut().zip(&sums[..LEN]) {
            *y = sum + bias;
        }
        finish_row(&mut y[..LEN], &[], if RELU { Activation::Relu } else { Activation::None });
    }
    // Rows are short: eight at a time, the last eight again from where they overlap with those before, leave nothing over.
    let len = y.len();
    if len < 8 {
        return (0..len).for_each(|i| some::<RELU, 1>(&sums[i..], bias, &mut y[i..]));
    }
    for i in (0..len - 7).step_by(8) {
        some::<RELU, 8>(&sums[i..], bias, &mut y[i..]);
    }
    if !len.is_multiple_of(8) {
        some::<RELU, 8>(&sums[len - 8..], bias, &mut y[len - 8..]);
    }
}

/// `db`: for each output, sums of its planes, images in order.
pub(super) fn bias_gradient(isa: Have, pool: &Pool, shape: &Conv3dShape, dy: &[f32], db: &mut [f32]) {
    let area = volume(shape.output_size());
    let each = 8;
    pool.run(dy.len(), db.len().div_ceil(each), [Cut::new(db, each)], |task, [db], _| {
        for (i, db) in db.iter_mut().enumerate() {
            *db = plane_sums(isa, shape.outputs, task * each + i, area, dy);
        }
    });
}

on_every_isa! {
    /// The sum of plane `place` of every image.
    fn plane_sums(planes: usize, place: usize, area: usize, dy: &[f32]) -> f32 {
        let mut total = 0.0;
        for image in dy.chunks_exact(planes * area) {
            total += sum(&image[place * area..][..area], |v| v);
        }
        total
    }
}
