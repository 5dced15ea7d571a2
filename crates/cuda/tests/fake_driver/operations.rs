//! Every operation of the engine's device, on a GPU behind the driver, against the CPU.

use crate::rig::{Rig, assert_near};
use crate::stand_in::losses::mixtures;
use crate::stand_in::{cpu, device_trait, ids, numbers};
use crate::support::{Fake, device};
use dtrain_engine::device::{
    Activation, AdamW, Affine, Along, Attended, AttentionShape, BatchNormOutputs, Cell, CellGradients,
    CellStep, CellsKept, ChannelNorm, Conv3dShape, CrossEntropy, Curve, Device, Gelu, Leaf, LinearShape,
    Lion, LossSums, Mask, Matrices, NormGradients, NormInputs, Operands, Outputs, Pool2d, Product,
    RopeScaling, RotaryShape, RotarySpeeds, RowNorm, Rows, Sgd, Strides, Write,
};
use dtrain_types::{Key, MicroBatch, Seed, Site, Step, Wire};

/// What was computed, by name.
pub type Results = Vec<(&'static str, Vec<f32>)>;

fn sums(of: LossSums) -> Vec<f32> {
    vec![of.loss as f32, of.weight as f32, of.counted as f32, of.correct as f32]
}

fn point_wise<R: Rig>(r: &R, to: &mut Results) {
    let (d, x, z) = (r.device(), r.put(&numbers(1, 1000)), r.put(&numbers(2, 1000)));
    let mut y = r.empty(1000);
    d.fill(r.w(&mut y), 2.5);
    to.push(("fill", r.get(&y)));
    d.copy(r.r(&x), r.w(&mut y));
    to.push(("copy", r.get(&y)));
    d.relu(r.r(&x), r.w(&mut y));
    to.push(("relu", r.get(&y)));
    d.gelu(Gelu::Exact, r.r(&x), r.w(&mut y));
    to.push(("gelu", r.get(&y)));
    d.relu_gradient(r.r(&x), r.w(&mut y));
    to.push(("relu_gradient", r.get(&y)));
    d.gelu_gradient(Gelu::Exact, r.r(&x), r.w(&mut y));
    to.push(("gelu_gradient", r.get(&y)));
    d.gelu(Gelu::Tanh, r.r(&x), r.w(&mut y));
    to.push(("gelu_tanh", r.get(&y)));
    d.gelu_gradient(Gelu::Tanh, r.r(&x), r.w(&mut y));
    to.push(("gelu_tanh_gradient", r.get(&y)));
    d.add(r.r(&x), r.r(&z), r.w(&mut y));
    to.push(("add", r.get(&y)));
    d.add_to(r.r(&x), r.w(&mut y));
    to.push(("add_to", r.get(&y)));
    let key = Key::new(Seed(5), Step(7), MicroBatch(2), Site(3));
    d.dropout(key, 0.3, r.r(&x), r.w(&mut y));
    to.push(("dropout", r.get(&y)));
    let whole = r.w(&mut y);
    let (first, mut second) = R::D::split_mut(whole, 300);
    d.fill(first, 1.0);
    d.fill(R::D::part_mut(&mut second, 10..20), 2.0);
    assert_eq!((R::D::len_mut(&second), R::D::len(R::D::read(&second))), (700, 700));
    d.copy(R::D::part(r.r(&x), 5..705), second);
    to.push(("parts", r.get(&y)));
}

fn products<R: Rig>(r: &R, to: &mut Results) {
    let (d, x, w, b) =
        (r.device(), r.put(&numbers(1, 9 * 33)), r.put(&numbers(2, 20 * 33)), r.put(&numbers(3, 20)));
    let (mut y, rows) = (r.empty(180), Rows { rows: 9, width: 20 });
    d.linear(
        LinearShape::new(rows, 33),
        Operands { x: r.r(&x), w: r.r(&w), bias: Some(r.r(&b)) },
        Activation::Relu,
        r.w(&mut y),
    );
    to.push(("linear", r.get(&y)));
    let mut z = r.empty(180);
    d.linear_gelu(
        LinearShape::new(rows, 33),
        Operands { x: r.r(&x), w: r.r(&w), bias: Some(r.r(&b)) },
        Gelu::Tanh,
        r.w(&mut z),
        r.w(&mut y),
    );
    to.push(("linear_gelu", [r.get(&z), r.get(&y)].concat()));
    let (a, b) = (Strides::rows(33), Strides::transposed(33));
    let product = Product { m: 9, n: 20, k: 33, a, b, c_row: 20, write: Write::Add };
    d.product(&product, r.r(&x), r.r(&w), r.w(&mut y));
    to.push(("product", r.get(&y)));
    let mut total = r.empty(33);
    d.column_sums(Rows { rows: 9, width: 33 }, r.r(&x), r.w(&mut total));
    to.push(("column_sums", r.get(&total)));
}

/// What is done in passing where the device can: to numbers that lie as activations do.
fn in_passing<R: Rig>(r: &R, to: &mut Results) {
    let d = r.device();
    assert_eq!([d.activation_len(180), d.row_pitch(181)], [180, 181], "a device in f32");
    let (x, w, b) = (r.put(&numbers(1, 9 * 33)), r.put(&numbers(2, 20 * 33)), r.put(&numbers(3, 20)));
    let (plus, rows) = (r.put(&numbers(4, 180)), Rows { rows: 9, width: 20 });
    let mut y = r.empty(180);
    let operands = Operands { x: d.activations(r.r(&x), 9 * 33), w: r.r(&w), bias: Some(r.r(&b)) };
    let mut memory = r.w(&mut y);
    d.linear_plus(LinearShape::new(rows, 33), operands, r.r(&plus), d.activations_mut(&mut memory, 180));
    drop(memory);
    to.push(("linear_plus", r.get(&y)));
    for curve in [Curve::Relu, Curve::Gelu(Gelu::Exact), Curve::Gelu(Gelu::Tanh)] {
        let mut total = r.empty(20);
        let leaf = Leaf { terms: 9, wire: Wire::F32 };
        d.curve_gradient_and_sums(rows, leaf, curve, r.r(&plus), r.w(&mut y), r.w(&mut total));
        to.push(("curve_gradient_and_sums", [r.get(&y), r.get(&total)].concat()));
        d.curve_gradient(curve, r.r(&plus), r.w(&mut y));
        to.push(("curve_gradient", r.get(&y)));
    }
    let (gain, saved) = (r.put(&numbers(5, 20)), r.put(&numbers(6, 18)));
    let (dy, mut dx) = (r.put(&numbers(7, 180)), r.empty(180));
    let (mut dgain, mut dbias) = (r.empty(20), r.empty(20));
    let mut scratch = r.empty(d.layer_norm_scratch(rows));
    d.layer_norm_gradient_plus(
        RowNorm::layer(rows, 1e-5),
        NormInputs { x: r.r(&plus), gain: r.r(&gain), saved: r.r(&saved), dy: r.r(&dy) },
        r.r(&y),
        NormGradients { dx: Some(r.w(&mut dx)), dgain: r.w(&mut dgain), dbias: Some(r.w(&mut dbias)) },
        r.w(&mut scratch),
    );
    to.push(("layer_norm_gradient_plus", [r.get(&dx), r.get(&dgain), r.get(&dbias)].concat()));
}

fn convolutions<R: Rig>(r: &R, to: &mut Results) {
    let (images, channels, outputs) = (2, 3, 4);
    let (size, kernel, stride, padding) = ([1, 8, 9], [1, 3, 3], [1, 1, 2], [0, 1, 1]);
    let flat = Conv3dShape { images, channels, size, outputs, kernel, stride, padding };
    let names =
        ["conv", "conv_input_gradient", "conv_weight_gradient", "its bias", "conv_input_gradient_of_relu"];
    convolution(r, &flat, names, to);
    let (size, kernel, stride, padding) = ([4, 5, 6], [2, 3, 3], [2, 1, 1], [1, 1, 0]);
    let deep = Conv3dShape { size, kernel, stride, padding, ..flat };
    let names = [
        "conv of volumes",
        "gradient of volumes",
        "gradient of their weights",
        "and of their bias",
        "gradient of volumes that a ReLU gave",
    ];
    convolution(r, &deep, names, to);
}

fn convolution<R: Rig>(r: &R, shape: &Conv3dShape, names: [&'static str; 5], to: &mut Results) {
    let d = r.device();
    let volume = |sides: [usize; 3]| sides.iter().product::<usize>();
    let (len, out) = (6 * volume(shape.size), 8 * volume(shape.output_size()));
    let weights = 12 * volume(shape.kernel);
    let (x, w, b) = (r.put(&numbers(1, len)), r.put(&numbers(2, weights)), r.put(&numbers(3, 4)));
    let (mut y, mut scratch) = (r.empty(out), r.empty(d.conv_scratch(shape).expect("devices have both")));
    let none = Activation::None;
    d.conv(
        shape,
        Operands { x: r.r(&x), w: r.r(&w), bias: Some(r.r(&b)) },
        none,
        r.w(&mut y),
        r.w(&mut scratch),
    );
    let (dy, mut dx) = (r.put(&numbers(4, out)), r.empty(len));
    d.conv_input_gradient(shape, r.r(&w), r.r(&dy), r.w(&mut dx), r.w(&mut scratch));
    let (mut dw, mut db) = (r.empty(weights), r.empty(4));
    let bias = Some(r.w(&mut db));
    d.conv_weight_gradient(shape, r.r(&x), r.r(&dy), r.w(&mut dw), bias, r.w(&mut scratch));
    let mut undone = r.empty(len);
    d.conv_input_gradient_of_relu(shape, r.r(&w), r.r(&dy), r.r(&x), r.w(&mut undone), r.w(&mut scratch));
    to.extend(names.into_iter().zip([&y, &dx, &dw, &db, &undone].map(|made| r.get(made))));
}

fn pooling<R: Rig>(r: &R, to: &mut Results) {
    let d = r.device();
    let shape = Pool2d { planes: 3, size: [8, 7], window: [2, 3], stride: [2, 2], padding: [0; 2] };
    let [height, width] = shape.output_size();
    let (len, out) = (3 * 56, 3 * height * width);
    let (x, dy) = (r.put(&numbers(1, len)), r.put(&numbers(2, out)));
    let (mut y, mut places, mut dx) = (r.empty(out), r.empty(out), r.empty(len));
    d.max_pool(&shape, r.r(&x), r.w(&mut y), r.w(&mut places));
    d.max_pool_gradient(&shape, r.r(&places), r.r(&dy), r.w(&mut dx));
    let at = r.get(&places).iter().map(|place| place.to_bits() as f32).collect();
    to.extend([("max_pool", r.get(&y)), ("its places", at), ("max_pool_gradient", r.get(&dx))]);
    d.avg_pool(&shape, r.r(&x), r.w(&mut y));
    d.avg_pool_gradient(&shape, r.r(&dy), r.w(&mut dx));
    to.extend([("avg_pool", r.get(&y)), ("avg_pool_gradient", r.get(&dx))]);
}

fn layer_norm<R: Rig>(r: &R, to: &mut Results) {
    let (d, shape) = (r.device(), Rows { rows: 70, width: 40 });
    let norm = RowNorm::layer(shape, 1e-5);
    let (x, dy) = (r.put(&numbers(1, 2800)), r.put(&numbers(2, 2800)));
    let (gain, bias) = (r.put(&numbers(3, 40)), r.put(&numbers(4, 40)));
    let (mut y, mut saved, mut dx) = (r.empty(2800), r.empty(140), r.empty(2800));
    let (mut dgain, mut dbias, mut scratch) =
        (r.empty(40), r.empty(40), r.empty(d.layer_norm_scratch(shape)));
    d.layer_norm(norm, r.r(&x), r.r(&gain), Some(r.r(&bias)), r.w(&mut y), r.w(&mut saved));
    let (x, gain, saved_) = (r.r(&x), r.r(&gain), r.r(&saved));
    let (dgain_, dbias_) = (r.w(&mut dgain), r.w(&mut dbias));
    d.layer_norm_gradient(
        norm,
        NormInputs { x, gain, saved: saved_, dy: r.r(&dy) },
        NormGradients { dx: Some(r.w(&mut dx)), dgain: dgain_, dbias: Some(dbias_) },
        r.w(&mut scratch),
    );
    to.extend([
        ("layer_norm", r.get(&y)),
        ("its statistics", r.get(&saved)),
        ("layer_norm_gradient", r.get(&dx)),
    ]);
    to.extend([("of the gain", r.get(&dgain)), ("of the bias", r.get(&dbias))]);
}

/// What Llama's family has beside: RMS norm, rotary positions and a gate.
fn llama<R: Rig>(r: &R, to: &mut Results) {
    let (d, shape) = (r.device(), Rows { rows: 70, width: 40 });
    let norm = RowNorm::rms(shape, 1e-5);
    let (x, dy, gain) = (r.put(&numbers(1, 2800)), r.put(&numbers(2, 2800)), r.put(&numbers(3, 40)));
    let (mut y, mut saved, mut dx) = (r.empty(2800), r.empty(140), r.empty(2800));
    let (mut dgain, mut scratch) = (r.empty(40), r.empty(d.layer_norm_scratch(shape)));
    d.layer_norm(norm, r.r(&x), r.r(&gain), None, r.w(&mut y), r.w(&mut saved));
    to.extend([("rms norm", r.get(&y)), ("its statistics", r.get(&saved))]);
    let inputs = || NormInputs { x: r.r(&x), gain: r.r(&gain), saved: r.r(&saved), dy: r.r(&dy) };
    let gradients = NormGradients { dx: Some(r.w(&mut dx)), dgain: r.w(&mut dgain), dbias: None };
    d.layer_norm_gradient(norm, inputs(), gradients, r.w(&mut scratch));
    to.extend([("its gradient", r.get(&dx)), ("of its gain", r.get(&dgain))]);
    let gradients = NormGradients { dx: Some(r.w(&mut dx)), dgain: r.w(&mut dgain), dbias: None };
    d.layer_norm_gradient_plus(norm, inputs(), r.r(&y), gradients, r.w(&mut scratch));
    to.extend([("its gradient and another", r.get(&dx)), ("of its gain", r.get(&dgain))]);
    let halves = Rows { rows: 70, width: 20 };
    let (mut gated, mut d_gated) = (r.empty(1400), r.empty(2800));
    d.swiglu(halves, r.r(&x), r.w(&mut gated));
    d.swiglu_gradient(halves, r.r(&x), r.r(&gated), r.w(&mut d_gated));
    to.extend([("swiglu", r.get(&gated)), ("swiglu_gradient", r.get(&d_gated))]);
    let speeds = RotarySpeeds::new(1e4, 10, RopeScaling::None);
    let places = RotaryShape { batch: 2, time: 7, first: 3, heads: 6, kv_heads: 2, head: 10, speeds };
    let (packed, spread) = (r.put(&numbers(4, 14 * 100)), r.put(&numbers(5, 14 * 180)));
    let (mut turned, mut back) = (r.empty(14 * 180), r.empty(14 * 100));
    d.rotary(&places, r.r(&packed), r.w(&mut turned));
    d.rotary_gradient(&places, r.r(&spread), r.w(&mut back));
    to.extend([("rotary", r.get(&turned)), ("rotary_gradient", r.get(&back))]);
}

fn batch_norm<R: Rig>(r: &R, to: &mut Results) {
    let (d, shape) = (r.device(), ChannelNorm { images: 5, channels: 6, area: 49, epsilon: 1e-5 });
    let len = 5 * 6 * 49;
    let (x, dy) = (r.put(&numbers(1, len)), r.put(&numbers(2, len)));
    let (gain, bias) = (r.put(&numbers(3, 6)), r.put(&numbers(4, 6)));
    let running = r.put(&numbers(5, 12).iter().map(|v| v + 1.5).collect::<Vec<_>>());
    let (mut y, mut saved, mut sums) = (r.empty(len), r.empty(12), r.empty(12));
    let (mut dx, mut dgain, mut dbias) = (r.empty(len), r.empty(6), r.empty(6));
    d.batch_norm(
        shape,
        r.r(&x),
        Affine { gain: r.r(&gain), bias: r.r(&bias) },
        BatchNormOutputs { y: r.w(&mut y), saved: r.w(&mut saved), sums: r.w(&mut sums) },
    );
    to.extend([("batch_norm", r.get(&y)), ("its statistics", r.get(&saved)), ("its sums", r.get(&sums))]);
    d.batch_norm_by(shape, r.r(&x), r.r(&gain), r.r(&bias), r.r(&running), r.w(&mut y));
    to.push(("batch_norm_by", r.get(&y)));
    let (dgain_, dbias_) = (r.w(&mut dgain), r.w(&mut dbias));
    d.batch_norm_gradient(
        shape,
        NormInputs { x: r.r(&x), gain: r.r(&gain), saved: r.r(&saved), dy: r.r(&dy) },
        NormGradients { dx: Some(r.w(&mut dx)), dgain: dgain_, dbias: Some(dbias_) },
    );
    to.extend([("batch_norm_gradient", r.get(&dx)), ("gain", r.get(&dgain)), ("bias", r.get(&dbias))]);
}

fn embeddings_and_attention<R: Rig>(r: &R, to: &mut Results) {
    let (d, shape) = (r.device(), Rows { rows: 24, width: 10 });
    let (all, table, places) = (r.ids(&ids(1, 24, 7)), r.put(&numbers(2, 70)), r.put(&numbers(3, 80)));
    let tokens = R::D::ids_part(r.i(&all), 0..24);
    assert_eq!(R::D::ids_len(tokens), 24);
    let (mut y, mut dtable, mut dplaces) = (r.empty(240), r.empty(70), r.empty(80));
    d.embedding(shape, tokens, r.r(&table), Some((r.r(&places), 8)), r.w(&mut y));
    d.embedding_gradient(shape, tokens, r.r(&y), Write::Set, r.w(&mut dtable), Some((r.w(&mut dplaces), 8)));
    d.embedding_gradient(shape, tokens, r.r(&y), Write::Add, r.w(&mut dtable), None);
    to.extend([("embedding", r.get(&y)), ("table", r.get(&dtable)), ("places", r.get(&dplaces))]);
    attention(r, Mask::Causal, ["attention", "attention_gradient"], to);
    attention(r, Mask::None, ["attention to all", "its gradient"], to);
}

fn attention<R: Rig>(r: &R, mask: Mask, names: [&'static str; 2], to: &mut Results) {
    let (d, shape) = (r.device(), AttentionShape { batch: 2, time: 9, heads: 2, head: 20, mask });
    let (qkv, dy) = (r.put(&numbers(4, 2160)), r.put(&numbers(5, 720)));
    let (mut y, mut dqkv) = (r.empty(720), r.empty(2160));
    let (mut saved, mut scratch) = (r.empty(d.attention_saved(&shape)), r.empty(d.attention_scratch(&shape)));
    d.attention(&shape, r.r(&qkv), r.w(&mut y), r.w(&mut saved), r.w(&mut scratch));
    let (dqkv_, scratch_) = (r.w(&mut dqkv), r.w(&mut scratch));
    d.attention_gradient(
        &shape,
        Attended { qkv: r.r(&qkv), y: r.r(&y), saved: r.r(&saved), dy: r.r(&dy) },
        dqkv_,
        scratch_,
    );
    to.extend(names.into_iter().zip([r.get(&y), r.get(&dqkv)]));
}

/// What transformers over values and blocks of one's own have beside: rows turned, taken, begun with a vector, and multiplied.
fn rows<R: Rig>(r: &R, to: &mut Results) {
    let (d, len) = (r.device(), 3 * 5 * 8);
    let (x, by) = (r.put(&numbers(1, len)), r.put(&numbers(2, 15)));
    let (token, places) = (r.put(&numbers(3, 8)), r.put(&numbers(4, 48)));
    let (mut y, mut longer, mut shorter) = (r.empty(len), r.empty(3 * 6 * 8), r.empty(24));
    let shape = Matrices { matrices: 3, rows: 5, columns: 8 };
    d.transpose(shape, r.r(&x), r.w(&mut y));
    to.push(("transpose", r.get(&y)));
    d.class_token(shape, r.r(&x), [r.r(&token), r.r(&places)], r.w(&mut longer));
    d.copy_rows(Rows { rows: 3, width: 8 }, [48, 8], r.r(&longer), r.w(&mut shorter));
    to.extend([("class_token", r.get(&longer)), ("copy_rows", r.get(&shorter))]);
    let shape = Rows { rows: 15, width: 8 };
    d.scale_rows(shape, r.r(&x), r.r(&by), r.w(&mut y));
    let mut dots = r.empty(15);
    d.dot_rows(shape, r.r(&x), r.r(&y), r.w(&mut dots));
    to.extend([("scale_rows", r.get(&y)), ("dot_rows", r.get(&dots))]);
    d.sigmoid(r.r(&x), r.w(&mut y));
    to.push(("sigmoid", r.get(&y)));
    let mut dx = r.put(&numbers(5, len));
    d.sigmoid_gradient(r.r(&y), r.w(&mut dx));
    to.push(("sigmoid_gradient", r.get(&dx)));
}

fn recurrent<R: Rig>(r: &R, to: &mut Results) {
    let (d, out) = (r.device(), 2 * 3 * 20);
    for cell in [Cell::Lstm, Cell::Gru] {
        let step = CellStep { cell, rows: 2, time: 3, at: 1, hidden: 20 };
        let states = if cell == Cell::Lstm { out } else { 0 };
        let (mut gates, mut kept) = (r.put(&numbers(1, 4 * out)), r.put(&numbers(2, states)));
        let [bias_in, bias_out] = [3, 4].map(|site| r.put(&numbers(site, cell.gates() * 20)));
        let (mut y, mut dy) = (r.put(&numbers(5, out)), r.put(&numbers(6, out)));
        let (mut dstates, mut dgates) = (r.put(&numbers(7, 40)), r.put(&numbers(8, 4 * out)));
        let biases = [r.r(&bias_in), r.r(&bias_out)];
        d.recurrent_cells(&step, biases, r.w(&mut gates), r.w(&mut kept), r.w(&mut y));
        d.recurrent_gradient(
            &step,
            CellsKept { gates: r.r(&gates), states: r.r(&kept), y: r.r(&y) },
            CellGradients { dy: r.w(&mut dy), dstates: r.w(&mut dstates), dgates: r.w(&mut dgates) },
        );
        to.extend([("recurrent_cells", r.get(&y)), ("their gates", r.get(&gates))]);
        to.extend([("their states", r.get(&kept)), ("recurrent_gradient", r.get(&dgates))]);
        to.extend([("of outputs", r.get(&dy)), ("of states", r.get(&dstates))]);
    }
}

fn losses<R: Rig>(r: &R, to: &mut Results) {
    let (d, shape) = (r.device(), Rows { rows: 300, width: 11 });
    let (x, z, targets) = (r.put(&numbers(1, 3300)), r.put(&numbers(2, 3300)), r.ids(&ids(3, 300, 12)));
    let mut gradient = r.empty(3300);
    let other: Vec<f32> = numbers(4, 11).iter().map(|w| w + 1.5).collect();
    for weights in [&[][..], &other, &[0.5; 11], &other] {
        let options = CrossEntropy {
            label_smoothing: 0.1,
            class_weights: weights,
            ignore_index: Some(11),
            scale: 1.0f32.into(),
        };
        d.copy(r.r(&x), r.w(&mut gradient));
        let logits = Outputs::Replaced(r.w(&mut gradient));
        let found = d.sums(d.cross_entropy(shape, &options, logits, r.i(&targets)));
        to.extend([("cross_entropy", sums(found)), ("its gradient", r.get(&gradient))]);
    }
    let options = CrossEntropy {
        label_smoothing: 0.1,
        class_weights: &other,
        ignore_index: None,
        scale: 1.0f32.into(),
    };
    d.copy(r.r(&x), r.w(&mut gradient));
    let (logits, mixed) = (Outputs::Replaced(r.w(&mut gradient)), r.ids(&mixtures(300, 11)));
    let found = d.sums(d.mixed_cross_entropy(shape, &options, logits, r.i(&mixed)));
    to.extend([("mixed_cross_entropy", sums(found)), ("its gradient", r.get(&gradient))]);
    d.copy(r.r(&x), r.w(&mut gradient));
    let found = d.sums(d.squared_error(shape, 1.0f32.into(), Outputs::Replaced(r.w(&mut gradient)), r.r(&z)));
    to.extend([("squared_error", sums(found)), ("its gradient", r.get(&gradient))]);
    assert_eq!(found, d.sums(d.squared_error(shape, 1.0f32.into(), Outputs::Kept(r.r(&x)), r.r(&z))));
    let mut best = vec![0; 300];
    d.arg_max(shape, r.r(&x), &mut best);
    to.push(("arg_max", best.iter().map(|at| *at as f32).collect()));
    to.push(("sum_of_squares", vec![d.sum_of_squares(r.r(&x), 0.5) as f32]));
    let broken = r.put(&[1.0, f32::NAN]);
    assert!(d.all_finite(r.r(&x)) && !d.all_finite(r.r(&broken)));
}

fn updates<R: Rig>(r: &R, to: &mut Results) {
    let (d, g) = (r.device(), r.put(&numbers(1, 500)));
    let (mut p, mut m) = (r.put(&numbers(2, 500)), r.put(&numbers(3, 500)));
    let mut v = r.put(&numbers(4, 500).iter().map(|v| v * v).collect::<Vec<_>>());
    let adamw = AdamW {
        scale: 0.5f32.into(),
        step_size: 0.01,
        root_correction: 1.1,
        decay: 0.99,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
    };
    d.adamw(&adamw, r.r(&g), r.w(&mut p), r.w(&mut m), r.w(&mut v));
    to.extend([("adamw", r.get(&p)), ("first moment", r.get(&m)), ("second moment", r.get(&v))]);
    let sgd = Sgd {
        scale: 0.5f32.into(),
        lr: 0.1,
        weight_decay: 0.01,
        momentum: 0.9,
        nesterov: true,
        first: false,
    };
    d.sgd(&sgd, r.r(&g), r.w(&mut p), r.w(&mut m));
    to.extend([("sgd", r.get(&p)), ("momentum", r.get(&m))]);
    let lion = Lion { scale: 0.5f32.into(), lr: 0.1, decay: 0.99, beta1: 0.9, beta2: 0.98 };
    d.lion(&lion, r.r(&g), r.w(&mut p), r.w(&mut m));
    to.extend([("lion", r.get(&p)), ("its momentum", r.get(&m))]);
    let mut way = r.put(&numbers(5, 500));
    d.unit(1e-7, r.r(&g), r.w(&mut way));
    d.combine([1.5, 0.5], r.r(&g), r.w(&mut way));
    to.push(("unit and combine", r.get(&way)));
    d.along(&Along { scale: 0.5f32.into(), decay: 0.99, step: 0.3 }, r.r(&way), r.w(&mut p));
    to.push(("along", r.get(&p)));
    d.blend(0.1, 0.5f32.into(), r.r(&g), r.w(&mut p));
    to.push(("blend", r.get(&p)));
    d.submit();
    d.wait();
}

pub fn all<R: Rig>(rig: &R) -> Results {
    let mut results = Results::new();
    for part in [
        point_wise,
        products,
        in_passing,
        convolutions,
        pooling,
        layer_norm,
        llama,
        batch_norm,
        embeddings_and_attention,
        rows,
        recurrent,
    ] {
        part(rig, &mut results);
    }
    losses(rig, &mut results);
    updates(rig, &mut results);
    results
}

#[test]
fn every_operation_does_on_a_gpu_what_it_does_on_the_cpu() {
    let Some(gpu) = device() else { return };
    let (wanted, got) = (all(&cpu()), all(&gpu));
    assert_eq!(got.len(), wanted.len());
    for ((what, got), (_, wanted)) in got.iter().zip(&wanted) {
        assert_near(what, got, wanted);
    }
    assert_eq!(Fake::new().wrong(), "");
}

#[test]
fn no_operation_is_left_out() {
    let here = include_str!("operations.rs");
    for name in device_trait::functions() {
        let called = ["d.", "D::"].iter().any(|of| here.contains(&format!("{of}{name}(")));
        assert!(called, "{name} is not called");
    }
}
