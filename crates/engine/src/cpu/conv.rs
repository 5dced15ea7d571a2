//! Convolutions as products whose operand is the image itself.
//!
//! An image is copied once with its padding into a *grid*. For stride 1 the output is computed at the pitch of the
//! grid, `[oh, grid width]`, a few columns of which mean nothing: then each row of the patch matrix (one for each
//! channel and place in the kernel) is a contiguous run of the grid, and nothing is packed. For other strides patches
//! are gathered. The gradient of the input is the convolution of the (spread and padded) gradient of the output with
//! the turned kernel. The gradient of the weights sums over the cells of one image after another.
//!
//! *Order*: `y` and `dx`: channel, kernel row, kernel column, in blocks of 512. `dw`: images in order, each its cells in
//! blocks of at most 512; a cell without meaning adds a product with zero. `db`: a sum for each image, in order.
//!
//! This file does not know batch norm or pooling.

use super::isa::{Have, on_every_isa};
use super::math::sum;
use super::pool::{Cut, Pool, Workspace};
use super::product::tile::{Form, K_BLOCK, MOST_COLUMNS, MOST_ROWS, STRIP_ROW, Size};
use super::product::{Panels, Strip, TERMS, Target, finish_row, pack, strips, transpose::transpose};
use crate::device::{Activation, Conv2d, Write};
use std::ops::Range;

/// An image with zeros around it, and how windows move over it.
#[derive(Clone, Copy)]
struct Grid {
    channels: usize,
    /// Height and width of the source.
    source: [usize; 2],
    /// Cells of the grid from one source row or column to the next.
    spread: [usize; 2],
    /// Where the first element of the source lies.
    corner: [usize; 2],
    /// Height and width of the grid.
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    out: [usize; 2],
}

impl Grid {
    /// The grid of a forward pass.
    fn forward(shape: &Conv2d) -> Self {
        Self {
            channels: shape.channels,
            source: shape.size,
            spread: [1, 1],
            corner: shape.padding,
            size: [0, 1].map(|d| shape.size[d] + 2 * shape.padding[d]),
            kernel: shape.kernel,
            stride: shape.stride,
            out: shape.output_size(),
        }
    }

    /// The grid in which the gradient of the input is a convolution of stride 1.
    fn backward(shape: &Conv2d) -> Self {
        for d in [0, 1] {
            assert!(shape.padding[d] < shape.kernel[d], "padding as wide as the kernel: {shape:?}");
        }
        Self {
            channels: shape.outputs,
            source: shape.output_size(),
            spread: shape.stride,
            corner: [0, 1].map(|d| shape.kernel[d] - 1 - shape.padding[d]),
            size: [0, 1].map(|d| shape.size[d] + shape.kernel[d] - 1),
            kernel: shape.kernel,
            stride: [1, 1],
            out: shape.size,
        }
    }

    /// Whether patches are runs of the grid.
    fn is_wide(&self) -> bool {
        self.stride == [1, 1]
    }

    /// Cells from one row of outputs to the next.
    fn pitch(&self) -> usize {
        if self.is_wide() { self.size[1] } else { self.out[1] }
    }

    /// Columns of the patch matrix.
    fn cells(&self) -> usize {
        (self.out[0] - 1) * self.pitch() + self.out[1]
    }

    /// Rows of the patch matrix.
    fn terms(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Elements of the grid, with room for a tile that reads past its end.
    fn len(&self) -> usize {
        self.channels * self.size[0] * self.size[1] + MOST_COLUMNS
    }

    /// Where row `term` of the patch matrix starts.
    fn offset(&self, term: usize) -> usize {
        let [kernel_height, kernel_width] = self.kernel;
        let (channel, place) = (term / (kernel_height * kernel_width), term % (kernel_height * kernel_width));
        (channel * self.size[0] + place / kernel_width) * self.size[1] + place % kernel_width
    }

    /// Copies an image into its grid. Zeros are written too: the buffer may hold anything.
    fn lay(&self, image: &[f32], grid: &mut [f32]) {
        let [height, width] = self.source;
        if self.source == self.size {
            let (inside, slack) = grid.split_at_mut(image.len());
            inside.copy_from_slice(image);
            return slack.fill(0.0);
        }
        grid.fill(0.0);
        for (row, x) in image.chunks_exact(width).enumerate() {
            let (channel, y) = (row / height, row % height);
            let start = (channel * self.size[0] + self.corner[0] + y * self.spread[0]) * self.size[1]
                + self.corner[1];
            if self.spread[1] == 1 {
                grid[start..start + width].copy_from_slice(x);
            } else {
                for (x, cell) in x.iter().zip(grid[start..].iter_mut().step_by(self.spread[1])) {
                    *cell = *x;
                }
            }
        }
    }

    /// Some cells of row `term` of the patch matrix.
    fn patches(&self, grid: &[f32], term: usize, cells: Range<usize>, out: &mut [f32]) {
        let from = self.offset(term);
        if self.is_wide() {
            return out.copy_from_slice(&grid[from + cells.start..from + cells.end]);
        }
        let pitch = self.pitch();
        for (out, cell) in out.iter_mut().zip(cells) {
            *out = grid[from + cell / pitch * self.stride[0] * self.size[1] + cell % pitch * self.stride[1]];
        }
    }
}

/// What becomes of the sums of a convolution.
#[derive(Clone, Copy)]
pub(super) struct Finish<'a> {
    /// One for each output channel, or empty.
    pub(super) bias: &'a [f32],
    /// Applied last.
    pub(super) activation: Activation,
}

