//! The gradient of a convolution's weights: a product of patches and output gradients over the cells of all images.
//!
//! Where windows step by one, cells are taken at the pitch of the grid, so that a row of patches is copied at once; cells
//! between the rows of the output meet a gradient of zero. For other strides cells are those of the output. Of a small image
//! with many channels nothing is copied: its channels lie together, and a row of the kernel meets one run of them.
//!
//! *Order*: images in order, each its cells in blocks of at most 512; a cell without meaning adds a product with zero.
//!
//! This file does not know the bias.

use super::grid::{Grid, Lines, Sweep, copy_run, volume};
use crate::cpu::isa::{Have, on_every_isa};
use crate::cpu::pool::{Cut, Pool, Workspace};
use crate::cpu::product::tile::{K_BLOCK, MOST_COLUMNS, MOST_ROWS, STRIP_ROW, Size};
use crate::cpu::product::{Panels, Starts, Strip, TERMS, Target, strips, transpose::transpose};
use crate::device::{Conv3dShape, Write};
use std::ops::Range;

/// Sums that each image in turn is added to: they stay in the second-level cache beside everything else.
const SUMS: usize = 1 << 17;

/// `dw`. `sums` is room for as many elements.
pub(in crate::cpu) fn weight_gradient(
    isa: Have,
    pool: &Pool,
    shape: &Conv3dShape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    sums: &mut [f32],
) {
    let patches = Patches::new(shape);
    if patches.sweep.is_small() && patches.len() <= K_BLOCK && shape.channels >= MOST_COLUMNS / 2 {
        return of_small_images(isa, pool, shape, patches.sweep.of_cells(), x, dy, [dw, sums]);
    }
    let (terms, outputs) = (shape.channels * volume(shape.kernel), shape.outputs);
    let size = Size::of(isa);
    // A task has a panel of outputs and some rows of the patch matrix, over all images.
    let panels = outputs.div_ceil(size.columns);
    let groups = pool.threads().div_ceil(panels).min(terms.div_ceil(size.rows));
    let sums = &mut sums[..terms * outputs];
    let target = Target { c: sums.as_mut_ptr(), row: outputs, column: 1, write: Write::Set };
    let work = dy.len() * terms / TERMS;
    pool.run(work, panels * groups, [], |task, [], workspace| {
        let (panel, group) = (task / groups, task % groups);
        let columns = panel * size.columns..((panel + 1) * size.columns).min(outputs);
        let rows = terms * group / groups..terms * (group + 1) / groups;
        let slice = Slice { rows, outputs: columns, target };
        // SAFETY: tasks differ in their columns or their rows of `sums`.
        unsafe { patches.sum_of_images(isa, x, dy, &slice, workspace) };
    });
    transpose(isa, sums, outputs, terms, outputs, dw, terms);
}

/// The same for small images of many channels, which lie together in a cell: the patch of a cell is one run for each row of
/// the kernel, and is taken from where it is.
fn of_small_images(
    isa: Have,
    pool: &Pool,
    shape: &Conv3dShape,
    sweep: Sweep,
    x: &[f32],
    dy: &[f32],
    [dw, sums]: [&mut [f32]; 2],
) {
    let (grid, taps, lines) = (&sweep.grid, sweep.taps([0; 3]), sweep.on_grid([0; 3]));
    let (channels, source, cells) = (shape.channels, volume(shape.size), volume(sweep.size));
    let terms = channels * taps.len();
    let run = shape.kernel[2] * channels;
    // A task has some outputs, over all images.
    let tasks = pool.threads().max((shape.outputs * terms).div_ceil(SUMS));
    let share = shape.outputs.div_ceil(tasks);
    let cuts = [Cut::new(dw, share * terms), Cut::new(sums, share * terms)];
    pool.run(dy.len() * terms / TERMS, shape.outputs.div_ceil(share), cuts, |task, [dw, sums], workspace| {
        let Workspace { a, b, image: room, offsets, .. } = workspace;
        let (strip_room, turned) = (a.take(MOST_ROWS * STRIP_ROW), b.take(grid.source_len()));
        // The zeros around all images stay.
        let room = room.take(grid.len());
        room.fill(0.0);
        offsets.clear();
        taps.starts(grid, offsets);
        lines
            .starts(0..lines.count())
            .for_each(|line| offsets.extend((line..line + lines.width).step_by(channels)));
        let (taps, places) = offsets.split_at(taps.len());
        let starts = Starts::new(places);
        let outputs = task * share..(task * share + share).min(shape.outputs);
        let mut write = Write::Set;
        for (x, dy) in x.chunks_exact(grid.source_len()).zip(dy.chunks_exact(shape.outputs * cells)) {
            transpose(isa, x, source, channels, source, turned, channels);
            grid.lay(isa, turned, room);
            for rows in strips(isa, outputs.clone()) {
                let gradients = dy[rows.start * cells..].chunks_exact(cells).take(rows.len());
                for (from, to) in gradients.zip(strip_room.chunks_mut(STRIP_ROW)) {
                    to[..cells].copy_from_slice(from);
                }
                let strip = Strip::of_rows(rows.len(), cells, strip_room);
                let sums = &mut sums[(rows.start - outputs.start) * terms..][..rows.len() * terms];
                for (i, start) in taps.iter().step_by(shape.kernel[2]).enumerate() {
                    let b = Panels::Rows { data: &room[*start..], starts };
                    let c = sums[i * run..].as_mut_ptr();
                    // SAFETY: a run of each row of `sums`.
                    unsafe { strip.times(isa, b, run, Target { c, row: terms, column: 1, write }) };
                }
            }
            write = Write::Add;
        }
        for (sums, dw) in sums.chunks_exact(terms).zip(dw.chunks_exact_mut(terms)) {
            transpose(isa, sums, channels, taps.len(), channels, dw, taps.len());
        }
    });
}

