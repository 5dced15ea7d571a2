//! Convolutions of images with kernels of 3 x 3 that step by one, in four ninths of the multiplications.
//!
//! An output is cut into tiles of 2 x 2. Each is made of a patch of 4 x 4 of the input: patch and kernel are transformed,
//! multiplied place by place, summed over channels, and transformed back. Each of the sixteen places is one matrix product over
//! many tiles. The gradient of the input is the same with the kernel turned, that of the weights the same transforms the other way
//! round. Images are transposed before and after, so that the channels of a cell lie together: then a transform never meets its
//! neighbours' lanes, whatever the sides of an image.
//!
//! *Order*: transforms as they are written here; products: channels in order, in blocks of 512; the gradient of the weights:
//! images in order, their tiles in blocks that follow from the shape.
//!
//! *Source*: F(2 x 2, 3 x 3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015.
//!
//! This file does not know what a convolution is for.

use crate::cpu::isa::{Have, on_every_isa};
use crate::cpu::pool::{Buffer, Cut, Pool, Workspace};
use crate::cpu::product::{Finish, TERMS, Target, multiply, tile::Size, transpose::transpose};
use crate::device::{Activation, Conv3dShape, Strides, Write};
use std::array::from_fn;
use std::ops::Range;

/// Places of a patch, each of which is a matrix product.
const PLACES: usize = 16;
/// Places of a kernel.
const TAPS: usize = 9;
/// The least channels, in and out: below, transforms cost more than they save.
const LEAST: usize = 32;
/// Tiles that are computed at once, about: what belongs to one place of them stays in the second-level cache.
const TILES: usize = 128;
/// Channels that a transform takes at once.
const LANES: usize = 16;
/// The widest panel of any instruction set.
const WIDEST: usize = 32;

type Lanes = [f32; LANES];

/// A convolution in tiles.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    images: usize,
    channels: usize,
    outputs: usize,
    /// Height and width of what is given, and of the result.
    size: [usize; 2],
    result: [usize; 2],
    padding: [usize; 2],
}

impl Tiles {
    /// Nothing for other kernels, for steps, and for shapes that gain nothing by it.
    pub(super) fn of(shape: &Conv3dShape) -> Option<Self> {
        let (images, result) = (shape.flat()?, shape.flat()?.output_size());
        let (channels, outputs) = (shape.channels, shape.outputs);
        let many = [channels, outputs].iter().all(|n| *n >= LEAST && n.is_multiple_of(LANES));
        let fits =
            [images.kernel, images.stride] == [[3; 2], [1; 2]] && images.padding.iter().all(|p| *p <= 2);
        let tiles = Self {
            images: shape.images,
            channels,
            outputs,
            size: images.size,
            result,
            padding: images.padding,
        };
        // Tiles at the edges are computed whole: in spite of them a third of the multiplications is to be saved, in both
        // directions.
        let saves = |tiles: Self| 3 * PLACES * tiles.of_image() <= 2 * TAPS * tiles.area();
        (many && fits && saves(tiles) && saves(tiles.turned())).then_some(tiles)
    }

    /// The convolution that makes the gradient of the input of that of the output.
    fn turned(self) -> Self {
        let Self { channels, outputs, size, result, padding, .. } = self;
        Self {
            channels: outputs,
            outputs: channels,
            size: result,
            result: size,
            padding: padding.map(|zeros| 2 - zeros),
            ..self
        }
    }

    /// Rows of tiles of an image, and tiles of a row.
    fn grid(self) -> [usize; 2] {
        self.result.map(|side| side.div_ceil(2))
    }

    /// Tiles of an image.
    fn of_image(self) -> usize {
        self.grid().iter().product()
    }

    /// Elements of a plane of the result.
    fn area(self) -> usize {
        self.result.iter().product()
    }

    /// Elements that are given to an image and made of it.
    fn lens(self) -> [usize; 2] {
        [self.channels * self.size.iter().product::<usize>(), self.outputs * self.area()]
    }

