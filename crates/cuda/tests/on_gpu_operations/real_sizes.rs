//! The operations that take the time of a step, at the sizes of the compared workloads, against the CPU.

use crate::operations::Results;
use crate::rig::{Rig, assert_near};
use crate::stand_in::{Extent, cpu, ids, numbers};
use crate::support::{Fake, device, extent};
use dtrain_engine::device::{
    Activation, Attended, AttentionShape, Conv3dShape, CrossEntropy, Device, Gelu, LinearShape, Mask,
    NormGradients, NormInputs, Operands, Outputs, Pool2d, Product, RopeScaling, RotaryShape, RotarySpeeds,
    RowNorm, Rows, Strides, Write,
};

/// A size of the workloads; on the fake GPU an eighth of it.
fn size(n: usize) -> usize {
    if extent() == Extent::Whole { n } else { (n / 8).max(2) }
}

/// A layer of the MLP: forward, and both gradients as its stage asks for them.
pub fn layer<R: Rig>(r: &R, to: &mut Results) {
    let (d, rows, inputs, width) = (r.device(), size(128), size(1024), size(1024));
    let (len, out) = (rows * inputs, rows * width);
    let (x, w) = (r.put_activations(&numbers(1, len)), r.put_parameters(&numbers(2, width * inputs)));
    let (b, mut y) = (r.put(&numbers(3, width)), r.empty_activations(out));
    let shape = Rows { rows, width };
    d.linear(
        LinearShape::new(shape, inputs),
        Operands { x: r.ra(&x, len), w: r.r(&w), bias: Some(r.r(&b)) },
        Activation::Relu,
        r.wa(&mut y, out),
    );
    to.push(("a layer", r.get_activations(&y, out)));
    let dy = r.put_activations(&numbers(4, out));
    let (mut dx, mut dw, mut db) = (r.empty_activations(len), r.empty(width * inputs), r.empty(width));
    let (a, b) = (Strides::rows(width), Strides::rows(inputs));
    let product = Product { m: rows, n: inputs, k: width, a, b, c_row: inputs, write: Write::Set };
    d.product(&product, r.ra(&dy, out), r.r(&w), r.wa(&mut dx, len));
    let a = Strides::transposed(width);
    let product = Product { m: width, n: inputs, k: rows, a, b, c_row: inputs, write: Write::Set };
    d.product(&product, r.ra(&dy, out), r.ra(&x, len), r.w(&mut dw));
    d.column_sums(shape, r.ra(&dy, out), r.w(&mut db));
    let gradients = [("its weights", r.get(&dw)), ("its bias", r.get(&db))];
    to.extend([("its inputs", r.get_activations(&dx, len))].into_iter().chain(gradients));
}

/// A convolution and its gradients.
fn convolve<R: Rig>(r: &R, shape: &Conv3dShape, to: &mut Results) {
    let d = r.device();
    let volume = |sides: [usize; 3]| sides.iter().product::<usize>();
    let (len, out) = (shape.channels * volume(shape.size), shape.outputs * volume(shape.output_size()));
    let (len, out) = (shape.images * len, shape.images * out);
    let weights = shape.outputs * shape.channels * volume(shape.kernel);
    let (x, w) = (r.put_activations(&numbers(1, len)), r.put_parameters(&numbers(2, weights)));
    let b = r.put(&numbers(3, shape.outputs));
    let mut scratch = r.empty(d.conv_scratch(shape).expect("devices have all"));
    let (mut y, relu) = (r.empty_activations(out), Activation::Relu);
    let operands = Operands { x: r.ra(&x, len), w: r.r(&w), bias: Some(r.r(&b)) };
    d.conv(shape, operands, relu, r.wa(&mut y, out), r.w(&mut scratch));
    to.push(("a convolution", r.get_activations(&y, out)));
    let (dy, mut dx) = (r.put_activations(&numbers(4, out)), r.empty_activations(len));
    d.conv_input_gradient(shape, r.r(&w), r.ra(&dy, out), r.wa(&mut dx, len), r.w(&mut scratch));
    let (mut dw, mut db) = (r.empty(weights), r.empty(shape.outputs));
    let bias = Some(r.w(&mut db));
    let (x, dy) = (r.ra(&x, len), r.ra(&dy, out));
    d.conv_weight_gradient(shape, x, dy, r.w(&mut dw), bias, r.w(&mut scratch));
    to.push(("its images", r.get_activations(&dx, len)));
    to.extend([("its weights", r.get(&dw)), ("its bias", r.get(&db))]);
}

