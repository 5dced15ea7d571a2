//! How an image is laid out so that each row of its patch matrix is one run, for any stride.
//!
//! A *grid* is an image with its zeros around it. Where windows step by more than one, its cells are sorted by phase: those
//! whose place along an axis leaves the same rest lie together, so that neighbouring windows meet neighbouring cells. An
//! image of fewer dimensions has 1 along the first ones.
//!
//! A *sweep* slides the kernel over a grid one cell at a time. A forward pass is one sweep. In the gradient of an input,
//! elements of different phases meet different taps of the kernel: each phase is a sweep of its own, over the same grid.
//!
//! This file does not know what is summed.

use crate::cpu::isa::{Have, on_every_isa};
use crate::cpu::product::tile::{K_BLOCK, MOST_COLUMNS};
use crate::device::Conv3dShape;
use std::ops::Range;

/// The most elements of a result whose image counts as small: a group of images must stay in the second-level cache.
const SMALL: usize = 256;

/// Depth, height and width.
pub(super) type Axes = [usize; 3];

/// Something for each axis.
fn axes(f: impl Fn(usize) -> usize) -> Axes {
    [0, 1, 2].map(f)
}

/// The elements of a box.
pub(super) fn volume(sides: Axes) -> usize {
    sides.iter().product()
}

/// Phase and cell of a place along an axis.
#[inline(always)]
fn phase_and_cell(place: usize, stride: usize) -> (usize, usize) {
    // A division costs as much as copying a short row.
    match stride {
        1 => (0, place),
        2 => (place & 1, place >> 1),
        _ => (place % stride, place / stride),
    }
}

/// `n / of`, rounded up.
#[inline(always)]
fn parts(n: usize, of: usize) -> usize {
    phase_and_cell(n + of - 1, of).1
}

/// An image with zeros around it. See the file's comment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    /// Images that lie between each other: a cell has an element of each.
    lanes: usize,
    channels: usize,
    /// Sides of an image.
    source: Axes,
    /// Zeros in front of it.
    lead: Axes,
    /// Places from one cell of a phase to the next.
    stride: Axes,
    /// The phases that are kept: a window narrower than its step never meets the others.
    phases: Axes,
    /// Cells of a phase.
    size: Axes,
}

impl Grid {
    /// Images that lie between each other.
    pub(super) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Elements of the images.
    pub(super) fn source_len(&self) -> usize {
        self.lanes * self.channels * volume(self.source)
    }

    /// Elements of the grid, with room for a tile that reads past its end.
    pub(super) fn len(&self) -> usize {
        self.channels * self.channel_len() + MOST_COLUMNS
    }

    fn channel_len(&self) -> usize {
        self.lanes * volume(self.phases) * volume(self.size)
    }

    /// Where the cell at this place of a channel lies.
    #[inline(always)]
    fn at(&self, place: Axes) -> usize {
        let (mut phase, mut cell) = (0, 0);
        for (d, place) in place.into_iter().enumerate() {
            let (p, c) = phase_and_cell(place, self.stride[d]);
            phase = phase * self.phases[d] + p;
            cell = cell * self.size[d] + c;
        }
        (phase * volume(self.size) + cell) * self.lanes
    }

    /// How a box of cells of one phase lies.
    #[inline(always)]
    fn lines(&self, [depth, height, width]: Axes) -> Lines {
        let [_, rows, row] = self.size.map(|side| side * self.lanes);
        Lines { depth, height, width: width * self.lanes, row, slice: rows * self.size[2] }
    }

    /// The elements of the image in a phase of an axis.
    #[inline(always)]
    fn run(&self, d: usize, phase: usize) -> Run {
        let (lead, stride) = (self.lead[d], self.stride[d]);
        let cell = parts(lead.saturating_sub(phase), stride);
        let first = cell * stride + phase - lead;
        let count = parts(self.source[d].saturating_sub(first), stride);
        Run { first, cell, count: count.min(self.size[d].saturating_sub(cell)) }
    }

    /// Whether it is of one phase that has room for all of the image.
    fn is_whole(&self) -> bool {
        self.stride == [1; 3] && (0..3).all(|d| self.lead[d] + self.source[d] <= self.size[d])
    }

    /// Copies an image into its grid, whose other cells are zero already.
    pub(super) fn lay(&self, isa: Have, image: &[f32], grid: &mut [f32]) {
        match self.is_whole() {
            true if self.source == self.size => grid[..image.len()].copy_from_slice(image),
            true => lay_whole_rows(isa, self, image, grid),
            false => lay_rows(isa, self, image, grid),
        }
    }
}

