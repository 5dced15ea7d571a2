//! Layer norm and batch norm.
//!
//! This file does not know running statistics beyond reading them.

use super::sums::{Parts, RUN, STRIP, sum_parts};
use super::{Floats, FloatsMut, THREADS, room, same, size};
use crate::kernels;
use crate::launch::{KernelLaunch, Queue};
use crate::memory::SliceMut;
use dtrain_engine::device::{Affine, BatchNormOutputs, ChannelNorm, NormGradients, NormInputs, Rows};

/// Rows of a block of `layer_norm`: a warp each.
const ROWS: usize = 8;
/// Rows of a run of `layer_norm_parts`.
const PARTS: usize = 64;
/// Elements of a plane that a block of `batch_norm` has.
const PIECE: usize = 1024;

/// Layer norm over the width (eps 1e-5); `saved: [rows, 2]` keeps mean and reciprocal deviation.
pub fn layer_norm(
    queue: &impl Queue,
    shape: Rows,
    x: Floats<'_>,
    gain: Floats<'_>,
    bias: Floats<'_>,
    mut y: FloatsMut<'_>,
    mut saved: FloatsMut<'_>,
) {
    let Rows { rows, width } = shape;
    same("x", x.len(), rows * width);
    same("y", y.len(), rows * width);
    same("gain", gain.len(), width);
    same("bias", bias.len(), width);
    same("saved", saved.len(), rows * 2);
    if x.len() > 0 {
        let [rows_, width] = [rows, width].map(|n| size(n).into());
        let arguments =
            [x.into(), gain.into(), bias.into(), (&mut y).into(), (&mut saved).into(), rows_, width];
        queue.launch(&KernelLaunch::new(&kernels::LAYER_NORM, rows.div_ceil(ROWS), arguments));
    }
}