/// The second convolution of the CNN over volumes.
pub fn convolution_of_volumes<R: Rig>(r: &R, to: &mut Results) {
    let (images, channels, outputs) = (size(16), size(16), size(32));
    let (size, kernel, stride) = ([8, size(32), size(32)], [3; 3], [2; 3]);
    convolve(r, &Conv3dShape { images, channels, size, outputs, kernel, stride, padding: [1; 3] }, to);
}

/// The second convolution of the CNN and what follows it.
pub fn convolution<R: Rig>(r: &R, to: &mut Results) {
    let (d, images, channels, outputs) = (r.device(), size(128), size(32), size(64));
    let (size, kernel, padding) = ([1, 26, 26], [1, 3, 3], [0; 3]);
    convolve(r, &Conv3dShape { images, channels, size, outputs, kernel, stride: [1; 3], padding }, to);
    let out = images * outputs * 576;
    // Of numbers that all devices have alike, so that no near tie is decided twice.
    let alike: Vec<f32> = numbers(4, out).iter().map(|v| (v * 64.0).round() / 64.0).collect();
    let dy = r.put_activations(&alike);
    let shape =
        Pool2d { planes: images * outputs, size: [24, 24], window: [2, 2], stride: [2, 2], padding: [0; 2] };
    let (quarter, mut places) = (out / 4, r.empty(out / 4));
    let (mut less, mut whole) = (r.empty_activations(quarter), r.empty_activations(out));
    d.max_pool(&shape, r.ra(&dy, out), r.wa(&mut less, quarter), r.w(&mut places));
    d.max_pool_gradient(&shape, r.r(&places), r.ra(&less, quarter), r.wa(&mut whole, out));
    let gradient = r.get_activations(&whole, out);
    to.extend([("a pooling", r.get_activations(&less, quarter)), ("its gradient", gradient)]);
}

/// Sequences, positions and heads of 32 elements of the GPT.
fn block() -> [usize; 3] {
    [size(8), size(128), size(8)]
}

/// Attention in a block of the GPT.
pub fn attention<R: Rig>(r: &R, to: &mut Results) {
    let [batch, time, heads] = block();
    attend(r, AttentionShape { batch, time, heads, head: 32, mask: Mask::Causal }, to);
}

/// The same in a block of ViT-B/16: to all places, of which there is one more than there are patches.
pub fn attention_to_all<R: Rig>(r: &R, to: &mut Results) {
    let (batch, time, heads) = (size(4), size(197), size(12));
    attend(r, AttentionShape { batch, time, heads, head: 64, mask: Mask::None }, to);
}

fn attend<R: Rig>(r: &R, shape: AttentionShape, to: &mut Results) {
    let (d, out) = (r.device(), shape.batch * shape.time * shape.heads * shape.head);
    let (qkv, dy) = (r.put_activations(&numbers(1, 3 * out)), r.put_activations(&numbers(2, out)));
    let (mut y, mut dqkv) = (r.empty_activations(out), r.empty_activations(3 * out));
    let (mut saved, mut scratch) = (r.empty(d.attention_saved(&shape)), r.empty(d.attention_scratch(&shape)));
    let qkv = r.ra(&qkv, 3 * out);
    d.attention(&shape, qkv, r.wa(&mut y, out), r.w(&mut saved), r.w(&mut scratch));
    let inputs = Attended { qkv, y: r.ra(&y, out), saved: r.r(&saved), dy: r.ra(&dy, out) };
    d.attention_gradient(&shape, inputs, r.wa(&mut dqkv, 3 * out), r.w(&mut scratch));
    let gradient = r.get_activations(&dqkv, 3 * out);
    to.extend([("attention", r.get_activations(&y, out)), ("its gradient", gradient)]);
}

