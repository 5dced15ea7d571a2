//! The engine's operations on a GPU: each is in [`crate::operations`], here it gets its scratch.

use super::CudaDevice;
use super::products::Finished;
use super::settlements::DeviceScalar;
use super::workspace::{PendingSums, Want};
use crate::driver::DriverError;
use crate::memory::{Slice, SliceMut};
use crate::operations::{
    self as kernels, HalfResult, LossRows, LossTotals, MatrixBatch, Scalar, Storage, Turned, Values,
    ValuesMut,
};
use dtrain_engine::device::{
    Activation, AdamW, Affine, Along, Attended, AttentionShape, BatchNormOutputs, CellGradients, CellStep,
    CellsKept, ChannelNorm, Conv3dShape, CrossEntropy, Curve, Device, Gelu, Leaf, LinearShape, Lion,
    LossSums, Matrices, NormGradients, NormInputs, Operands, Outputs, Pool2d, Product, RotaryShape, RowNorm,
    Rows, Sgd, Write,
};
use dtrain_types::Key;
use std::ops::Range;

type Ref<'a> = Values<'a>;
type Mut<'a> = ValuesMut<'a>;
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
        run: impl FnOnce(Option<Slice<'_, f32>>, LossRows<'_>, LossTotals<'_>),
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

    /// Runs an operation that has no kernel of halves, with parts of the scratch for its f32.
    fn exactly<const N: usize>(&self, lengths: [usize; N], run: impl FnOnce([SliceMut<'_, f32>; N])) {
        let mut workspace = self.workspace();
        let want = lengths.iter().fold(Want::default(), |want, len| want.and::<f32>(*len));
        let mut parts = or_panic(workspace.parts(want));
        // SAFETY: the workspace is locked until the operation is on the stream.
        run(lengths.map(|len| unsafe { parts.take(len) }));
    }

    /// Runs an operation with partial sums of f32.
    fn summing(&self, len: usize, run: impl FnOnce(SliceMut<'_, f32>)) {
        self.exactly([len], |[scratch]| run(scratch));
    }

    /// A number as kernels are given it.
    fn scalar(&self, of: DeviceScalar) -> Scalar<'_> {
        // SAFETY: the slice lives no longer than this.
        unsafe { self.settlements().scalar(of) }
    }

    /// How activations lie.
    fn storage(&self) -> Storage {
        self.precision.storage()
    }
}

/// What products of halves read: halves, or the copy of parameters in halves.
///
/// *Panics* on f32 without one.
fn halves<'a>(what: &str, x: Ref<'a>) -> Slice<'a, u16> {
    x.halves().unwrap_or_else(|| panic!("{what} is f32 without a copy in halves"))
}

/// The operands of a linear layer in halves.
fn in_halves<'a>(operands: Operands<Ref<'a>>) -> Operands<Slice<'a, u16>, Slice<'a, f32>> {
    let Operands { x, w, bias } = operands;
    Operands { x: halves("x", x), w: halves("w", w), bias: bias.map(Values::floats) }
}