/// What one task computes.
struct Slice {
    /// Rows of the patch matrix.
    rows: Range<usize>,
    outputs: Range<usize>,
    target: Target,
}

/// The patch matrices of a batch.
struct Patches {
    sweep: Sweep,
    /// Outputs of an image.
    outputs: usize,
    /// How the cells of an image are ordered in a sum.
    cells: Lines,
    /// Where they are on the grid.
    on_grid: Lines,
    /// Whether the two are the same.
    at_pitch: bool,
}

impl Patches {
    fn new(shape: &Conv3dShape) -> Self {
        let sweep = Sweep::forward(shape);
        let (on_grid, at_pitch) = (sweep.on_grid([0; 3]), shape.stride == [1; 3]);
        let cells = if at_pitch { on_grid } else { Lines::dense(sweep.size) };
        Self { sweep, outputs: shape.outputs, cells, on_grid, at_pitch }
    }

    /// Cells of an image.
    fn len(&self) -> usize {
        self.cells.cells(0..self.cells.count()).end
    }

    fn grid(&self) -> &Grid {
        &self.sweep.grid
    }

    /// A part of the gradient, over all images.
    ///
    /// SAFETY: these elements of the target are the caller's.
    unsafe fn sum_of_images(
        &self,
        isa: Have,
        x: &[f32],
        dy: &[f32],
        slice: &Slice,
        workspace: &mut Workspace,
    ) {
        let Slice { rows, outputs, target } = slice;
        let Workspace { a, b, image: room, offsets, .. } = workspace;
        let area = volume(self.sweep.size);
        let cells = self.len();
        let blocks = cells.div_ceil(K_BLOCK);
        let strip_room = a.take(MOST_ROWS * STRIP_ROW);
        // The zeros around all images stay, and those behind the last output.
        let room = room.take(self.grid().len());
        room.fill(0.0);
        let panel = b.take(Size::of(isa).columns * K_BLOCK);
        panel.fill(0.0);
        offsets.clear();
        self.sweep.taps([0; 3]).starts(self.grid(), offsets);
        let mut write = Write::Set;
        let images = x.chunks_exact(self.grid().source_len()).zip(dy.chunks_exact(self.outputs * area));
        for (x, dy) in images {
            self.grid().lay(isa, x, room);
            for block in 0..blocks {
                let part = cells * block / blocks..cells * (block + 1) / blocks;
                self.gradients(isa, &dy[outputs.start * area..], outputs.len(), part.clone(), panel);
                for strip_rows in strips(isa, rows.clone()) {
                    let starts = &offsets[strip_rows.clone()];
                    for (start, out) in starts.iter().zip(strip_room.chunks_mut(STRIP_ROW)) {
                        self.patches(isa, &room[*start..], part.clone(), &mut out[..part.len()]);
                    }
                    let strip = Strip::of_rows(starts.len(), part.len(), strip_room);
                    let c = target.c.wrapping_add(strip_rows.start * target.row + outputs.start);
                    let b = Panels::Packed { data: panel, depth: part.len(), from: 0 };
                    // SAFETY: rows and columns of the caller.
                    unsafe { strip.times(isa, b, outputs.len(), Target { c, write, ..*target }) };
                }
                write = Write::Add;
            }
        }
    }

    /// Some cells of a row of the patch matrix, whose run starts with `grid`.
    fn patches(&self, isa: Have, grid: &[f32], part: Range<usize>, out: &mut [f32]) {
        if self.at_pitch {
            return out.copy_from_slice(&grid[part]);
        }
        gather(isa, self.on_grid, part.start, grid, out);
    }

    /// The gradients of some cells of some outputs, cells across.
    fn gradients(&self, isa: Have, dy: &[f32], outputs: usize, part: Range<usize>, panel: &mut [f32]) {
        let (area, width) = (volume(self.sweep.size), Size::of(isa).columns);
        if !self.at_pitch {
            return transpose(isa, &dy[part.start..], area, outputs, part.len(), panel, width);
        }
        let mut done = part.start;
        let mut clear = |panel: &mut [f32], cells: &Range<usize>| {
            panel[(done - part.start) * width..(cells.start - part.start) * width].fill(0.0);
            done = cells.end;
        };
        for (line, column, cells) in self.cells.segments(part.clone()) {
            clear(panel, &cells);
            let from = &dy[line * self.cells.width + column..];
            let to = &mut panel[(cells.start - part.start) * width..];
            transpose(isa, from, area, outputs, cells.len(), to, width);
        }
        clear(panel, &(part.end..part.end));
    }
}

on_every_isa! {
    /// Copies cells from the `first` on from rows that lie apart.
    fn gather(rows: Lines, first: usize, grid: &[f32], out: &mut [f32]) {
        let (mut column, mut left) = (first % rows.width, out);
        for start in rows.starts(first / rows.width..rows.count()) {
            let len = (rows.width - column).min(left.len());
            let (to, rest) = left.split_at_mut(len);
            copy_run(&grid[start + column..][..len], to);
            (column, left) = (0, rest);
            if left.is_empty() {
                break;
            }
        }
    }
}