    /// Elements of scratch for any of the three operations.
    pub(super) fn scratch(self) -> usize {
        let [c, o] = [self.channels, self.outputs];
        PLACES * (c * o.next_multiple_of(WIDEST)).max(o * c.next_multiple_of(WIDEST))
    }

    /// Images that are computed at once, and how many rows of tiles of each. With several images these are all rows.
    fn at_once(self) -> [usize; 2] {
        let [rows, columns] = self.grid();
        [(TILES / self.of_image()).max(1), (TILES / columns).clamp(1, rows)]
    }

    /// The rows that are computed one after another.
    fn parts(self) -> impl Iterator<Item = Range<usize>> {
        let ([rows, _], [_, at_once]) = (self.grid(), self.at_once());
        (0..rows).step_by(at_once).map(move |first| first..(first + at_once).min(rows))
    }

    fn work(self) -> usize {
        self.images * self.of_image() * PLACES * self.channels * self.outputs / TERMS
    }
}

/// `y = act(x * w + bias)`.
pub(super) fn forward(
    isa: Have,
    pool: &Pool,
    tiles: Tiles,
    [x, w]: [&[f32]; 2],
    finish: Finish<'_>,
    y: &mut [f32],
    kernels: &mut [f32],
) {
    let all = tiles.channels * TAPS;
    let rows = |channel: usize, outputs: Range<usize>, taps: &mut [f32]| {
        let w = &w[outputs.start * all + channel * TAPS..];
        transpose(isa, w, all, outputs.len(), TAPS, taps, WIDEST);
    };
    transform_kernels(isa, pool, [tiles.channels, tiles.outputs], rows, kernels);
    convolve(isa, pool, tiles, x, kernels, finish, y);
}

/// `dx`.
pub(super) fn input_gradient(
    isa: Have,
    pool: &Pool,
    tiles: Tiles,
    [w, dy]: [&[f32]; 2],
    dx: &mut [f32],
    kernels: &mut [f32],
) {
    let rows = |output: usize, channels: Range<usize>, taps: &mut [f32]| {
        let w = &w[(output * tiles.channels + channels.start) * TAPS..];
        transpose(isa, w, TAPS, channels.len(), TAPS, taps, WIDEST);
        // Turned around.
        for tap in 0..TAPS / 2 {
            let (first, last) = taps.split_at_mut((TAPS - 1 - tap) * WIDEST);
            first[tap * WIDEST..][..WIDEST].swap_with_slice(&mut last[..WIDEST]);
        }
    };
    transform_kernels(isa, pool, [tiles.outputs, tiles.channels], rows, kernels);
    convolve(isa, pool, tiles.turned(), dy, kernels, Finish::NONE, dx);
}

/// The kernels from `k` channels to `n`, transformed. For each panel of the `n` there are the sixteen places, and for each
/// of them `k` rows. `rows` brings the taps of one of the `k` and some of the `n`, one after another, [`WIDEST`] apart.
fn transform_kernels(
    isa: Have,
    pool: &Pool,
    [k, n]: [usize; 2],
    rows: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
    kernels: &mut [f32],
) {
    let width = Size::of(isa).columns;
    let panels = n.div_ceil(width);
    let kernels = &mut kernels[..panels * PLACES * k * width];
    pool.run(kernels.len(), panels, [Cut::new(kernels, PLACES * k * width)], |panel, [to], workspace| {
        let taps = workspace.rest.take(TAPS * WIDEST);
        let columns = panel * width..((panel + 1) * width).min(n);
        for row in 0..k {
            rows(row, columns.clone(), taps);
            transform_kernel(isa, taps, columns.len(), &mut to[row * width..], k * width);
        }
    });
}

