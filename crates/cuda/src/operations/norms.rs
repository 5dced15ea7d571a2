//! Layer norm, RMS norm and batch norm.
//!
//! This file does not know running statistics beyond reading them.

use super::sums::{Parts, RUN, sum_parts};
use super::{Floats, FloatsMut, THREADS, Values, ValuesMut, alike, room, same, size};
use crate::kernels;
use crate::launch::{Argument, KernelLaunch, Queue};
use crate::memory::SliceMut;
use crate::values::{nothing, nowhere};
use dtrain_engine::device::{
    Affine, BatchNormOutputs, Centre, ChannelNorm, NormGradients, NormInputs, RowNorm, Rows,
};

/// Rows of a block of `layer_norm`: a warp each.
const ROWS: usize = 8;
/// Rows of a block of `layer_norm_gradient`.
const PARTS: usize = 64;

/// What `layer_norm.cu` calls it.
fn code(centre: Centre) -> u32 {
    match centre {
        Centre::Zero => 0,
        Centre::Mean => 1,
    }
}

/// Layer norm or RMS norm over the width; `saved: [rows, 2]` keeps what was taken off and the reciprocal deviation.
pub fn layer_norm<'x, 'y>(
    queue: &impl Queue,
    norm: RowNorm,
    x: impl Into<Values<'x>>,
    gain: Floats<'_>,
    bias: Option<Floats<'_>>,
    y: impl Into<ValuesMut<'y>>,
    mut saved: FloatsMut<'_>,
) {
    let (Rows { rows, width }, x, mut y) = (norm.rows, x.into(), y.into());
    same("x", x.len(), rows * width);
    same("y", y.len(), rows * width);
    same("gain", gain.len(), width);
    same("bias", bias.map_or(width, |bias| bias.len()), width);
    same("saved", saved.len(), rows * 2);
    if x.len() > 0 {
        let [rows_, width] = [rows, width].map(|n| size(n).into());
        let arguments = [
            x.into(),
            gain.into(),
            bias.into(),
            (&mut y).into(),
            (&mut saved).into(),
            rows_,
            width,
            code(norm.centre).into(),
            norm.epsilon.into(),
        ];
        let storage = alike(x.storage(), &[y.storage()]);
        let kernel = storage.of([&kernels::LAYER_NORM, &kernels::LAYER_NORM_BF16, &kernels::LAYER_NORM_F16]);
        queue.launch(&KernelLaunch::new(kernel, rows.div_ceil(ROWS), arguments));
    }
}

/// What the gradient of a norm reads, as its kernels take it.
pub struct NormOperands<'a> {
    /// The inputs of the forward pass.
    pub x: Values<'a>,
    /// The factors.
    pub gain: Floats<'a>,
    /// What the forward pass saved.
    pub saved: Floats<'a>,
    /// The gradient of the outputs.
    pub dy: Values<'a>,
}

impl<'a, R: Into<Values<'a>>> From<NormInputs<R>> for NormOperands<'a> {
    fn from(inputs: NormInputs<R>) -> Self {
        let NormInputs { x, gain, saved, dy } = inputs;
        let [x, gain, saved, dy] = [x, gain, saved, dy].map(R::into);
        Self { x, gain: gain.floats(), saved: saved.floats(), dy }
    }
}

/// What the gradient of a norm writes, as its kernels take it.
pub struct NormResults<'a> {
    /// The gradient of the inputs, if anybody asks.
    pub dx: Option<ValuesMut<'a>>,
    /// Of the factors.
    pub dgain: FloatsMut<'a>,
    /// Of what is added, if anything is.
    pub dbias: Option<FloatsMut<'a>>,
}

impl<'a, M: Into<ValuesMut<'a>>> From<NormGradients<M>> for NormResults<'a> {
    fn from(gradients: NormGradients<M>) -> Self {
        let NormGradients { dx, dgain, dbias } = gradients;
        let floats = |sums: M| sums.into().floats();
        Self { dx: dx.map(M::into), dgain: floats(dgain), dbias: dbias.map(floats) }
    }
}

impl NormOperands<'_> {
    /// Asserts the lengths.
    #[track_caller]
    fn same(&self, [elements, wide, kept]: [usize; 3]) {
        same("x", self.x.len(), elements);
        same("dy", self.dy.len(), elements);
        same("gain", self.gain.len(), wide);
        same("saved", self.saved.len(), kept);
    }
}