/// Elements of scratch for any of the three operations: the kernel turned, or the sums of its gradient.
pub(super) fn scratch(shape: &Conv2d) -> usize {
    shape.outputs * shape.channels * shape.kernel[0] * shape.kernel[1]
}

/// `y = act(x * w + bias)`.
pub(super) fn forward(
    isa: Have,
    pool: &Pool,
    shape: &Conv2d,
    x: &[f32],
    w: &[f32],
    finish: Finish<'_>,
    y: &mut [f32],
) {
    convolve(isa, pool, Grid::forward(shape), shape.images, shape.outputs, x, w, finish, y);
}

/// `dx`.
pub(super) fn input_gradient(
    isa: Have,
    pool: &Pool,
    shape: &Conv2d,
    w: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    turned: &mut [f32],
) {
    let area = shape.kernel[0] * shape.kernel[1];
    let turned = &mut turned[..shape.outputs * shape.channels * area];
    for (i, kernel) in turned.chunks_exact_mut(area).enumerate() {
        let (channel, output) = (i / shape.outputs, i % shape.outputs);
        let source = &w[(output * shape.channels + channel) * area..][..area];
        for (to, from) in kernel.iter_mut().zip(source.iter().rev()) {
            *to = *from;
        }
    }
    let finish = Finish { bias: &[], activation: Activation::None };
    convolve(isa, pool, Grid::backward(shape), shape.images, shape.channels, dy, turned, finish, dx);
}

/// One image a task.
#[allow(clippy::too_many_arguments)]
fn convolve(
    isa: Have,
    pool: &Pool,
    grid: Grid,
    images: usize,
    outputs: usize,
    x: &[f32],
    w: &[f32],
    finish: Finish<'_>,
    y: &mut [f32],
) {
    let per_image = grid.channels * grid.source[0] * grid.source[1];
    let each = outputs * grid.out[0] * grid.out[1];
    let work = y.len() * grid.terms() / TERMS;
    pool.run(work, images, [Cut::new(y, each)], |image, [y], workspace| {
        let Workspace { a, b, image: room, rest, offsets } = workspace;
        let room = room.take(grid.len());
        grid.lay(&x[image * per_image..][..per_image], room);
        let kept = rest.take(MOST_ROWS * grid.cells());
        let strip_room = a.take(MOST_ROWS * STRIP_ROW);
        let cells = grid.cells();
        let packed = if grid.is_wide() { &[][..] } else { gather(isa, &grid, room, b) };
        offsets.clear();
        offsets.extend((0..grid.terms()).map(|term| grid.offset(term)));
        for rows in strips(isa, 0..outputs) {
            let mut write = Write::Set;
            for from in (0..grid.terms()).step_by(K_BLOCK) {
                let k = K_BLOCK.min(grid.terms() - from);
                for (row, out) in rows.clone().zip(strip_room.chunks_mut(STRIP_ROW)) {
                    out[..k].copy_from_slice(&w[row * grid.terms() + from..][..k]);
                }
                let strip = Strip { form: Form::Strip, rows: rows.len(), k, a: strip_room };
                let panels = if grid.is_wide() {
                    Panels::Rows { data: room, offsets: &offsets[from..] }
                } else {
                    Panels::Packed { data: packed, depth: grid.terms(), from }
                };
                let target = Target { c: kept.as_mut_ptr(), row: cells, column: 1, write };
                // SAFETY: `kept` has room for as many rows of cells as a strip has.
                unsafe { strip.times(isa, panels, cells, target) };
                write = Write::Add;
            }
            for (row, kept) in rows.zip(kept.chunks_exact(cells)) {
                let bias = finish.bias.get(row).copied().unwrap_or(-0.0);
                let y = &mut y[row * grid.out[0] * grid.out[1]..][..grid.out[0] * grid.out[1]];
                settle(isa, &grid, kept, bias, finish.activation, y);
            }
        }
    });
}