/// Asserts the lengths of what a gradient of a norm reads: `x` and `dy`, the gain, and what was saved.
#[track_caller]
fn same_operands([x, dy, gain, saved]: [Floats<'_>; 4], [elements, wide, kept]: [usize; 3]) {
    same("x", x.len(), elements);
    same("dy", dy.len(), elements);
    same("gain", gain.len(), wide);
    same("saved", saved.len(), kept);
}

/// The gradients of gain and bias where there is not one element.
fn zeros(queue: &impl Queue, dgain: FloatsMut<'_>, dbias: FloatsMut<'_>) {
    super::fill(queue, dgain, 0.0);
    super::fill(queue, dbias, 0.0);
}

/// Elements that [`layer_norm_gradient`] needs for partial sums.
#[must_use]
pub fn layer_norm_scratch(shape: Rows) -> usize {
    shape.rows.div_ceil(PARTS) * 2 * shape.width
}

/// Gradients of layer norm.
pub fn layer_norm_gradient(
    queue: &impl Queue,
    shape: Rows,
    inputs: NormInputs<Floats<'_>>,
    gradients: NormGradients<FloatsMut<'_>>,
    mut scratch: FloatsMut<'_>,
) {
    let Rows { rows, width } = shape;
    let NormInputs { x, gain, saved, dy } = inputs;
    let NormGradients { dx, dgain, dbias } = gradients;
    same("dgain", dgain.len(), width);
    same("dbias", dbias.len(), width);
    same_operands([x, dy, gain, saved], [rows * width, width, 2 * rows]);
    room("scratch", scratch.len(), layer_norm_scratch(shape));
    if x.len() == 0 {
        return zeros(queue, dgain, dbias);
    }
    let [rows_, width_] = [rows, width].map(|n| size(n).into());
    if let Some(mut dx) = dx {
        same("dx", dx.len(), x.len());
        let arguments = [x.into(), gain.into(), saved.into(), dy.into(), (&mut dx).into(), rows_, width_];
        queue.launch(&KernelLaunch::new(&kernels::LAYER_NORM_GRADIENT, rows.div_ceil(ROWS), arguments));
    }
    let runs = rows.div_ceil(PARTS);
    let arguments = [x.into(), saved.into(), dy.into(), (&mut scratch).into(), rows_, width_];
    queue.launch(&KernelLaunch::new(&kernels::LAYER_NORM_PARTS, width.div_ceil(STRIP) * runs, arguments));
    let parts = Parts { len: width, count: runs, pitch: 2 * width };
    sum_parts(queue, &parts, scratch.read(), dgain);
    sum_parts(queue, &parts, scratch.part(width..2 * width).read(), dbias);
}

fn runs(shape: ChannelNorm) -> usize {
    (shape.images * shape.area).div_ceil(RUN)
}

/// Blocks of a kernel over all planes.
fn pieces(shape: ChannelNorm) -> usize {
    shape.images * shape.channels * shape.area.div_ceil(PIECE)
}

/// Elements that [`batch_norm`] and [`batch_norm_gradient`] need for partial sums.
#[must_use]
pub fn batch_norm_scratch(shape: ChannelNorm) -> usize {
    2 * runs(shape) * shape.channels
}

/// Batch norm by the statistics of this micro-batch.
///
/// *Panics* on a single value per channel.
pub fn batch_norm(
    queue: &impl Queue,
    shape: ChannelNorm,
    x: Floats<'_>,
    affine: Affine<Floats<'_>>,
    outputs: BatchNormOutputs<FloatsMut<'_>>,
    mut scratch: SliceMut<'_, f64>,
) {
    let channels = shape.channels;
    let Affine { gain, bias } = affine;
    let BatchNormOutputs { mut y, mut saved, mut sums } = outputs;
    same("x", x.len(), shape.images * channels * shape.area);
    same("y", y.len(), x.len());
    same("gain", gain.len(), channels);
    same("bias", bias.len(), channels);
    same("saved", saved.len(), 2 * channels);
    same("sums", sums.len(), 2 * channels);
    room("scratch", scratch.len(), batch_norm_scratch(shape));
    assert!(shape.images * shape.area > 1, "a single value per channel has no variance");
    let [images, channels_, area] = [shape.images, channels, shape.area].map(|n| size(n).into());
    let arguments = [x.into(), (&mut scratch).into(), images, channels_, area];
    queue.launch(&KernelLaunch::new(&kernels::BATCH_NORM_PARTS, channels * runs(shape), arguments));
    let arguments = [
        scratch.read().into(),
        (&mut saved).into(),
        (&mut sums).into(),
        images,
        channels_,
        area,
        shape.epsilon.into(),
    ];
    queue.launch(&KernelLaunch::new(&kernels::BATCH_NORM_STATISTICS, channels.div_ceil(THREADS), arguments));
    let arguments =
        [x.into(), gain.into(), bias.into(), saved.read().into(), (&mut y).into(), channels_, area];
    queue.launch(&KernelLaunch::new(&kernels::BATCH_NORM, pieces(shape), arguments));
}

/// Batch norm by running statistics `[2, channels]` (mean, then variance).
pub fn batch_norm_by(
    queue: &impl Queue,
    shape: ChannelNorm,
    x: Floats<'_>,
    gain: Floats<'_>,
    bias: Floats<'_>,
    running: Floats<'_>,
    mut y: FloatsMut<'_>,
) {
    let channels = shape.channels;
    same("x", x.len(), shape.images * channels * shape.area);
    same("y", y.len(), x.len());
    same("gain", gain.len(), channels);
    same("bias", bias.len(), channels);
    same("running", running.len(), 2 * channels);
    if x.len() > 0 {
        let [channels, area] = [channels, shape.area].map(|n| size(n).into());
        let memory = [x.into(), gain.into(), bias.into(), running.into(), (&mut y).into()];
        let [x, gain, bias, running, y] = memory;
        let arguments = [x, gain, bias, running, y, channels, area, shape.epsilon.into()];
        queue.launch(&KernelLaunch::new(&kernels::BATCH_NORM_BY, pieces(shape), arguments));
    }
}

/// Gradients of batch norm by the micro-batch's statistics.
pub fn batch_norm_gradient(
    queue: &impl Queue,
    shape: ChannelNorm,
    inputs: NormInputs<Floats<'_>>,
    gradients: NormGradients<FloatsMut<'_>>,
    mut scratch: SliceMut<'_, f64>,
) {
    let channels = shape.channels;
    let NormInputs { x, gain, saved, dy } = inputs;
    let NormGradients { dx, mut dgain, mut dbias } = gradients;
    same("dgain", dgain.len(), channels);
    same("dbias", dbias.len(), channels);
    same_operands([x, dy, gain, saved], [shape.images * channels * shape.area, channels, 2 * channels]);
    room("scratch", scratch.len(), batch_norm_scratch(shape));
    if x.len() == 0 {
        return zeros(queue, dgain, dbias);
    }
    let [images, channels_, area] = [shape.images, channels, shape.area].map(|n| size(n).into());
    let arguments = [x.into(), saved.into(), dy.into(), (&mut scratch).into(), images, channels_, area];
    queue.launch(&KernelLaunch::new(&kernels::BATCH_NORM_GRADIENT_PARTS, channels * runs(shape), arguments));
    let arguments = [
        scratch.read().into(),
        (&mut dgain).into(),
        (&mut dbias).into(),
        size(runs(shape)).into(),
        channels_,
    ];
    queue.launch(&KernelLaunch::new(
        &kernels::BATCH_NORM_GRADIENT_SUMS,
        channels.div_ceil(THREADS),
        arguments,
    ));
    let Some(mut dx) = dx else { return };
    same("dx", dx.len(), x.len());
    let arguments = [
        x.into(),
        gain.into(),
        saved.into(),
        dgain.read().into(),
        dbias.read().into(),
        dy.into(),
        (&mut dx).into(),
        images,
        channels_,
        area,
    ];
    queue.launch(&KernelLaunch::new(&kernels::BATCH_NORM_GRADIENT, pieces(shape), arguments));
}