/// The gradients of gain and bias where there is not one element.
fn zeros(queue: &impl Queue, dgain: FloatsMut<'_>, dbias: Option<FloatsMut<'_>>) {
    super::fill(queue, dgain, 0.0);
    if let Some(dbias) = dbias {
        super::fill(queue, dbias, 0.0);
    }
}

/// Elements that [`layer_norm_gradient`] needs for partial sums.
#[must_use]
pub fn layer_norm_scratch(shape: Rows) -> usize {
    shape.rows.div_ceil(PARTS) * 2 * shape.width
}

/// Gradients of layer norm or RMS norm; `dx` with `outer` added, where there is one.
pub fn layer_norm_gradient<'x>(
    queue: &impl Queue,
    norm: RowNorm,
    inputs: impl Into<NormOperands<'x>>,
    outer: Option<Values<'_>>,
    gradients: impl Into<NormResults<'x>>,
    mut scratch: FloatsMut<'_>,
) {
    let Rows { rows, width } = norm.rows;
    let (inputs, NormResults { dx, dgain, dbias }) = (inputs.into(), gradients.into());
    inputs.same([rows * width, width, 2 * rows]);
    let NormOperands { x, gain, saved, dy } = inputs;
    same("dgain", dgain.len(), width);
    same("dbias", dbias.as_ref().map_or(width, FloatsMut::len), width);
    same("outer", outer.map_or(x.len(), Values::len), x.len());
    room("scratch", scratch.len(), layer_norm_scratch(norm.rows));
    if x.len() == 0 {
        return zeros(queue, dgain, dbias);
    }
    let storage = alike(x.storage(), &[dy.storage(), outer.map_or(x.storage(), Values::storage)]);
    let to = match dx {
        None => nowhere(storage),
        Some(mut dx) => {
            same("dx", dx.len(), x.len());
            alike(storage, &[dx.storage()]);
            (&mut dx).into()
        }
    };
    let runs = rows.div_ceil(PARTS);
    let arguments = [
        x.into(),
        gain.into(),
        saved.into(),
        dy.into(),
        outer.map_or_else(|| nothing(storage), Argument::from),
        to,
        (&mut scratch.part(0..runs * 2 * width)).into(),
        size(rows).into(),
        size(width).into(),
        code(norm.centre).into(),
    ];
    let kernel = storage.of([
        &kernels::LAYER_NORM_GRADIENT,
        &kernels::LAYER_NORM_GRADIENT_BF16,
        &kernels::LAYER_NORM_GRADIENT_F16,
    ]);
    queue.launch(&KernelLaunch::new(kernel, runs, arguments));
    let parts = Parts { len: width, count: runs, pitch: 2 * width };
    let Some(dbias) = dbias else { return sum_parts(queue, &parts, scratch.read(), dgain) };
    match dgain.join(dbias) {
        Ok(both) => sum_parts(queue, &Parts { len: 2 * width, ..parts }, scratch.read(), both),
        Err((dgain, dbias)) => {
            sum_parts(queue, &parts, scratch.read(), dgain);
            sum_parts(queue, &parts, scratch.part(width..2 * width).read(), dbias);
        }
    }
}

fn runs(shape: ChannelNorm) -> usize {
    (shape.images * shape.area).div_ceil(RUN)
}

/// Elements that [`batch_norm`] and [`batch_norm_gradient`] need for partial sums.
#[must_use]
pub fn batch_norm_scratch(shape: ChannelNorm) -> usize {
    2 * runs(shape) * shape.channels
}