on_every_isa! {
    /// Copies an image into a whole grid.
    fn lay_whole_rows(grid: &Grid, image: &[f32], to: &mut [f32]) {
        let lines = grid.lines(grid.source);
        let first = grid.at(grid.lead);
        let channels = to.chunks_exact_mut(grid.channel_len());
        for (to, image) in channels.zip(image.chunks_exact(grid.lanes * volume(grid.source))) {
            for (start, line) in lines.starts(0..lines.count()).zip(image.chunks_exact(lines.width)) {
                copy_run(line, &mut to[first + start..][..lines.width]);
            }
        }
    }
}

on_every_isa! {
    /// Copies an image slice by slice, the rows of each phase by phase.
    fn lay_rows(grid: &Grid, image: &[f32], to: &mut [f32]) {
        let [_, height, width] = grid.source;
        let [slices, lines, row] = grid.size;
        let [deep, down, across] = grid.stride;
        let (rest, first) = phase_and_cell(grid.lead[2], across);
        let phase_len = volume(grid.size);
        let channels = to.chunks_exact_mut(grid.channel_len());
        for (to, image) in channels.zip(image.chunks_exact(volume(grid.source))) {
            for (z, slice) in (grid.lead[0]..).zip(image.chunks_exact(height * width)) {
                let (phase, cell) = phase_and_cell(z, deep);
                if phase >= grid.phases[0] || cell >= slices {
                    continue;
                }
                for i in 0..grid.phases[1] {
                    let y = grid.run(1, i);
                    let rows = slice.chunks_exact(width).skip(y.first).step_by(down).take(y.count);
                    let start = (phase * grid.phases[1] + i) * grid.phases[2] * phase_len;
                    let to = &mut to[start + (cell * lines + y.cell) * row..];
                    if across == 2 && grid.phases[2] == 2 {
                        for (line, from) in rows.enumerate() {
                            let (even, odd) = to[line * row..].split_at_mut(phase_len);
                            // A window of two places or more meets the first element.
                            match rest {
                                0 => deal(from, &mut even[first..row], &mut odd[first..row]),
                                _ => deal(from, &mut odd[first..row], &mut even[first + 1..row]),
                            }
                        }
                        continue;
                    }
                    for i in 0..grid.phases[2] {
                        let x = grid.run(2, i);
                        for (line, from) in rows.clone().enumerate().filter(|_| x.count > 0) {
                            let start = i * phase_len + line * row + x.cell;
                            every(across, &from[x.first..], &mut to[start..][..x.count]);
                        }
                    }
                }
            }
        }
    }
}

/// Elements along an axis that are neighbours in a phase.
struct Run {
    /// The first of them, and its cell.
    first: usize,
    cell: usize,
    count: usize,
}

/// Deals elements out in turn, as far as both lists go.
#[inline(always)]
fn deal(from: &[f32], first: &mut [f32], second: &mut [f32]) {
    #[inline(always)]
    fn some<const LEN: usize>(from: &[[f32; 2]], first: &mut [f32], second: &mut [f32]) {
        let (from, mut dealt) = (&from[..LEN], [[0.0; LEN]; 2]);
        for i in 0..LEN {
            (dealt[0][i], dealt[1][i]) = (from[i][0], from[i][1]);
        }
        first[..LEN].copy_from_slice(&dealt[0]);
        second[..LEN].copy_from_slice(&dealt[1]);
    }
    // Whole vectors go through an array: of slices alone nobody knows that they do not overlap, and to ask costs as much as a
    // short row.
    let pairs = from.as_chunks::<2>().0;
    let len = pairs.len().min(second.len());
    let whole = len / 16 * 16;
    for i in (0..whole).step_by(16) {
        some::<16>(&pairs[i..], &mut first[i..], &mut second[i..]);
    }
    for i in whole..len {
        some::<1>(&pairs[i..], &mut first[i..], &mut second[i..]);
    }
    if let (Some(from), Some(to)) = (from.get(2 * len), first.get_mut(len)) {
        *to = *from;
    }
}

/// Copies every `step`th element, as far as both go.
#[inline(always)]
fn every(step: usize, from: &[f32], to: &mut [f32]) {
    match step {
        1 => {
            let len = from.len().min(to.len());
            copy_run(&from[..len], &mut to[..len]);
        }
        _ => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = *from),
    }
}

