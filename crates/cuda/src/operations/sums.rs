//! Sums and truths over whole lists, in two stages.
//!
//! This file does not know gradients.

use super::{Floats, FloatsMut, Scalar, Storage, Values, ValuesMut, alike, pitch_of, room, same, size};
use crate::kernels;
use crate::launch::{Argument, KernelLaunch, Queue};
use crate::memory::SliceMut;
use dtrain_engine::device::{Curve, Gelu, Rows};

/// Rows of a run of `column_parts`.
const ROWS: usize = 256;
/// Columns of a block of `column_parts`: each thread of a warp has 16 bytes of a row.
fn strip(storage: Storage) -> usize {
    32 * 16 / storage.bytes()
}

/// From how many parts on a result of `sum_parts` has several lanes, and how many.
const LANES: (usize, usize) = (32, 8);
/// Values of a run of `plane_parts`, and of the kernels of batch norm.
pub(super) const RUN: usize = 4096;
/// Elements of a block of `square_parts`, and how many blocks a block of threads has.
const SQUARES: (usize, usize) = (4096, 32);
/// Elements that a block of `finite_parts` looks at.
const LOOKED_AT: usize = 16_384;

/// Where parts lie: `len` sums each, `count` times, `pitch` apart.
pub(super) struct Parts {
    pub(super) len: usize,
    pub(super) count: usize,
    pub(super) pitch: usize,
}

/// `sums = parts[0] + parts[1] + ...`, in the order that the kernel's file states.
pub(super) fn sum_parts(queue: &impl Queue, shape: &Parts, parts: Floats<'_>, mut sums: FloatsMut<'_>) {
    let arguments: [Argument; 5] = [
        parts.into(),
        (&mut sums).into(),
        (shape.len as u64).into(),
        size(shape.count).into(),
        (shape.pitch as u64).into(),
    ];
    let lanes = if shape.count < LANES.0 { 1 } else { LANES.1 };
    let launch = KernelLaunch::over(&kernels::SUM_PARTS, shape.len * lanes, arguments);
    // What lies between the parts is not read.
    queue.launch(&launch.moves((shape.count + 1) * shape.len * size_of::<f32>()));
}

/// Elements that [`column_sums`] needs for partial sums.
#[must_use]
pub fn column_sums_scratch(shape: Rows) -> usize {
    shape.rows.div_ceil(ROWS) * shape.width
}

/// `sums[width] = sum over rows of x[rows, width]`, whose rows may lie further apart; no row gives zeros.
pub fn column_sums<'x>(
    queue: &impl Queue,
    shape: Rows,
    x: impl Into<Values<'x>>,
    sums: FloatsMut<'_>,
    mut scratch: FloatsMut<'_>,
) {
    let (Rows { rows, width }, x) = (shape, x.into());
    let pitch = pitch_of("x", x.len(), rows, width);
    same("sums", sums.len(), width);
    room("scratch", scratch.len(), column_sums_scratch(shape));
    if rows * width == 0 {
        return super::fill(queue, sums, 0.0);
    }
    let runs = rows.div_ceil(ROWS);
    let arguments =
        [x.into(), (&mut scratch).into(), size(rows).into(), size(width).into(), size(pitch).into()];
    let kernel =
        x.storage().of([&kernels::COLUMN_PARTS, &kernels::COLUMN_PARTS_BF16, &kernels::COLUMN_PARTS_F16]);
    queue.launch(&KernelLaunch::new(kernel, width.div_ceil(strip(x.storage())) * runs, arguments));
    sum_parts(queue, &Parts { len: width, count: runs, pitch: width }, scratch.read(), sums);
}

/// What `gradient_parts.cu` calls an activation.
fn gradient_code(behind: Curve) -> u32 {
    match behind {
        Curve::Relu => 0,
        Curve::Gelu(Gelu::Exact) => 1,
        Curve::Gelu(Gelu::Tanh) => 2,
    }
}