/// The same in f32.
fn in_floats(operands: Operands<Ref<'_>>) -> Operands<Slice<'_, f32>> {
    let Operands { x, w, bias } = operands;
    Operands { x: x.floats(), w: w.floats(), bias: bias.map(Values::floats) }
}

impl Device for CudaDevice {
    type Ref<'a> = Ref<'a>;
    type Mut<'a> = Mut<'a>;
    type Ids<'a> = Ids<'a>;
    type Sums = PendingSums;
    type Scalar = DeviceScalar;

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

    fn activation_len(&self, values: usize) -> usize {
        (values * self.storage().bytes()).div_ceil(Storage::F32.bytes())
    }

    /// Tensor cores fetch rows 16 bytes at a time, where they begin on such places.
    fn row_pitch(&self, width: usize) -> usize {
        let is_odd = self.precision.half().is_some() && width > 64 && !width.is_multiple_of(8);
        if is_odd { width.next_multiple_of(64) } else { width }
    }

    fn activations<'b, 'a: 'b>(&self, memory: Ref<'a>, values: usize) -> Ref<'b> {
        memory.stored(self.storage(), values)
    }

    fn activations_mut<'a>(&self, memory: &'a mut Mut<'_>, values: usize) -> Mut<'a> {
        let all = memory.len();
        memory.part(0..all).stored(self.storage(), values)
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

    fn copy_rows(&self, shape: Rows, pitches: [usize; 2], x: Ref<'_>, y: Mut<'_>) {
        kernels::copy_rows(self.stream(), shape, pitches, x, y);
    }

    fn class_token(&self, shape: Matrices, x: Ref<'_>, [token, places]: [Ref<'_>; 2], y: Mut<'_>) {
        kernels::class_token(self.stream(), shape, x, [token.floats(), places.floats()], y);
    }

    fn product(&self, shape: &Product, a: Ref<'_>, b: Ref<'_>, mut c: Mut<'_>) {
        if self.done_by_library(shape, [a, b], &mut c, Finished::default()) {
            return;
        }
        let Some(half) = self.precision.half() else {
            return self.summing(kernels::product_scratch(shape), |scratch| {
                kernels::product(self.stream(), shape, a.floats(), b.floats(), c.floats(), scratch);
            });
        };
        let (a, b) = (halves("a", a), halves("b", b));
        let stored = c.storage();
        let c = match stored {
            Storage::F32 => HalfResult::F32(c.floats()),
            Storage::Half(_) => HalfResult::Half(c.halves().expect("it is stored so")),
        };
        if kernels::product_half_is_there(shape) {
            let scratch = kernels::product_half_scratch(shape, stored);
            return self.summing(scratch, |scratch| {
                kernels::product_half(self.stream(), half, shape, [a, b], c, scratch);
            });
        }
        self.exactly(kernels::product_exact_scratch(shape), |parts| {
            kernels::product_exact(self.stream(), half, shape, [a, b], c, parts);
        });
    }

    fn linear(
        &self,
        shape: LinearShape,
        operands: Operands<Ref<'_>>,
        activation: Activation,
        mut y: Mut<'_>,
    ) {
        if self.linear_by_library(shape, operands, activation, None, &mut y) {
            return;
        }
        let Some(half) = self.precision.half() else {
            return self.summing(kernels::linear_scratch(shape), |scratch| {
                kernels::linear(self.stream(), shape, in_floats(operands), activation, y.floats(), scratch);
            });
        };
        let (operands, y) =
            (in_halves(operands), HalfResult::Half(y.halves().expect("activations are halves")));
        self.summing(kernels::linear_half_scratch(half, shape), |scratch| {
            kernels::linear_half(self.stream(), half, shape, operands, (activation, None), y, scratch);
        });
    }

    fn linear_plus(&self, shape: LinearShape, operands: Operands<Ref<'_>>, plus: Ref<'_>, mut y: Mut<'_>) {
        if self.linear_by_library(shape, operands, Activation::None, Some(plus), &mut y) {
            return;
        }
        let Some(half) = self.precision.half() else {
            let len = y.len();
            self.linear(shape, operands, Activation::None, y.part(0..len));
            return self.add_to(plus, y);
        };
        let (plus, y) = (halves("plus", plus), HalfResult::Half(y.halves().expect("activations are halves")));
        let operands = in_halves(operands);
        self.summing(kernels::linear_half_scratch(half, shape), |scratch| {
            let behind = (Activation::None, Some(plus));
            kernels::linear_half(self.stream(), half, shape, operands, behind, y, scratch);
        });
    }

    fn linear_gelu(
        &self,
        shape: LinearShape,
        operands: Operands<Ref<'_>>,
        form: Gelu,
        mut z: Mut<'_>,
        mut y: Mut<'_>,
    ) {
        if self.linear_gelu_by_library(shape, operands, form, &mut z, &mut y) {
            return;
        }
        if self.linear_by_library(shape, operands, Activation::None, None, &mut z) {
            return kernels::gelu(self.stream(), form, z.read(), y);
        }
        let Some(half) = self.precision.half() else {
            let (z, y) = (z.floats(), y.floats());
            return kernels::linear_gelu(self.stream(), shape, in_floats(operands), form, z, y);
        };
        let outputs = [z, y].map(|memory| memory.halves().expect("activations are halves"));
        kernels::linear_gelu_half(self.stream(), half, shape, in_halves(operands), form, outputs);
    }

    fn curve_gradient_and_sums(
        &self,
        shape: Rows,
        leaf: Leaf,
        curve: Curve,
        saved: Ref<'_>,
        d: Mut<'_>,
        sums: Mut<'_>,
    ) {
        assert!(leaf.terms >= shape.rows, "this device takes one micro-batch at a time");
        self.summing(kernels::column_sums_scratch(shape), |scratch| {
            kernels::curve_gradient_and_sums(self.stream(), shape, curve, saved, d, sums.floats(), scratch);
        });
    }

    fn column_sums(&self, shape: Rows, x: Ref<'_>, sums: Mut<'_>) {
        self.summing(kernels::column_sums_scratch(shape), |scratch| {
            kernels::column_sums(self.stream(), shape, x, sums.floats(), scratch);
        });
    }

    fn conv_scratch(&self, shape: &Conv3dShape) -> Option<usize> {
        Some(kernels::conv_scratch(shape))
    }

    fn conv(
        &self,
        shape: &Conv3dShape,
        operands: Operands<Ref<'_>>,
        activation: Activation,
        mut y: Mut<'_>,
        _scratch: Mut<'_>,
    ) {
        if !self.conv_by_library(shape, operands, activation, &mut y) {
            kernels::conv(self.stream(), shape, operands, activation, y);
        }
    }

    fn conv_input_gradient(
        &self,
        shape: &Conv3dShape,
        w: Ref<'_>,
        dy: Ref<'_>,
        mut dx: Mut<'_>,
        _scratch: Mut<'_>,
    ) {
        if !self.conv_inputs_by_library(shape, [w, dy], None, &mut dx) {
            kernels::conv_input_gradient(self.stream(), shape, [w, dy], None, dx);
        }
    }

    fn conv_input_gradient_of_relu(
        &self,
        shape: &Conv3dShape,
        w: Ref<'_>,
        dy: Ref<'_>,
        x: Ref<'_>,
        mut dx: Mut<'_>,
        _scratch: Mut<'_>,
    ) {
        if !self.conv_inputs_by_library(shape, [w, dy], Some(x), &mut dx) {
            kernels::conv_input_gradient(self.stream(), shape, [w, dy], Some(x), dx);
        }
    }

    fn conv_weight_gradient(
        &self,
        shape: &Conv3dShape,
        x: Ref<'_>,
        dy: Ref<'_>,
        mut dw: Mut<'_>,
        db: Option<Mut<'_>>,
        scratch: Mut<'_>,
    ) {
        let db = db.map(ValuesMut::floats);
        if self.conv_weights_by_library(shape, x, dy, &mut dw) {
            if let Some(db) = db {
                kernels::conv_bias_gradient(self.stream(), shape, dy, db, scratch.floats());
            }
            return;
        }
        let gradients = kernels::WeightGradients { dw: dw.floats(), db };
        kernels::conv_weight_gradient(self.stream(), shape, x, dy, gradients, scratch.floats());
    }

    fn max_pool(&self, shape: &Pool2d, x: Ref<'_>, y: Mut<'_>, places: Mut<'_>) {
        kernels::max_pool(self.stream(), shape, x, y, places.floats().words());
    }

    fn max_pool_gradient(&self, shape: &Pool2d, places: Ref<'_>, dy: Ref<'_>, dx: Mut<'_>) {
        kernels::max_pool_gradient(self.stream(), shape, places.floats().words(), dy, dx);
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

    fn layer_norm(
        &self,
        norm: RowNorm,
        x: Ref<'_>,
        gain: Ref<'_>,
        bias: Option<Ref<'_>>,
        y: Mut<'_>,
        saved: Mut<'_>,
    ) {
        let bias = bias.map(Values::floats);
        kernels::layer_norm(self.stream(), norm, x, gain.floats(), bias, y, saved.floats());
    }

    fn layer_norm_gradient(
        &self,
        norm: RowNorm,
        inputs: NormInputs<Ref<'_>>,
        gradients: NormGradients<Mut<'_>>,
        scratch: Mut<'_>,
    ) {
        kernels::layer_norm_gradient(self.stream(), norm, inputs, None, gradients, scratch.floats());
    }

    fn layer_norm_gradient_plus(
        &self,
        norm: RowNorm,
        inputs: NormInputs<Ref<'_>>,
        outer: Ref<'_>,
        gradients: NormGradients<Mut<'_>>,
        scratch: Mut<'_>,
    ) {
        kernels::layer_norm_gradient(self.stream(), norm, inputs, Some(outer), gradients, scratch.floats());
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
        let [gain, bias, running] = [gain, bias, running].map(Values::floats);
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
        let places = places.map(|(places, time)| (places.floats(), time));
        kernels::embedding(self.stream(), shape, ids, table.floats(), places, y);
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
            kernels::TableGradient { write, dtable: dtable.floats() },
            dplaces.map(|(dplaces, time)| (dplaces.floats(), time)),
            order,
        );
    }

    fn transpose(&self, shape: Matrices, x: Ref<'_>, y: Mut<'_>) {
        let Matrices { matrices: count, rows, columns } = shape;
        kernels::turn(self.stream(), MatrixBatch { count, rows, columns }, x, Turned::PLAIN, y);
    }

    fn sigmoid(&self, x: Ref<'_>, y: Mut<'_>) {
        kernels::sigmoid(self.stream(), x, y);
    }

    fn sigmoid_gradient(&self, y: Ref<'_>, d: Mut<'_>) {
        kernels::sigmoid_gradient(self.stream(), y, d);
    }

    fn swiglu(&self, shape: Rows, x: Ref<'_>, y: Mut<'_>) {
        kernels::swiglu(self.stream(), shape, x, y);
    }

    fn swiglu_gradient(&self, shape: Rows, x: Ref<'_>, dy: Ref<'_>, dx: Mut<'_>) {
        kernels::swiglu_gradient(self.stream(), shape, x, dy, dx);
    }

    fn rotary(&self, shape: &RotaryShape, x: Ref<'_>, y: Mut<'_>) {
        kernels::rotary(self.stream(), shape, x, y);
    }

    fn rotary_gradient(&self, shape: &RotaryShape, dy: Ref<'_>, dx: Mut<'_>) {
        kernels::rotary_gradient(self.stream(), shape, dy, dx);
    }

    fn scale_rows(&self, shape: Rows, x: Ref<'_>, by: Ref<'_>, y: Mut<'_>) {
        kernels::scale_rows(self.stream(), shape, x, by, y);
    }

    fn dot_rows(&self, shape: Rows, a: Ref<'_>, b: Ref<'_>, y: Mut<'_>) {
        kernels::dot_rows(self.stream(), shape, a, b, y);
    }

    fn recurrent_cells(
        &self,
        step: &CellStep,
        biases: [Ref<'_>; 2],
        gates: Mut<'_>,
        states: Mut<'_>,
        y: Mut<'_>,
    ) {
        let biases = biases.map(Values::floats);
        kernels::recurrent_cells(self.stream(), step, biases, gates.floats(), states.floats(), y);
    }

    fn recurrent_gradient(
        &self,
        step: &CellStep,
        kept: CellsKept<Ref<'_>>,
        gradients: CellGradients<Mut<'_>>,
    ) {
        let CellsKept { gates, states, y } = kept;
        let CellGradients { dy, dstates, dgates } = gradients;
        let kept = CellsKept { gates: gates.floats(), states: states.floats(), y };
        let gradients = CellGradients { dy, dstates: dstates.floats(), dgates };
        kernels::recurrent_gradient(self.stream(), step, kept, gradients);
    }

    fn attention(&self, shape: &AttentionShape, qkv: Ref<'_>, y: Mut<'_>, saved: Mut<'_>, _scratch: Mut<'_>) {
        let (stream, saved) = (self.stream(), saved.floats());
        let Some(half) = self.precision.half() else {
            return kernels::attention(stream, shape, qkv.floats(), y.floats(), saved);
        };
        let (qkv, y) = (halves("qkv", qkv), y.halves().expect("activations are halves"));
        if self.attention_by_library(shape, qkv, &y, &saved) {
            return;
        }
        if kernels::attention_half_is_there(shape) {
            return kernels::attention_half(stream, half, shape, qkv, y, saved);
        }
        self.exactly(kernels::attention_exact_scratch(shape), |parts| {
            kernels::attention_exact(stream, half, shape, qkv, y, saved, parts);
        });
    }

    fn attention_gradient(
        &self,
        shape: &AttentionShape,
        inputs: Attended<Ref<'_>>,
        dqkv: Mut<'_>,
        scratch: Mut<'_>,
    ) {
        let (stream, scratch) = (self.stream(), scratch.floats());
        let Attended { qkv, y, saved, dy } = inputs;
        let saved = saved.floats();
        let Some(half) = self.precision.half() else {
            let inputs = Attended { qkv: qkv.floats(), y: y.floats(), saved, dy: dy.floats() };
            return kernels::attention_gradient(stream, shape, inputs, dqkv.floats(), scratch);
        };
        let inputs = Attended { qkv: halves("qkv", qkv), y: halves("y", y), saved, dy: halves("dy", dy) };
        let dqkv = dqkv.halves().expect("activations are halves");
        if self.attention_gradient_by_library(shape, inputs, &dqkv, &scratch) {
            return;
        }
        if kernels::attention_half_is_there(shape) {
            return kernels::attention_half_gradient(stream, half, shape, inputs, dqkv, scratch);
        }
        self.exactly(kernels::attention_exact_gradient_scratch(shape), |parts| {
            kernels::attention_exact_gradient(stream, half, shape, inputs, dqkv, scratch, parts);
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
        options: &CrossEntropy<'_, DeviceScalar>,
        logits: Outputs<Ref<'_>, Mut<'_>>,
        targets: Ids<'_>,
    ) -> PendingSums {
        let CrossEntropy { label_smoothing, ignore_index, class_weights, scale } = *options;
        let scale = self.scalar(scale);
        self.loss(shape.rows, class_weights, |class_weights, rows, totals| {
            let options = kernels::CrossEntropy { label_smoothing, class_weights, ignore_index, scale };
            kernels::cross_entropy(self.stream(), shape, &options, logits, targets, rows, totals);
        })
    }

    fn mixed_cross_entropy(
        &self,
        shape: Rows,
        options: &CrossEntropy<'_, DeviceScalar>,
        logits: Outputs<Ref<'_>, Mut<'_>>,
        targets: Ids<'_>,
    ) -> PendingSums {
        let CrossEntropy { label_smoothing, ignore_index, class_weights, scale } = *options;
        let scale = self.scalar(scale);
        self.loss(shape.rows, class_weights, |class_weights, rows, totals| {
            let options = kernels::CrossEntropy { label_smoothing, class_weights, ignore_index, scale };
            kernels::mixed_cross_entropy(self.stream(), shape, &options, logits, targets, rows, totals);
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
        scale: DeviceScalar,
        outputs: Outputs<Ref<'_>, Mut<'_>>,
        targets: Ref<'_>,
    ) -> PendingSums {
        let scale = self.scalar(scale);
        self.loss(shape.rows, &[], |_, rows, totals| {
            kernels::squared_error(self.stream(), shape, scale, outputs, targets.floats(), rows, totals);
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
        kernels::sum_of_squares(self.stream(), g.floats(), scale, sum, scratch);
        or_panic(workspace.way().download(self.stream(), at, &mut read));
        read[0]
    }

    fn adamw(&self, o: &AdamW<DeviceScalar>, g: Ref<'_>, p: Mut<'_>, m: Mut<'_>, v: Mut<'_>) {
        kernels::adamw(
            self.stream(),
            &o.with(self.scalar(o.scale)),
            g.floats(),
            p,
            m.floats(),
            v.floats(),
            self.precision.half(),
        );
    }

    fn sgd(&self, o: &Sgd<DeviceScalar>, g: Ref<'_>, p: Mut<'_>, m: Mut<'_>) {
        kernels::sgd(
            self.stream(),
            &o.with(self.scalar(o.scale)),
            g.floats(),
            p,
            m.floats(),
            self.precision.half(),
        );
    }

    fn lion(&self, o: &Lion<DeviceScalar>, g: Ref<'_>, p: Mut<'_>, m: Mut<'_>) {
        kernels::lion(
            self.stream(),
            &o.with(self.scalar(o.scale)),
            g.floats(),
            p,
            m.floats(),
            self.precision.half(),
        );
    }

    fn along(&self, o: &Along<DeviceScalar>, way: Ref<'_>, p: Mut<'_>) {
        let o = o.with(self.scalar(o.scale));
        kernels::along(self.stream(), &o, way, p, self.precision.half());
    }

    fn unit(&self, least: f64, x: Ref<'_>, y: Mut<'_>) {
        let len = kernels::unit_scratch(x.len());
        let mut workspace = self.workspace();
        let mut parts = or_panic(workspace.parts(Want::default().and::<f64>(len)));
        // SAFETY: the workspace is locked until the operation is on the stream.
        let scratch = unsafe { parts.take(len) };
        kernels::unit(self.stream(), least as f32, x.floats(), y, scratch);
    }

    fn combine(&self, by: [f32; 2], x: Ref<'_>, y: Mut<'_>) {
        kernels::combine(self.stream(), by, x, y);
    }

    fn blend(&self, momentum: f32, scale: DeviceScalar, sums: Ref<'_>, running: Mut<'_>) {
        let scale = self.scalar(scale);
        kernels::blend(self.stream(), momentum, scale, sums.floats(), running, self.precision.half());
    }

    fn all_finite(&self, x: Ref<'_>) -> bool {
        let len = kernels::all_finite_scratch(x.len());
        let mut workspace = self.workspace();
        let mut parts = or_panic(workspace.parts(Want::default().and::<u32>(1).and::<u32>(len)));
        // SAFETY: the workspace is locked until the flag is read.
        let (all, scratch) = unsafe { (parts.take::<u32>(1), parts.take(len)) };
        let (at, mut read) = (all.address(), [0u32]);
        kernels::all_finite(self.stream(), x.floats(), all, scratch);
        or_panic(workspace.way().download(self.stream(), at, &mut read));
        read[0] != 0
    }
}