/// A convolution whose kernels are transformed.
fn convolve(
    isa: Have,
    pool: &Pool,
    tiles: Tiles,
    x: &[f32],
    kernels: &[f32],
    finish: Finish<'_>,
    y: &mut [f32],
) {
    let Tiles { channels, outputs, .. } = tiles;
    let ([taken, made], [at_once, _]) = (tiles.lens(), tiles.at_once());
    let share = tiles.images.div_ceil(pool.threads()).next_multiple_of(at_once).max(1);
    let panel_row = Size::of(isa).columns;
    let cut = [Cut::new(y, made * share)];
    pool.run(tiles.work(), tiles.images.div_ceil(share), cut, |task, [y], workspace| {
        let Workspace { a, b, image: cells, rest, .. } = workspace;
        for (i, y) in y.chunks_mut(made * at_once).enumerate() {
            let x = &x[(task * share + i * at_once) * taken..][..y.len() / made * taken];
            for part in tiles.parts() {
                let each = part.len() * tiles.grid()[1];
                let count = y.len() / made * each;
                let (given, result) = (Layout::plain(count, channels), Layout::plain(count, outputs));
                let (patches, sums) = rest.take(given.len() + result.len()).split_at_mut(given.len());
                for (image, x) in x.chunks_exact(taken).enumerate() {
                    let to = &mut patches[given.at(image * each, 0)..];
                    lay_patches(isa, tiles, &part, x, cells, to, given);
                }
                for place in 0..PLACES {
                    let patches = &patches[place * given.place..];
                    let kernels = &kernels[place * channels * panel_row..];
                    let c = sums[place * result.place..][..count * outputs].as_mut_ptr();
                    let target = Target { c, row: outputs, column: 1, write: Write::Set };
                    let size = [count, outputs, channels];
                    let strides = Strides::rows(channels);
                    // SAFETY: the whole matrix of this place.
                    unsafe { multiply(isa, patches, strides, size, kernels, PLACES * channels, target, a) };
                }
                for (image, y) in y.chunks_exact_mut(made).enumerate() {
                    let sums = &sums[result.at(image * each, 0)..];
                    take_results(isa, tiles, &part, sums, result, finish, b, y);
                }
            }
        }
    });
}

/// `dw`. `sums` is room for what its transforms are summed in.
pub(super) fn weight_gradient(
    isa: Have,
    pool: &Pool,
    tiles: Tiles,
    [x, dy]: [&[f32]; 2],
    dw: &mut [f32],
    sums: &mut [f32],
) {
    let Tiles { channels, outputs, .. } = tiles;
    let ([taken, made], [at_once, _]) = (tiles.lens(), tiles.at_once());
    let panel_row = Size::of(isa).columns;
    // A task has some outputs, over all images.
    let share = outputs.div_ceil(pool.threads()).next_multiple_of(LANES);
    let cuts = [Cut::new(dw, share * channels * TAPS), Cut::new(sums, PLACES * share * channels)];
    pool.run(tiles.work(), outputs.div_ceil(share), cuts, |task, [dw, sums], workspace| {
        let Workspace { a, b, image: cells, rest, .. } = workspace;
        let (first, mine) = (task * share, share.min(outputs - task * share));
        let mut write = Write::Set;
        for (x, dy) in x.chunks(taken * at_once).zip(dy.chunks(made * at_once)) {
            for part in tiles.parts() {
                let each = part.len() * tiles.grid()[1];
                let count = x.len() / taken * each;
                let (given, gradient) = (Layout::panels(isa, count, channels), Layout::plain(count, mine));
                let (patches, gradients) = rest.take(given.len() + gradient.len()).split_at_mut(given.len());
                for (image, (x, dy)) in x.chunks_exact(taken).zip(dy.chunks_exact(made)).enumerate() {
                    let to = &mut patches[given.at(image * each, 0)..];
                    lay_patches(isa, tiles, &part, x, cells, to, given);
                    let to = &mut gradients[gradient.at(image * each, 0)..];
                    lay_gradients(isa, tiles, &part, &dy[first * tiles.area()..], mine, cells, to, gradient);
                }
                for place in 0..PLACES {
                    let patches = &patches[place * given.place..];
                    let gradients = &gradients[place * gradient.place..];
                    let c = sums[place * mine * channels..][..mine * channels].as_mut_ptr();
                    let target = Target { c, row: channels, column: 1, write };
                    let strides = Strides { row: 1, col: mine };
                    let (size, depth) = ([mine, channels, count], given.panel / panel_row);
                    // SAFETY: the whole matrix of this place.
                    unsafe { multiply(isa, gradients, strides, size, patches, depth, target, a) };
                }
                write = Write::Add;
            }
        }
        let taps = b.take(TAPS * channels);
        for (output, dw) in dw.chunks_exact_mut(channels * TAPS).enumerate() {
            untransform_kernel(isa, &sums[output * channels..], mine * channels, taps, channels);
            transpose(isa, taps, channels, TAPS, channels, dw, TAPS);
        }
    });
}