/// Batch norm by the statistics of this micro-batch.
///
/// *Panics* on a single value per channel.
pub fn batch_norm<'x, 'y>(
    queue: &impl Queue,
    shape: ChannelNorm,
    x: impl Into<Values<'x>>,
    affine: Affine<impl Into<Values<'x>>>,
    outputs: BatchNormOutputs<impl Into<ValuesMut<'y>>>,
    mut scratch: SliceMut<'_, f64>,
) {
    let (channels, x) = (shape.channels, x.into());
    let (gain, bias) = (affine.gain.into().floats(), affine.bias.into().floats());
    let BatchNormOutputs { y, saved, sums } = outputs;
    let (mut y, mut saved, mut sums) = (y.into(), saved.into().floats(), sums.into().floats());
    let storage = alike(x.storage(), &[y.storage()]);
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
    let kernel = storage.of([
        &kernels::BATCH_NORM_PARTS,
        &kernels::BATCH_NORM_PARTS_BF16,
        &kernels::BATCH_NORM_PARTS_F16,
    ]);
    queue.launch(&KernelLaunch::new(kernel, channels * runs(shape), arguments));
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
    let len = (x.len() as u64).into();
    let arguments =
        [x.into(), gain.into(), bias.into(), saved.read().into(), (&mut y).into(), len, channels_, area];
    let kernel = storage.of([&kernels::BATCH_NORM, &kernels::BATCH_NORM_BF16, &kernels::BATCH_NORM_F16]);
    queue.launch(&KernelLaunch::over_wide(kernel, x.len(), storage.bytes(), arguments));
}

/// Batch norm by running statistics `[2, channels]` (mean, then variance).
pub fn batch_norm_by<'x, 'y>(
    queue: &impl Queue,
    shape: ChannelNorm,
    x: impl Into<Values<'x>>,
    gain: Floats<'_>,
    bias: Floats<'_>,
    running: Floats<'_>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (channels, x, mut y) = (shape.channels, x.into(), y.into());
    same("x", x.len(), shape.images * channels * shape.area);
    same("y", y.len(), x.len());
    same("gain", gain.len(), channels);
    same("bias", bias.len(), channels);
    same("running", running.len(), 2 * channels);
    if x.len() > 0 {
        let [channels, area] = [channels, shape.area].map(|n| Argument::from(size(n)));
        let len = x.len();
        let storage = alike(x.storage(), &[y.storage()]);
        let memory = [x.into(), gain.into(), bias.into(), running.into(), (&mut y).into()];
        let [x, gain, bias, running, y] = memory;
        let arguments =
            [x, gain, bias, running, y, (len as u64).into(), channels, area, shape.epsilon.into()];
        let kernel =
            storage.of([&kernels::BATCH_NORM_BY, &kernels::BATCH_NORM_BY_BF16, &kernels::BATCH_NORM_BY_F16]);
        queue.launch(&KernelLaunch::over_wide(kernel, len, storage.bytes(), arguments));
    }
}

/// Gradients of batch norm by the micro-batch's statistics.
///
/// *Panics* where nobody wants that of the bias.
pub fn batch_norm_gradient<'x>(
    queue: &impl Queue,
    shape: ChannelNorm,
    inputs: impl Into<NormOperands<'x>>,
    gradients: impl Into<NormResults<'x>>,
    mut scratch: SliceMut<'_, f64>,
) {
    let channels = shape.channels;
    let (inputs, NormResults { dx, mut dgain, dbias }) = (inputs.into(), gradients.into());
    let mut dbias = dbias.expect("a batch norm has a bias");
    same("dgain", dgain.len(), channels);
    same("dbias", dbias.len(), channels);
    inputs.same([shape.images * channels * shape.area, channels, 2 * channels]);
    let NormOperands { x, gain, saved, dy } = inputs;
    let storage = alike(x.storage(), &[dy.storage()]);
    room("scratch", scratch.len(), batch_norm_scratch(shape));
    if x.len() == 0 {
        return zeros(queue, dgain, Some(dbias));
    }
    let [images, channels_, area] = [shape.images, channels, shape.area].map(|n| size(n).into());
    let arguments = [x.into(), saved.into(), dy.into(), (&mut scratch).into(), images, channels_, area];
    let kernel = storage.of([
        &kernels::BATCH_NORM_GRADIENT_PARTS,
        &kernels::BATCH_NORM_GRADIENT_PARTS_BF16,
        &kernels::BATCH_NORM_GRADIENT_PARTS_F16,
    ]);
    queue.launch(&KernelLaunch::new(kernel, channels * runs(shape), arguments));
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
        (x.len() as u64).into(),
        images,
        channels_,
        area,
    ];
    let kernel = alike(storage, &[dx.storage()]).of([
        &kernels::BATCH_NORM_GRADIENT,
        &kernels::BATCH_NORM_GRADIENT_BF16,
        &kernels::BATCH_NORM_GRADIENT_F16,
    ]);
    queue.launch(&KernelLaunch::over_wide(kernel, x.len(), storage.bytes(), arguments));
}