/// Copies a run of elements; short ones of the usual lengths without a call.
#[inline(always)]
pub(super) fn copy_run(from: &[f32], to: &mut [f32]) {
    #[inline(always)]
    fn exactly<const LEN: usize>(from: &[f32], to: &mut [f32]) {
        to[..LEN].copy_from_slice(&from[..LEN]);
    }
    match from.len() {
        4 => exactly::<4>(from, to),
        8 => exactly::<8>(from, to),
        16 => exactly::<16>(from, to),
        32 => exactly::<32>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// The taps of a kernel that a phase of the results meets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taps {
    /// How many along each axis.
    count: Axes,
    /// The place in the grid that the first result meets through the first of them.
    base: Axes,
    /// Where the first of them stands in the whole kernel, and how far it is from one to the next.
    first: Axes,
    apart: Axes,
    /// Sides of the whole kernel.
    kernel: Axes,
}

impl Taps {
    /// Taps of a channel.
    pub(super) fn len(&self) -> usize {
        volume(self.count)
    }

    /// Calls `f` with each tap's numbers along the axes, in order.
    fn each(&self, mut f: impl FnMut(Axes)) {
        let [depth, height, width] = self.count;
        for z in 0..depth {
            for y in 0..height {
                (0..width).for_each(|x| f([z, y, x]));
            }
        }
    }

    /// The place of a tap in the whole kernel.
    fn place(&self, tap: Axes) -> usize {
        let at = axes(|d| self.first[d] + tap[d] * self.apart[d]);
        (at[0] * self.kernel[1] + at[1]) * self.kernel[2] + at[2]
    }

    /// Writes where each row of the patch matrix starts: channels, then taps.
    pub(super) fn starts(&self, grid: &Grid, starts: &mut Vec<usize>) {
        for channel in 0..grid.channels {
            let start = channel * grid.channel_len();
            self.each(|tap| starts.push(start + grid.at(axes(|d| self.base[d] + tap[d]))));
        }
    }

    /// The terms of each block of a sum. A block ends where one of the whole kernel does, so that a sum over some taps has
    /// the bits of the sum over all of them with zeros in between.
    pub(super) fn blocks(self, channels: usize) -> impl Iterator<Item = Range<usize>> {
        let whole = volume(self.kernel);
        let before = move |term: usize| {
            if whole == self.len() {
                return term;
            }
            let (channel, rest) = (term / whole, term % whole);
            let mut inside = 0;
            self.each(|tap| inside += usize::from(self.place(tap) < rest));
            channel * self.len() + inside
        };
        let all = channels * whole;
        let blocks = (0..all).step_by(K_BLOCK);
        let blocks = blocks.map(move |from| before(from)..before((from + K_BLOCK).min(all)));
        blocks.filter(|block| !block.is_empty())
    }

    /// Writes the kernels of one output and channel, `turned` around, as these taps see them.
    pub(super) fn turn(&self, kernel: &[f32], turned: &mut [f32]) {
        let mut turned = turned.iter_mut();
        self.each(|tap| {
            if let Some(to) = turned.next() {
                *to = kernel[kernel.len() - 1 - self.place(tap)];
            }
        });
    }
}

/// Which way values go.
#[derive(Clone, Copy, Debug)]
enum Way {
    Forward,
    /// From outputs to inputs, which have this padding.
    Backward(Axes),
}

/// A kernel that slides over a grid. See the file's comment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    pub(super) grid: Grid,
    /// Sides of the result.
    pub(super) size: Axes,
    /// Elements of the result from one of a phase to the next.
    pub(super) apart: Axes,
    kernel: Axes,
    way: Way,
}

impl Sweep {
    /// From inputs to outputs.
    pub(super) fn forward(shape: &Conv3dShape) -> Self {
        let Conv3dShape { kernel, stride, .. } = *shape;
        let size = shape.output_size();
        let grid = Grid {
            lanes: 1,
            channels: shape.channels,
            source: shape.size,
            lead: shape.padding,
            stride,
            phases: axes(|d| stride[d].min(kernel[d])),
            size: axes(|d| size[d] + (kernel[d] - 1) / stride[d]),
        };
        Self { grid, size, apart: [1; 3], kernel, way: Way::Forward }
    }

    /// From the gradient of outputs to that of inputs.
    pub(super) fn backward(shape: &Conv3dShape) -> Self {
        let Conv3dShape { size, kernel, stride, padding, .. } = *shape;
        let of_phases = |d: usize, f: &dyn Fn(usize) -> usize| {
            (0..stride[d].min(size[d])).map(f).max().expect("an image has a first row")
        };
        let lead = axes(|d| {
            of_phases(d, &|f| {
                let [count, shift] = met(f, kernel[d], stride[d], padding[d]);
                count.saturating_sub(1 + shift)
            })
        });
        let grid = Grid {
            lanes: 1,
            channels: shape.outputs,
            source: shape.output_size(),
            lead,
            stride: [1; 3],
            phases: [1; 3],
            size: axes(|d| {
                of_phases(d, &|f| lead[d] + (f + padding[d]) / stride[d] + (size[d] - f).div_ceil(stride[d]))
            }),
        };
        Self { grid, size, apart: stride, kernel, way: Way::Backward(padding) }
    }

    /// The same for so many images at once, which lie between each other.
    pub(super) fn of_images(self, lanes: usize) -> Self {
        Self { grid: Grid { lanes, ..self.grid }, ..self }
    }