/// Where the sixteen matrices of some tiles lie: tiles down, channels across.
#[derive(Clone, Copy)]
struct Layout {
    /// Elements from one place to the next.
    place: usize,
    /// Elements from one tile to the next.
    tile: usize,
    /// Channels of a panel, and elements from one to the next.
    width: usize,
    panel: usize,
    panels: usize,
}

impl Layout {
    /// Whole rows.
    fn plain(tiles: usize, channels: usize) -> Self {
        // Not a power of two apart: places would fall into the same set of the cache.
        let place = tiles * channels + LANES;
        Self { place, tile: channels, width: channels, panel: PLACES * place, panels: 1 }
    }

    /// Panels of so many channels as this instruction set takes at once.
    fn panels(isa: Have, tiles: usize, channels: usize) -> Self {
        let width = Size::of(isa).columns;
        let place = (tiles + 1) * width;
        Self { place, tile: width, width, panel: PLACES * place, panels: channels.div_ceil(width) }
    }

    fn len(self) -> usize {
        self.panels * self.panel
    }

    /// Where a channel of a tile lies in the first place.
    #[inline(always)]
    fn at(self, tile: usize, channel: usize) -> usize {
        channel / self.width * self.panel + tile * self.tile + channel % self.width
    }
}

/// The transformed patches of some rows of tiles of an image.
#[allow(clippy::too_many_arguments)]
fn lay_patches(
    isa: Have,
    tiles: Tiles,
    part: &Range<usize>,
    x: &[f32],
    cells: &mut Buffer,
    to: &mut [f32],
    layout: Layout,
) {
    let Tiles { channels, size: [height, width], padding: [above, _], .. } = tiles;
    let from = |tile: usize| (2 * tile).saturating_sub(above);
    let rows = from(part.start)..from(part.end + 1).min(height);
    let len = rows.len() * width;
    let cells = cells.take((len + 1) * channels);
    transpose(isa, &x[rows.start * width..], height * width, channels, len, cells, channels);
    // A cell of zeros, for all that is outside.
    cells[len * channels..].fill(0.0);
    transform_patches(isa, tiles, part.clone(), cells, rows, to, layout);
}

/// The transformed gradients of some rows of tiles of an image: of so many outputs, whose planes start `dy`.
#[allow(clippy::too_many_arguments)]
fn lay_gradients(
    isa: Have,
    tiles: Tiles,
    part: &Range<usize>,
    dy: &[f32],
    outputs: usize,
    cells: &mut Buffer,
    to: &mut [f32],
    layout: Layout,
) {
    let [height, width] = tiles.result;
    let rows = 2 * part.start..(2 * part.end).min(height);
    let len = rows.len() * width;
    let cells = cells.take((len + 1) * outputs);
    transpose(isa, &dy[rows.start * width..], height * width, outputs, len, cells, outputs);
    cells[len * outputs..].fill(0.0);
    transform_gradients(isa, tiles, part.clone(), cells, outputs, rows, to, layout);
}