/// All patches of an image, in panels.
fn gather<'a>(isa: Have, grid: &Grid, laid: &[f32], room: &'a mut super::pool::Buffer) -> &'a [f32] {
    let width = Size::of(isa).columns;
    let (terms, cells) = (grid.terms(), grid.cells());
    let room = room.take(pack::panels_len(isa, terms, cells));
    for (panel, out) in room.chunks_exact_mut(width * terms).enumerate() {
        let cells = panel * width..((panel + 1) * width).min(cells);
        for (term, out) in out.chunks_exact_mut(width).enumerate() {
            let (out, padding) = out.split_at_mut(cells.len());
            grid.patches(laid, term, cells.clone(), out);
            padding.fill(0.0);
        }
    }
    room
}

on_every_isa! {
    /// Takes the cells that mean something, adds the bias (-0 for none, which changes nothing) and activates.
    fn settle(grid: &Grid, kept: &[f32], bias: f32, activation: Activation, y: &mut [f32]) {
        for (y, kept) in y.chunks_exact_mut(grid.out[1]).zip(kept.chunks(grid.pitch())) {
            for (y, &sum) in y.iter_mut().zip(kept) {
                *y = sum + bias;
            }
            finish_row(y, &[], activation);
        }
    }
}

/// `dw`.
pub(super) fn weight_gradient(
    isa: Have,
    pool: &Pool,
    shape: &Conv2d,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    sums: &mut [f32],
) {
    let grid = Grid::forward(shape);
    let (terms, outputs) = (grid.terms(), shape.outputs);
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
        // SAFETY: tasks differ in their columns or their rows of `sums`.
        unsafe { sum_of_images(isa, shape, &grid, x, dy, rows, columns, target, workspace) };
    });
    transpose(isa, sums, outputs, terms, outputs, dw, terms);
}

/// Rows `rows` and columns `outputs` of the gradient, over all images.
///
/// SAFETY: these elements of the target are the caller's.
#[allow(clippy::too_many_arguments)]
unsafe fn sum_of_images(
    isa: Have,
    shape: &Conv2d,
    grid: &Grid,
    x: &[f32],
    dy: &[f32],
    rows: Range<usize>,
    outputs: Range<usize>,
    target: Target,
    workspace: &mut Workspace,
) {
    let per_image = shape.channels * shape.size[0] * shape.size[1];
    let per_output = grid.out[0] * grid.out[1];
    let cells = grid.cells();
    let blocks = cells.div_ceil(K_BLOCK);
    let Workspace { a, b, image: room, .. } = workspace;
    let strip_room = a.take(MOST_ROWS * STRIP_ROW);
    let room = room.take(grid.len());
    let width = Size::of(isa).columns;
    let panel = b.take(width * cells);
    // Cells without meaning keep these zeros.
    panel.fill(0.0);
    let mut write = Write::Set;
    for (image, dy) in dy.chunks_exact(shape.outputs * per_output).take(shape.images).enumerate() {
        grid.lay(&x[image * per_image..][..per_image], room);
        let dy = &dy[outputs.start * per_output..];
        for row in 0..grid.out[0] {
            let to = &mut panel[row * grid.pitch() * width..];
            transpose(isa, &dy[row * grid.out[1]..], per_output, outputs.len(), grid.out[1], to, width);
        }
        for block in 0..blocks {
            let part = cells * block / blocks..cells * (block + 1) / blocks;
            for strip_rows in strips(isa, rows.clone()) {
                for (term, out) in strip_rows.clone().zip(strip_room.chunks_mut(STRIP_ROW)) {
                    grid.patches(room, term, part.clone(), &mut out[..part.len()]);
                }
                let strip = Strip { form: Form::Strip, rows: strip_rows.len(), k: part.len(), a: strip_room };
                let c = target.c.wrapping_add(strip_rows.start * target.row + outputs.start);
                let b = Panels::Packed { data: panel, depth: cells, from: part.start };
                // SAFETY: rows and columns of the caller.
                unsafe { strip.times(isa, b, outputs.len(), Target { c, write, ..target }) };
            }
            write = Write::Add;
        }
    }
}

/// `db`: for each output, sums of its planes, images in order.
pub(super) fn bias_gradient(isa: Have, pool: &Pool, shape: &Conv2d, dy: &[f32], db: &mut [f32]) {
    let [height, width] = shape.output_size();
    let each = 8;
    pool.run(dy.len(), db.len().div_ceil(each), [Cut::new(db, each)], |task, [db], _| {
        for (i, db) in db.iter_mut().enumerate() {
            *db = plane_sums(isa, shape.outputs, task * each + i, height * width, dy);
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
