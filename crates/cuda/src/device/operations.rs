//! The engine's operations on a GPU: each is in [`crate::operations`], here it gets its scratch.

use super::CudaDevice;
use super::workspace::{PendingSums, Want};
use crate::driver::DriverError;
use crate::memory::{Slice, SliceMut};
use crate::operations::{self as kernels, LossRows, LossTotals};
use dtrain_engine::device::{
    Activation, AdamW, Affine, Attended, AttentionShape, BatchNormOutputs, ChannelNorm, Conv3dShape,
    CrossEntropy, Device, Gelu, LinearShape, LossSums, NormGradients, NormInputs, Operands, Outputs, Pool2d,
    Product, Rows, Sgd, Write,
};
use dtrain_types::Key;
use std::ops::Range;

type Ref<'a> = Slice<'a, f32>;
type Mut<'a> = SliceMut<'a, f32>;
type Ids<'a> = Slice<'a, u32>;

/// *Panics* with the driver's words: the engine's operations have no other way to say that the device has failed. The words
/// are a `String` for whoever catches them; nothing is printed here, because that is no bug.
fn or_panic<T>(result: Result<T, DriverError>) -> T {
    result.unwrap_or_else(|error| std::panic::resume_unwind(Box::new(error.to_string())))
}

impl CudaDevice {
    /// Runs a loss with class weights, if there are any, and its scratch.
    fn loss(
        &self,
        rows: usize,
        weights: &[f32],
        run: impl FnOnce(Option<Ref<'_>>, LossRows<'_>, LossTotals<'_>),
    ) -> PendingSums {
        let mut workspace = self.workspace();
        let weights = (!weights.is_empty()).then(|| {
            let address = or_panic(workspace.weights(self.stream(), weights));
            // SAFETY: they lie there, and stay at least as long as the workspace is locked: until the loss is on the stream.
            unsafe { Slice::new(address, weights.len()) }
        });
        let mut parts = or_panic(workspace.parts(Want::default().and::<f64>(2 * rows).and::<u32>(rows)));
        // SAFETY: the workspace is locked until the loss is on the stream.
        let (values, words) = unsafe { (parts.take(2 * rows), parts.take(rows)) };
        let (pending, totals) = workspace.next_loss();
        run(weights, LossRows { values, counts: words }, totals);
        pending
    }

    /// Runs an operation that rounds, with parts of the scratch for what is rounded.
    fn rounding<const N: usize>(&self, lengths: [usize; N], run: impl FnOnce([SliceMut<'_, u16>; N])) {
        let mut workspace = self.workspace();
        let want = lengths.iter().fold(Want::default(), |want, len| want.and::<u16>(*len));
        let mut parts = or_panic(workspace.parts(want));
        // SAFETY: the workspace is locked until the operation is on the stream.
        run(lengths.map(|len| unsafe { parts.take(len) }));
    }
}

impl Device for CudaDevice {
    type Ref<'a> = Ref<'a>;
    type Mut<'a> = Mut<'a>;
    type Ids<'a> = Ids<'a>;
    type Sums = PendingSums;

    fn len(x: Ref<'_>) -> usize {
        x.len()
    }

    fn len_mut(x: &Mut<'_>) -> usize {
        x.len()
    }

    fn part<'b, 'a: 'b>(x: Ref<'a>, range: Range<usize>) -> Ref<'b> {
        x.part(range)
    }

    fn ids_part<'b, 'a: 'b>(x: Ids<'a>, range: Range<usize>) -> Ids<'b> {
        x.part(range)
    }

    fn ids_len(x: Ids<'_>) -> usize {
        x.len()
    }

    fn part_mut<'a>(x: &'a mut Mut<'_>, range: Range<usize>) -> Mut<'a> {
        x.part(range)
    }

    fn split_mut<'a>(x: Self::Mut<'a>, at: usize) -> (Self::Mut<'a>, Self::Mut<'a>) {
        x.split(at)
    }

    fn read<'a>(x: &'a Mut<'_>) -> Ref<'a> {
        x.read()
    }

    /// *Panics* if the device has failed; see [`CudaDevice::finish`].
    fn wait(&self) {
        or_panic(self.finish());
    }

    /// *Panics* if the device has failed.
    fn submit(&self) {
        or_panic(self.stream().submit());
    }

    fn fill(&self, y: Mut<'_>, value: f32) {
        kernels::fill(self.stream(), y, value);
    }

    fn copy(&self, x: Ref<'_>, y: Mut<'_>) {
        kernels::copy(self.stream(), x, y);
    }

    fn product(&self, shape: &Product, a: Ref<'_>, b: Ref<'_>, c: Mut<'_>) {
        let Some(half) = self.precision.half().filter(|_| kernels::product_half_is_there(shape)) else {
            return kernels::product(self.stream(), shape, a, b, c);
        };
        self.rounding(kernels::product_rounded_scratch(shape), |scratch| {
            kernels::product_rounded(self.stream(), half, shape, a, b, c, scratch);
        });
    }

    fn linear(&self, shape: LinearShape, operands: Operands<Ref<'_>>, activation: Activation, y: Mut<'_>) {
        let Some(half) = self.precision.half() else {
            return kernels::linear(self.stream(), shape, operands, activation, y);
        };
        self.rounding(kernels::linear_rounded_scratch(shape), |scratch| {
            kernels::linear_rounded(self.stream(), half, shape, operands, activation, y, scratch);
        });
    }

    fn linear_gelu(
        &self,
        shape: LinearShape,
        operands: Operands<Ref<'_>>,
        form: Gelu,
        z: Mut<'_>,
        y: Mut<'_>,
    ) {
        let Some(half) = self.precision.half() else {
            return kernels::linear_gelu(self.stream(), shape, operands, form, z, y);
        };
        self.rounding(kernels::linear_rounded_scratch(shape), |scratch| {
            kernels::linear_gelu_rounded(self.stream(), half, shape, operands, form, [z, y], scratch);
        });
    }

    fn column_sums(&self, shape: Rows, x: Ref<'_>, sums: Mut<'_>) {
        let len = kernels::column_sums_scratch(shape);
        let mut workspace = self.workspace();
        let mut parts = or_panic(workspace.parts(Want::default().and::<f32>(len)));
        // SAFETY: the workspace is locked until the operation is on the stream.
        let scratch = unsafe { parts.take(len) };
        kernels::column_sums(self.stream(), shape, x, sums, scratch);
    }

    fn conv_scratch(&self, shape: &Conv3dShape) -> Option<usize> {
        Some(kernels::conv_scratch(shape))
    }

    fn conv(
        &self,
        shape: &Conv3dShape,
        operands: Operands<Ref<'_>>,
        activation: Activation,
        y: Mut<'_>,
        _scratch: Mut<'_>,
    ) {
        kernels::conv(self.stream(), self.precision, shape, operands, activation, y);
    }

    fn conv_input_gradient(
        &self,
        shape: &Conv3dShape,
        w: Ref<'_>,
        dy: Ref<'_>,
        dx: Mut<'_>,
        _scratch: Mut<'_>,
    ) {
        kernels::conv_input_gradient(self.stream(), self.precision, shape, w, dy, dx);
    }

    fn conv_weight_gradient(
        &self,
        shape: &Conv3dShape,
        x: Ref<'_>,
        dy: Ref<'_>,
        dw: Mut<'_>,
        db: Option<Mut<'_>>,
        scratch: Mut<'_>,
    ) {
        kernels::conv_weight_gradient(
            self.stream(),
            self.precision,
            shape,
            x,
            dy,
            kernels::WeightGradients { dw, db },
            scratch,
        );
    }

    fn max_pool(&self, shape: &Pool2d, x: Ref<'_>, y: Mut<'_>, places: Mut<'_>) {
        kernels::max_pool(self.stream(), shape, x, y, places.words());
    }

    fn max_pool_gradient(&self, shape: &Pool2d, places: Ref<'_>, dy: Ref<'_>, dx: Mut<'_>) {
        kernels::max_pool_gradient(self.stream(), shape, places.words(), dy, dx);
    }

    fn avg_pool(&self, shape: &Pool2d, x: Ref<'_>, y: Mut<'_>) {
        kernels::avg_pool(self.stream(), shape, x, y);
    }

    fn avg_pool_gradient(&self, shape: &Pool2d, dy: Ref<'_>, dx: Mut<'_>) {
        kernels::avg_pool_gradient(self.stream(), shape, dy, dx);
    }

    fn relu(&self, x: Ref<'_>, y: Mut<'_>) {
        kernels::relu(self.stream(), x, y);
    }

    fn relu_gradient(&self, y: Ref<'_>, d: Mut<'_>) {
        kernels::relu_gradient(self.stream(), y, d);
    }

    fn gelu(&self, form: Gelu, x: Ref<'_>, y: Mut<'_>) {
        kernels::gelu(self.stream(), form, x, y);
    }

    fn gelu_gradient(&self, form: Gelu, x: Ref<'_>, d: Mut<'_>) {
        kernels::gelu_gradient(self.stream(), form, x, d);
    }

    fn dropout(&self, key: Key, rate: f32, x: Ref<'_>, y: Mut<'_>) {
        kernels::dropout(self.stream(), key, rate, x, y);
    }

    fn add(&self, a: Ref<'_>, b: Ref<'_>, y: Mut<'_>) {
        kernels::add(self.stream(), a, b, y);
    }

    fn add_to(&self, x: Ref<'_>, y: Mut<'_>) {
        kernels::add_to(self.stream(), x, y);
    }

    fn layer_norm(&self, shape: Rows, x: Ref<'_>, gain: Ref<'_>, bias: Ref<'_>, y: Mut<'_>, saved: Mut<'_>) {
        kernels::layer_norm(self.stream(), shape, x, gain, bias, y, saved);
    }

    fn layer_norm_gradient(
        &self,
        shape: Rows,
        inputs: NormInputs<Ref<'_>>,
        gradients: NormGradients<Mut<'_>>,
        scratch: Mut<'_>,
    ) {
        kernels::layer_norm_gradient(self.stream(), shape, inputs, gradients, scratch);
    }

    fn layer_norm_scratch(&self, shape: Rows) -> usize {
        kernels::layer_norm_scratch(shape)
    }

    fn batch_norm(
        &self,
        shape: ChannelNorm,
        x: Ref<'_>,
        affine: Affine<Ref<'_>>,
        outputs: BatchNormOutputs<Mut<'_>>,
    ) {
        let len = kernels::batch_norm_scratch(shape);
        let mut workspace = self.workspace();
        let mut parts = or_panic(workspace.parts(Want::default().and::<f64>(len)));
        // SAFETY: the workspace is locked until the operation is on the stream.
        let scratch = unsafe { parts.take(len) };
        kernels::batch_norm(self.stream(), shape, x, affine, outputs, scratch);
    }

    fn batch_norm_by(
        &self,
        shape: ChannelNorm,
        x: Ref<'_>,
        gain: Ref<'_>,
        bias: Ref<'_>,
        running: Ref<'_>,
        y: Mut<'_>,
    ) {
        kernels::batch_norm_by(self.stream(), shape, x, gain, bias, running, y);
    }

    fn batch_norm_gradient(
        &self,
        shape: ChannelNorm,
        inputs: NormInputs<Ref<'_>>,
        gradients: NormGradients<Mut<'_>>,
    ) {
        let len = kernels::batch_norm_scratch(shape);
        let mut workspace = self.workspace();
        let mut parts = or_panic(workspace.parts(Want::default().and::<f64>(len)));
        // SAFETY: the workspace is locked until the operation is on the stream.
        let scratch = unsafe { parts.take(len) };
        kernels::batch_norm_gradient(self.stream(), shape, inputs, gradients, scratch);
    }

    fn embedding(
        &self,
        shape: Rows,
        ids: Ids<'_>,
        table: Ref<'_>,
        places: Option<(Ref<'_>, usize)>,
        y: Mut<'_>,
    ) {
        kernels::embedding(self.stream(), shape, ids, table, places, y);
    }

    fn embedding_gradient(
        &self,
        shape: Rows,
        ids: Ids<'_>,
        dy: Ref<'_>,
        write: Write,
        dtable: Mut<'_>,
        dplaces: Option<(Mut<'_>, usize)>,
    ) {
        let mut workspace = self.workspace();
        let mut parts = or_panic(workspace.parts(Want::default().and::<u32>(shape.rows)));
        // SAFETY: the workspace is locked until the operation is on the stream.
        let order = unsafe { parts.take(shape.rows) };
        kernels::embedding_gradient(
            self.stream(),
            shape,
            ids,
            dy,
            kernels::TableGradient { write, dtable },
            dplaces,
            order,
        );
    }

    fn attention(&self, shape: &AttentionShape, qkv: Ref<'_>, y: Mut<'_>, saved: Mut<'_>, _scratch: Mut<'_>) {
        let Some(half) = self.precision.half().filter(|_| kernels::attention_half_is_there(shape)) else {
            return kernels::attention(self.stream(), shape, qkv, y, saved);
        };
        self.rounding(kernels::attention_rounded_scratch(shape), |halves| {
            kernels::attention_rounded(self.stream(), half, shape, qkv, y, saved, halves);
        });
    }

    fn attention_gradient(
        &self,
        shape: &AttentionShape,
        inputs: Attended<Ref<'_>>,
        dqkv: Mut<'_>,
        scratch: Mut<'_>,
    ) {
        let Some(half) = self.precision.half().filter(|_| kernels::attention_half_is_there(shape)) else {
            return kernels::attention_gradient(self.stream(), shape, inputs, dqkv, scratch);
        };
        self.rounding(kernels::attention_rounded_gradient_scratch(shape), |halves| {
            kernels::attention_rounded_gradient(self.stream(), half, shape, inputs, dqkv, scratch, halves);
        });
    }

    fn attention_saved(&self, shape: &AttentionShape) -> usize {
        kernels::attention_saved(shape)
    }

    fn attention_scratch(&self, shape: &AttentionShape) -> usize {
        kernels::attention_scratch(shape)
    }

    fn cross_entropy(
        &self,
        shape: Rows,
        options: &CrossEntropy<'_>,
        logits: Outputs<Ref<'_>, Mut<'_>>,
        targets: Ids<'_>,
    ) -> PendingSums {
        let CrossEntropy { label_smoothing, ignore_index, class_weights, scale } = *options;
        self.loss(shape.rows, class_weights, |class_weights, rows, totals| {
            let options = kernels::CrossEntropy { label_smoothing, class_weights, ignore_index, scale };
            kernels::cross_entropy(self.stream(), shape, &options, logits, targets, rows, totals);
        })
    }

    fn arg_max(&self, shape: Rows, logits: Ref<'_>, best: &mut [u32]) {
        let mut workspace = self.workspace();
        let mut parts = or_panic(workspace.parts(Want::default().and::<u32>(shape.rows)));
        // SAFETY: the workspace is locked until the indices are read.
        let found = unsafe { parts.take::<u32>(shape.rows) };
        let at = found.address();
        assert_eq!(best.len(), shape.rows, "a place for each row");
        kernels::arg_max(self.stream(), shape, logits, found);
        or_panic(workspace.way().download(self.stream(), at, best));
    }

    fn squared_error(
        &self,
        shape: Rows,
        scale: f32,
        outputs: Outputs<Ref<'_>, Mut<'_>>,
        targets: Ref<'_>,
    ) -> PendingSums {
        self.loss(shape.rows, &[], |_, rows, totals| {
            kernels::squared_error(self.stream(), shape, scale, outputs, targets, rows, totals);
        })
    }

    fn sums(&self, of: PendingSums) -> LossSums {
        or_panic(self.workspace().sums(self.stream(), of))
    }

    fn sum_of_squares(&self, g: Ref<'_>, scale: f32) -> f64 {
        let len = kernels::sum_of_squares_scratch(g.len());
        let mut workspace = self.workspace();
        let mut parts = or_panic(workspace.parts(Want::default().and::<f64>(1).and::<f64>(len)));
        // SAFETY: the workspace is locked until the sum is read.
        let (sum, scratch) = unsafe { (parts.take::<f64>(1), parts.take(len)) };
        let (at, mut read) = (sum.address(), [0.0f64]);
        kernels::sum_of_squares(self.stream(), g, scale, sum, scratch);
        or_panic(workspace.way().download(self.stream(), at, &mut read));
        read[0]
    }

    fn adamw(&self, o: &AdamW, g: Ref<'_>, p: Mut<'_>, m: Mut<'_>, v: Mut<'_>) {
        kernels::adamw(self.stream(), o, g, p, m, v);
    }

    fn sgd(&self, o: &Sgd, g: Ref<'_>, p: Mut<'_>, m: Mut<'_>) {
        kernels::sgd(self.stream(), o, g, p, m);
    }

    fn blend(&self, momentum: f32, scale: f32, sums: Ref<'_>, running: Mut<'_>) {
        kernels::blend(self.stream(), momentum, scale, sums, running);
    }

    fn all_finite(&self, x: Ref<'_>) -> bool {
        let len = kernels::all_finite_scratch(x.len());
        let mut workspace = self.workspace();
        let mut parts = or_panic(workspace.parts(Want::default().and::<u32>(1).and::<u32>(len)));
        // SAFETY: the workspace is locked until the flag is read.
        let (all, scratch) = unsafe { (parts.take::<u32>(1), parts.take(len)) };
        let (at, mut read) = (all.address(), [0u32]);
        kernels::all_finite(self.stream(), x, all, scratch);
        or_panic(workspace.way().download(self.stream(), at, &mut read));
        read[0] != 0
    }
}