/// The results of some rows of tiles of an image.
#[allow(clippy::too_many_arguments)]
fn take_results(
    isa: Have,
    tiles: Tiles,
    part: &Range<usize>,
    sums: &[f32],
    layout: Layout,
    finish: Finish<'_>,
    cells: &mut Buffer,
    y: &mut [f32],
) {
    let (outputs, [height, width]) = (tiles.outputs, tiles.result);
    let rows = 2 * part.start..(2 * part.end).min(height);
    let len = rows.len() * width;
    let cells = cells.take(len * outputs);
    transform_sums(isa, tiles, part.clone(), sums, layout, finish, rows.clone(), cells);
    transpose(isa, cells, outputs, len, outputs, &mut y[rows.start * width..], height * width);
}

on_every_isa! {
    /// Patches of `cells`, which are rows `rows` of an image and a cell of zeros.
    fn transform_patches(
        tiles: Tiles,
        part: Range<usize>,
        cells: &[f32],
        rows: Range<usize>,
        to: &mut [f32],
        layout: Layout,
    ) {
        let Tiles { channels, size: [_, width], padding: [above, left], .. } = tiles;
        let columns = tiles.grid()[1];
        for (tile, (y, x)) in part.flat_map(|y| (0..columns).map(move |x| (y, x))).enumerate() {
            let at = |i: usize, j: usize| {
                let (y, x) = ((2 * y + i).wrapping_sub(above), (2 * x + j).wrapping_sub(left));
                let inside = rows.contains(&y) && x < width;
                channels * if inside { (y - rows.start) * width + x } else { rows.len() * width }
            };
            let places: [[usize; 4]; 4] = from_fn(|i| from_fn(|j| at(i, j)));
            for channel in (0..channels).step_by(LANES) {
                let patch = from_fn(|i| from_fn(|j| lanes(cells, places[i][j] + channel)));
                let to = &mut to[layout.at(tile, channel)..];
                for (place, made) in both(patch, of_patch).as_flattened().iter().enumerate() {
                    store(to, place * layout.place, made);
                }
            }
        }
    }
}

on_every_isa! {
    /// Tiles of `cells`, which are rows `rows` of the gradient of an image and a cell of zeros.
    fn transform_gradients(
        tiles: Tiles,
        part: Range<usize>,
        cells: &[f32],
        outputs: usize,
        rows: Range<usize>,
        to: &mut [f32],
        layout: Layout,
    ) {
        let (width, columns) = (tiles.result[1], tiles.grid()[1]);
        for (tile, (y, x)) in part.flat_map(|y| (0..columns).map(move |x| (y, x))).enumerate() {
            let at = |i: usize, j: usize| {
                let (y, x) = (2 * y + i, 2 * x + j);
                let inside = y < rows.end && x < width;
                outputs * if inside { (y - rows.start) * width + x } else { rows.len() * width }
            };
            let places: [[usize; 2]; 2] = from_fn(|i| from_fn(|j| at(i, j)));
            for output in (0..outputs).step_by(LANES) {
                let gradient = from_fn(|i| from_fn(|j| lanes(cells, places[i][j] + output)));
                let to = &mut to[layout.at(tile, output)..];
                for (place, made) in both(gradient, of_gradient).as_flattened().iter().enumerate() {
                    store(to, place * layout.place, made);
                }
            }
        }
    }
}

on_every_isa! {
    /// Fills `cells`, which are rows `rows` of the result of an image.
    fn transform_sums(
        tiles: Tiles,
        part: Range<usize>,
        sums: &[f32],
        layout: Layout,
        finish: Finish<'_>,
        rows: Range<usize>,
        cells: &mut [f32],
    ) {
        let (outputs, width, columns) = (tiles.outputs, tiles.result[1], tiles.grid()[1]);
        let places: [[usize; 4]; 4] = from_fn(|i| from_fn(|j| (4 * i + j) * layout.place));
        for (tile, (y, x)) in part.flat_map(|y| (0..columns).map(move |x| (y, x))).enumerate() {
            for output in (0..outputs).step_by(LANES) {
                let sums = &sums[layout.at(tile, output)..];
                let result = both(from_fn(|i| from_fn(|j| lanes(sums, places[i][j]))), of_sums);
                // -0 changes nothing.
                let bias = if finish.bias.is_empty() { &[-0.0; LANES] } else { lanes(finish.bias, output) };
                let is_relu = finish.activation == Activation::Relu;
                for (i, sums) in result.iter().enumerate() {
                    for (j, sums) in sums.iter().enumerate() {
                        let (y, x) = (2 * y + i, 2 * x + j);
                        if y < rows.end && x < width {
                            let sums: Lanes = from_fn(|lane| sums[lane] + bias[lane]);
                            let whole = if is_relu { sums.map(|v| if v <= 0.0 { 0.0 } else { v }) } else { sums };
                            store(cells, ((y - rows.start) * width + x) * outputs + output, &whole);
                        }
                    }
                }
            }
        }
    }
}