/// The gradient of an activation in place, and the sums of its columns: the bits of [`relu_gradient`](super::relu_gradient) or
/// [`gelu_gradient`](super::gelu_gradient), and [`column_sums`] behind it. `saved` is what they read.
pub fn curve_gradient_and_sums<'x, 'y>(
    queue: &impl Queue,
    shape: Rows,
    behind: Curve,
    saved: impl Into<Values<'x>>,
    d: impl Into<ValuesMut<'y>>,
    sums: FloatsMut<'_>,
    mut scratch: FloatsMut<'_>,
) {
    let (Rows { rows, width }, saved, mut d) = (shape, saved.into(), d.into());
    same("saved", saved.len(), rows * width);
    same("d", d.len(), rows * width);
    same("sums", sums.len(), width);
    room("scratch", scratch.len(), column_sums_scratch(shape));
    if rows * width == 0 {
        return super::fill(queue, sums, 0.0);
    }
    let runs = rows.div_ceil(ROWS);
    let storage = alike(saved.storage(), &[d.storage()]);
    let [rows_, width_] = [rows, width].map(|n| size(n).into());
    let arguments =
        [saved.into(), (&mut d).into(), (&mut scratch).into(), rows_, width_, gradient_code(behind).into()];
    let kernel =
        storage.of([&kernels::GRADIENT_PARTS, &kernels::GRADIENT_PARTS_BF16, &kernels::GRADIENT_PARTS_F16]);
    let launch = KernelLaunch::new(kernel, width.div_ceil(strip(storage)) * runs, arguments);
    queue.launch(&launch.and_moves(rows * width * storage.bytes()));
    sum_parts(queue, &Parts { len: width, count: runs, pitch: width }, scratch.read(), sums);
}

/// Elements that [`plane_sums`] needs for partial sums.
pub(super) fn plane_sums_scratch([images, channels, area]: [usize; 3]) -> usize {
    (images * area).div_ceil(RUN) * channels
}

/// `sums[channels]` of `x: [images, channels, area]`.
pub(super) fn plane_sums(
    queue: &impl Queue,
    shape: [usize; 3],
    x: Values<'_>,
    sums: FloatsMut<'_>,
    mut scratch: FloatsMut<'_>,
) {
    let [images, channels, area] = shape;
    let runs = (images * area).div_ceil(RUN);
    room("scratch", scratch.len(), plane_sums_scratch(shape));
    let arguments =
        [x.into(), (&mut scratch).into(), size(images).into(), size(channels).into(), size(area).into()];
    let kernel =
        x.storage().of([&kernels::PLANE_PARTS, &kernels::PLANE_PARTS_BF16, &kernels::PLANE_PARTS_F16]);
    queue.launch(&KernelLaunch::new(kernel, channels * runs, arguments));
    let parts = scratch.read().part(0..runs * channels);
    sum_parts(queue, &Parts { len: channels, count: runs, pitch: channels }, parts, sums);
}

/// Elements that [`sum_of_squares`] needs for partial sums.
#[must_use]
pub fn sum_of_squares_scratch(len: usize) -> usize {
    len.div_ceil(SQUARES.0)
}

/// `sum = ` the sum of squares in f64 over blocks of 4 096 elements, in block order, of `g * scale` rounded to f32.
pub fn sum_of_squares<'s>(
    queue: &impl Queue,
    g: Floats<'_>,
    scale: impl Into<Scalar<'s>>,
    mut sum: SliceMut<'_, f64>,
    mut scratch: SliceMut<'_, f64>,
) {
    let count = sum_of_squares_scratch(g.len());
    same("sum", sum.len(), 1);
    room("scratch", scratch.len(), count);
    square_parts(queue, g, scale, scratch.part(0..count));
    let arguments = [scratch.read().into(), (&mut sum).into(), size(count).into()];
    queue.launch(&KernelLaunch::new(&kernels::SUM_IN_ORDER, 1, arguments));
}

/// The sums of [`sum_of_squares`] before they are added, one for each block.
pub fn square_parts<'s>(
    queue: &impl Queue,
    g: Floats<'_>,
    scale: impl Into<Scalar<'s>>,
    mut parts: SliceMut<'_, f64>,
) {
    let count = sum_of_squares_scratch(g.len());
    same("parts", parts.len(), count);
    if count > 0 {
        let [scale, at] = scale.into().arguments();
        let arguments = [g.into(), (&mut parts).into(), (g.len() as u64).into(), scale, at];
        queue.launch(&KernelLaunch::new(&kernels::SQUARE_PARTS, count.div_ceil(SQUARES.1), arguments));
    }
}

/// Elements that [`all_finite`] needs.
#[must_use]
pub fn all_finite_scratch(len: usize) -> usize {
    len.div_ceil(LOOKED_AT)
}

/// `all = 1` if every element is finite, else 0.
pub fn all_finite(
    queue: &impl Queue,
    x: Floats<'_>,
    mut all: SliceMut<'_, u32>,
    mut scratch: SliceMut<'_, u32>,
) {
    let count = all_finite_scratch(x.len());
    same("all", all.len(), 1);
    room("scratch", scratch.len(), count);
    if count > 0 {
        let arguments = [x.into(), (&mut scratch).into(), (x.len() as u64).into()];
        queue.launch(&KernelLaunch::new(&kernels::FINITE_PARTS, count, arguments));
    }
    let arguments = [scratch.read().into(), (&mut all).into(), size(count).into()];
    queue.launch(&KernelLaunch::new(&kernels::FINITE_ALL, 1, arguments));
}