    /// Whether so little of what is computed at the pitch of its grid means something that several images should be taken
    /// at once.
    pub(super) fn is_small(&self) -> bool {
        let (lines, useful) = (self.on_grid([0; 3]), volume(self.size));
        let columns = lines.cells(0..lines.count()).len().next_multiple_of(MOST_COLUMNS / 2);
        self.grid.is_whole() && self.apart == [1; 3] && useful <= SMALL && useful * 20 < columns * 17
    }

    /// The same with the channels of an image between each other instead.
    pub(super) fn of_cells(self) -> Self {
        Self { grid: Grid { lanes: self.grid.channels, channels: 1, ..self.grid }, ..self }
    }

    /// Elements of the result of one output.
    pub(super) fn result_len(&self) -> usize {
        self.grid.lanes * volume(self.size)
    }

    /// Elements of the result in this phase.
    pub(super) fn cells(&self, phase: Axes) -> Axes {
        axes(|d| parts(self.size[d].saturating_sub(phase[d]), self.apart[d]))
    }

    /// The taps that this phase of the result meets.
    pub(super) fn taps(&self, phase: Axes) -> Taps {
        let (kernel, stride) = (self.kernel, self.apart);
        let Way::Backward(padding) = self.way else {
            return Taps { count: kernel, base: [0; 3], first: [0; 3], apart: [1; 3], kernel };
        };
        let of = |d: usize| met(phase[d], kernel[d], stride[d], padding[d]);
        // Turned around, the last of these taps is the first.
        let last = |d: usize| {
            phase_and_cell(phase[d] + padding[d], stride[d]).0 + stride[d] * of(d)[0].saturating_sub(1)
        };
        Taps {
            count: axes(|d| of(d)[0]),
            base: axes(|d| (of(d)[1] + self.grid.lead[d] + 1).saturating_sub(of(d)[0])),
            first: axes(|d| (kernel[d] - 1).saturating_sub(last(d))),
            apart: stride,
            kernel,
        }
    }

    /// Where the rows of a phase go in the result; from its first element on.
    pub(super) fn in_result(&self, phase: Axes) -> (Lines, usize) {
        let [depth, height, _] = self.cells(phase);
        let [_, rows, width] = self.size;
        let width = width * self.grid.lanes;
        let (slice, row) = (self.apart[0] * rows * width, self.apart[1] * width);
        (Lines { depth, height, width, row, slice }, (phase[0] * rows + phase[1]) * width)
    }

    /// How the results of a phase lie on the grid.
    pub(super) fn on_grid(&self, phase: Axes) -> Lines {
        self.grid.lines(self.cells(phase))
    }
}

/// Of an axis: how many taps a phase of the input meets, and how far the output that the first of them reaches is ahead.
fn met(phase: usize, kernel: usize, stride: usize, padding: usize) -> [usize; 2] {
    let (first, ahead) = phase_and_cell(phase + padding, stride);
    [parts(kernel.saturating_sub(first), stride), ahead]
}

/// Rows of results, and where each starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    depth: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    /// Elements from one row to the next, and from one slice to the next.
    pub(super) row: usize,
    slice: usize,
}

impl Lines {
    /// Rows without gaps between them.
    pub(super) fn dense([depth, height, width]: Axes) -> Self {
        Self { depth, height, width, row: width, slice: height * width }
    }

    /// How many rows there are.
    pub(super) fn count(&self) -> usize {
        self.depth * self.height
    }

    /// Where a row starts.
    pub(super) fn start(&self, line: usize) -> usize {
        line / self.height * self.slice + line % self.height * self.row
    }

    /// Where some rows start, one after another.
    #[inline(always)]
    pub(super) fn starts(self, lines: Range<usize>) -> impl Iterator<Item = usize> {
        // Rows are short: a division for each would cost as much as what is done with it.
        let (mut row, mut start) = (lines.start % self.height, self.start(lines.start));
        lines.map(move |_| {
            let this = start;
            (row, start) = (row + 1, start + self.row);
            if row == self.height {
                (row, start) = (0, start + self.slice - self.height * self.row);
            }
            this
        })
    }

    /// From the first element of the first to the last of the last.
    pub(super) fn cells(&self, lines: Range<usize>) -> Range<usize> {
        self.start(lines.start)..self.start(lines.end - 1) + self.width
    }

    /// The parts of rows that lie in `part`: the row, its first column, and where that is.
    pub(super) fn segments(self, part: Range<usize>) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
        let slice = part.start / self.slice;
        let row = (part.start % self.slice / self.row).min(self.height);
        let lines = slice * self.height + row..self.count();
        let lines = lines.clone().zip(self.starts(lines));
        let end = part.end;
        lines.take_while(move |(_, start)| *start < end).filter_map(move |(line, start)| {
            let cells = start.max(part.start)..(start + self.width).min(part.end);
            (!cells.is_empty()).then(|| (line, cells.start - start, cells))
        })
    }
}