on_every_isa! {
    /// A kernel of some channels whose taps are [`WIDEST`] apart; places go `apart`.
    fn transform_kernel(taps: &[f32], channels: usize, to: &mut [f32], apart: usize) {
        for channel in (0..channels).step_by(LANES) {
            let kernel = from_fn(|i| from_fn(|j| lanes(taps, (3 * i + j) * WIDEST + channel)));
            for (place, made) in both(kernel, of_kernel).as_flattened().iter().enumerate() {
                store(to, place * apart + channel, made);
            }
        }
    }
}

on_every_isa! {
    /// The gradients of some channels' kernels, a tap after another, of sums whose places are `apart`.
    fn untransform_kernel(sums: &[f32], apart: usize, taps: &mut [f32], channels: usize) {
        for channel in (0..channels).step_by(LANES) {
            let sums = from_fn(|i| from_fn(|j| lanes(sums, (4 * i + j) * apart + channel)));
            for (tap, made) in both(sums, of_kernel_sums).as_flattened().iter().enumerate() {
                store(taps, tap * channels + channel, made);
            }
        }
    }
}

/// A transform down the columns, then along the rows, of so many places side by side, in each lane.
#[inline(always)]
fn both<const FROM: usize, const TO: usize>(
    x: [[&Lanes; FROM]; FROM],
    line: impl Fn([f32; FROM]) -> [f32; TO],
) -> [[Lanes; TO]; TO] {
    let mut made = [[[0.0; LANES]; TO]; TO];
    // Lanes are the outer loop: so the compiler sees one loop over vectors and nothing else.
    for lane in 0..LANES {
        let mut columns = [[0.0; TO]; FROM];
        for j in 0..FROM {
            columns[j] = line(from_fn(|i| x[i][j][lane]));
        }
        for i in 0..TO {
            let row = line(from_fn(|j| columns[j][i]));
            (0..TO).for_each(|j| made[i][j][lane] = row[j]);
        }
    }
    made
}

#[inline(always)]
fn of_patch([a, b, c, d]: [f32; 4]) -> [f32; 4] {
    [a - c, b + c, c - b, b - d]
}

#[inline(always)]
fn of_sums([a, b, c, d]: [f32; 4]) -> [f32; 2] {
    [a + b + c, b - c - d]
}

#[inline(always)]
fn of_gradient([a, b]: [f32; 2]) -> [f32; 4] {
    [a, a + b, a - b, -b]
}

#[inline(always)]
fn of_kernel([a, b, c]: [f32; 3]) -> [f32; 4] {
    [a, 0.5 * (a + c + b), 0.5 * (a + c - b), c]
}

#[inline(always)]
fn of_kernel_sums([a, b, c, d]: [f32; 4]) -> [f32; 3] {
    let middle = 0.5 * (b + c);
    [a + middle, 0.5 * (b - c), middle + d]
}

/// The lanes that start here.
#[inline(always)]
fn lanes(from: &[f32], at: usize) -> &Lanes {
    from[at..].first_chunk().expect("as many as LANES")
}

#[inline(always)]
fn store(to: &mut [f32], at: usize, lanes: &Lanes) {
    to[at..at + LANES].copy_from_slice(lanes);
}