/// What else a block does beside products.
pub fn beside_attention<R: Rig>(r: &R, to: &mut Results) {
    let (d, [batch, time, heads]) = (r.device(), block());
    let (rows, width) = (batch * time, heads * 32);
    let (shape, out) = (Rows { rows, width }, rows * width);
    let (dy, mut y) = (r.put(&numbers(2, out)), r.empty(out));
    let (gain, bias) = (r.put(&numbers(3, width)), r.put(&numbers(4, width)));
    let (mut statistics, mut dx) = (r.empty(2 * rows), r.empty(out));
    let (mut dgain, mut dbias) = (r.empty(width), r.empty(width));
    let (mut scratch, norm) = (r.empty(d.layer_norm_scratch(shape)), RowNorm::layer(shape, 1e-5));
    d.layer_norm(norm, r.r(&dy), r.r(&gain), Some(r.r(&bias)), r.w(&mut y), r.w(&mut statistics));
    let (statistics, dgain_, dbias_) = (r.r(&statistics), r.w(&mut dgain), r.w(&mut dbias));
    let (x, gain, dy, dx_) = (r.r(&dy), r.r(&gain), r.r(&y), Some(r.w(&mut dx)));
    d.layer_norm_gradient(
        norm,
        NormInputs { x, gain, saved: statistics, dy },
        NormGradients { dx: dx_, dgain: dgain_, dbias: Some(dbias_) },
        r.w(&mut scratch),
    );
    to.extend([("layer norm", r.get(&y)), ("its gradient", r.get(&dx))]);
    to.extend([("its gain", r.get(&dgain)), ("its bias", r.get(&dbias))]);
    d.gelu(Gelu::Exact, r.r(&dx), r.w(&mut y));
    let (targets, mut gradient) = (r.ids(&ids(5, rows, width as u32)), r.empty(out));
    let options =
        CrossEntropy { label_smoothing: 0.0, class_weights: &[], ignore_index: None, scale: 1.0f32.into() };
    d.copy(r.r(&y), r.w(&mut gradient));
    let logits = Outputs::Replaced(r.w(&mut gradient));
    let found = d.sums(d.cross_entropy(shape, &options, logits, r.i(&targets)));
    to.extend([
        ("gelu", r.get(&y)),
        ("the loss", vec![found.loss as f32]),
        ("its gradient", r.get(&gradient)),
    ]);
    to.push(("the norm", vec![d.sum_of_squares(r.r(&gradient), 1.0) as f32]));
}

/// What a block of Llama does beside: with a head of keys for four of queries, and a gate of the width of TinyLlama.
pub fn beside_attention_of_llama<R: Rig>(r: &R, to: &mut Results) {
    let (d, batch, time) = (r.device(), size(4), size(512));
    let (rows, head) = (batch * time, 64);
    let speeds = RotarySpeeds::new(1e4, head, RopeScaling::None);
    let places = RotaryShape { batch, time, first: 0, heads: 8, kv_heads: 2, head, speeds };
    let (packed, spread) = (rows * places.packed(), rows * places.spread());
    let (x, dy) = (r.put_activations(&numbers(1, packed)), r.put_activations(&numbers(2, spread)));
    let (mut y, mut dx) = (r.empty_activations(spread), r.empty_activations(packed));
    d.rotary(&places, r.ra(&x, packed), r.wa(&mut y, spread));
    d.rotary_gradient(&places, r.ra(&dy, spread), r.wa(&mut dx, packed));
    to.push(("rotary", r.get_activations(&y, spread)));
    to.push(("its gradient", r.get_activations(&dx, packed)));
    let shape = Rows { rows, width: size(5632) };
    let out = rows * shape.width;
    let (x, dy) = (r.put_activations(&numbers(3, 2 * out)), r.put_activations(&numbers(4, out)));
    let (mut y, mut dx) = (r.empty_activations(out), r.empty_activations(2 * out));
    d.swiglu(shape, r.ra(&x, 2 * out), r.wa(&mut y, out));
    d.swiglu_gradient(shape, r.ra(&x, 2 * out), r.ra(&dy, out), r.wa(&mut dx, 2 * out));
    to.push(("swiglu", r.get_activations(&y, out)));
    to.push(("its gradient", r.get_activations(&dx, 2 * out)));
}

pub fn all<R: Rig>(rig: &R) -> Results {
    let mut results = Results::new();
    layer(rig, &mut results);
    convolution(rig, &mut results);
    convolution_of_volumes(rig, &mut results);
    attention(rig, &mut results);
    attention_to_all(rig, &mut results);
    beside_attention(rig, &mut results);
    beside_attention_of_llama(rig, &mut results);
    results
}

#[test]
fn the_operations_of_real_models_do_on_a_gpu_what_they_do_on_the_cpu() {
    let Some(gpu) = device() else { return };
    let (wanted, got) = (all(&cpu()), all(&gpu));
    for ((what, got), (_, wanted)) in got.iter().zip(&wanted) {
        assert_near(what, got, wanted);
    }
    assert_eq!(Fake::new().wrong(), "");
}
