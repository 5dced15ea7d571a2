//! Checks of operations that round f32 operands on their way: near f64 on what they were given, and what the same operation makes
//! of operands that the host has rounded. Convolutions are held against the CPU's, whose own tests compare them with f64.

use super::halves::as_f64;
use super::memory::Wide;
use super::{Buffer, Extent, Kind, StandIn, attention_half, conv, cpu, nearest, numbers, product_half};
use dtrain_cuda::Precision;
use dtrain_cuda::operations::{self, Half, HalfResult, HalvesMut, WeightGradients};
use dtrain_engine::device::{
    Activation, Attended, AttentionShape, Conv3dShape, Device, LinearShape, Operands, Product, Rows, Strides,
    Write,
};

/// What rounding operands may cost: to bf16, which is the coarser.
const NEAR: f64 = 1e-2;

fn rounded<K: Kind>(x: &[f32]) -> Vec<u16> {
    x.iter().map(|v| nearest(K::HALF, f64::from(*v))).collect()
}

/// What a device is made with that rounds so.
fn precision<K: Kind>() -> Precision {
    match K::HALF {
        Half::Bf16 => Precision::Bf16,
        Half::F16 => Precision::F16,
    }
}

/// Parts of scratch, each between guards of its own.
fn parts<'q, const N: usize>(q: &'q StandIn<'q>, lengths: [usize; N]) -> [Buffer<'q, u16>; N] {
    lengths.map(|len| Buffer::empty(q, "scratch", len))
}

fn lent<'a, const N: usize>(parts: &'a [Buffer<'_, u16>; N]) -> [HalvesMut<'a>; N] {
    std::array::from_fn(|i| parts[i].write())
}

/// Operands that are longer than their matrices, so that what lies behind is not rounded over the end of the scratch.
pub fn product<K: Kind>(q: &StandIn, extent: Extent) {
    for &[m, n, k] in extent.of(1, &[[1, 1, 1], [64, 64, 32], [65, 17, 100], [50, 69, 45]]) {
        for [a_turned, b_turned] in [[false, true], [false, false], [true, false]] {
            let a = if a_turned { Strides::transposed(m + 3) } else { Strides::rows(k + 3) };
            let b = if b_turned { Strides::transposed(k + 3) } else { Strides::rows(n + 3) };
            let (x, y) = (numbers(1, (m + 3) * (k + 3) + 5), numbers(2, (n + 3) * (k + 3) + 5));
            let (x_, y_) = (Buffer::of(q, "a", &x), Buffer::of(q, "b", &y));
            let (x16, y16) = (Buffer::of(q, "a", &rounded::<K>(&x)), Buffer::of(q, "b", &rounded::<K>(&y)));
            for write in [Write::Set, Write::Add] {
                let shape = Product { m, n, k, a, b, c_row: n, write };
                let before = numbers(3, m * n);
                let (c, plain) = (Buffer::of(q, "c", &before), Buffer::of(q, "c", &before));
                let scratch = parts(q, operations::product_rounded_scratch(&shape));
                operations::product_rounded(
                    q,
                    K::HALF,
                    &shape,
                    x_.read(),
                    y_.read(),
                    c.write(),
                    lent(&scratch),
                );
                c.is_within(&format!("{shape:?}"), &product_half::wanted(&shape, &x, &y, &before), NEAR);
                let result = HalfResult::F32(plain.write());
                operations::product_half(q, K::HALF, &shape, x16.read(), y16.read(), result);
                c.has_bits(&format!("{shape:?} of rounded operands"), &plain.now());
            }
        }
    }
}

/// Also the first rows alone.
pub fn linear<K: Kind>(q: &StandIn, extent: Extent) {
    for &(rows, inputs, width) in extent.of(1, &[(1, 1, 1), (65, 24, 10), (7, 130, 70), (5, 20, 7)]) {
        for (activation, with_bias) in
            [(Activation::None, false), (Activation::None, true), (Activation::Relu, true)]
        {
            let (x, w, bias) = (numbers(1, rows * inputs), numbers(2, width * inputs), numbers(3, width));
            let [x_, w_, bias_] =
                [("x", &x), ("w", &w), ("bias", &bias)].map(|(name, x)| Buffer::of(q, name, x));
            let run = |rows: usize| {
                let (shape, y) = (Rows { rows, width }, Buffer::<f32>::empty(q, "y", rows * width));
                let scratch = parts(q, operations::linear_rounded_scratch(LinearShape::new(shape, inputs)));
                let (x, bias) = (x_.read().part(0..rows * inputs), with_bias.then(|| bias_.read()));
                let (to, scratch) = (y.write(), lent(&scratch));
                operations::linear_rounded(
                    q,
                    K::HALF,
                    LinearShape::new(shape, inputs),
                    Operands { x, w: w_.read(), bias },
                    activation,
                    to,
                    scratch,
                );
                y
            };
            let y = run(rows);
            let (a, b) = (Strides::rows(inputs), Strides::transposed(inputs));
            let product = Product { m: rows, n: width, k: inputs, a, b, c_row: width, write: Write::Set };
            let mut wanted = product_half::wanted(&product, &x, &w, &vec![0.0; rows * width]);
            for (i, v) in wanted.iter_mut().enumerate() {
                *v += if with_bias { bias[i % width].wide() } else { 0.0 };
                *v = if activation == Activation::Relu { v.max(0.0) } else { *v };
            }
            let what = format!("linear of {rows} rows of {inputs} to {width}");
            y.is_within(&what, &wanted, NEAR);
            let few = rows.div_ceil(2);
            run(few).has_bits(&format!("{what}, the first {few} alone"), &y.now()[..few * width]);
        }
    }
}

fn wide<K: Kind>(x: &[u16]) -> Vec<f32> {
    x.iter().map(|v| as_f64(K::HALF, *v) as f32).collect()
}

/// Forward, and the gradient of what that left.
pub fn attention<K: Kind>(q: &StandIn, extent: Extent) {
    for &(batch, time, heads, head) in
        extent.of(1, &[(1, 1, 1, 8), (2, 65, 2, 40), (1, 35, 1, 128), (1, 40, 2, 16)])
    {
        let shape = AttentionShape { batch, time, heads, head };
        let out = batch * time * heads * head;
        let qkv: Vec<f32> = numbers(1, 3 * out).iter().map(|v| v * 2.0).collect();
        let dy = numbers(2, out);
        let [wanted_y, wanted_saved, wanted_d] = attention_half::whole(&shape, &qkv, &dy);
        let (qkv_, dy_) = (Buffer::of(q, "qkv", &qkv), Buffer::of(q, "dy", &dy));
        let (y, d) = (Buffer::<f32>::empty(q, "y", out), Buffer::<f32>::empty(q, "dqkv", 3 * out));
        let saved = Buffer::<f32>::empty(q, "saved", operations::attention_saved(&shape));
        let deltas = Buffer::<f32>::empty(q, "deltas", operations::attention_scratch(&shape));
        let halves = parts(q, operations::attention_rounded_scratch(&shape));
        operations::attention_rounded(
            q,
            K::HALF,
            &shape,
            qkv_.read(),
            y.write(),
            saved.write(),
            lent(&halves),
        );
        let halves = parts(q, operations::attention_rounded_gradient_scratch(&shape));
        operations::attention_rounded_gradient(
            q,
            K::HALF,
            &shape,
            Attended { qkv: qkv_.read(), y: y.read(), saved: saved.read(), dy: dy_.read() },
            d.write(),
            deltas.write(),
            lent(&halves),
        );
        y.is_within(&format!("y of {shape:?}"), &wanted_y, NEAR);
        saved.is_within(&format!("saved of {shape:?}"), &wanted_saved, NEAR);
        d.is_within(&format!("dqkv of {shape:?}"), &wanted_d, NEAR);

        let (qkv16, dy16) =
            (Buffer::of(q, "qkv", &rounded::<K>(&qkv)), Buffer::of(q, "dy", &rounded::<K>(&dy)));
        let (y16, d16) = (Buffer::<u16>::empty(q, "y", out), Buffer::<u16>::empty(q, "dqkv", 3 * out));
        operations::attention_half(q, K::HALF, &shape, qkv16.read(), y16.write(), saved.write());
        y.has_bits(&format!("y of {shape:?}, rounded"), &wide::<K>(&y16.now()));
        operations::attention_half_gradient(
            q,
            K::HALF,
            &shape,
            Attended { qkv: qkv16.read(), y: y16.read(), saved: saved.read(), dy: dy16.read() },
            d16.write(),
            deltas.write(),
        );
        d.has_bits(&format!("dqkv of {shape:?}, rounded"), &wide::<K>(&d16.now()));
    }
}

/// Near what the CPU makes of these operands, and nearer what it makes of them when they are rounded.
fn is_near_the_cpus<K: Kind>(
    of: &Buffer<'_, f32>,
    what: &str,
    x: [&[f32]; 2],
    cpus: impl Fn([&[f32]; 2]) -> Vec<f32>,
) {
    let wanted: Vec<f64> = cpus(x).into_iter().map(f64::from).collect();
    of.is_within(what, &wanted, NEAR);
    let rounded = x.map(|x| wide::<K>(&rounded::<K>(x)));
    of.is_near(&format!("{what}, rounded"), &cpus(rounded.each_ref().map(Vec::as_slice)));
}

fn cpus_scratch(shape: &Conv3dShape) -> Vec<f32> {
    vec![0.0; cpu().conv_scratch(shape).expect("the CPU has them")]
}

pub fn conv2d<K: Kind>(q: &StandIn, extent: Extent) {
    convolution::<K>(q, &conv::images(extent));
}

pub fn conv3d<K: Kind>(q: &StandIn, extent: Extent) {
    convolution::<K>(q, &conv::volumes(extent));
}

pub fn conv2d_input_gradient<K: Kind>(q: &StandIn, extent: Extent) {
    input_gradient::<K>(q, &conv::images(extent));
}

pub fn conv3d_input_gradient<K: Kind>(q: &StandIn, extent: Extent) {
    input_gradient::<K>(q, &conv::volumes(extent));
}

pub fn conv2d_weight_gradient<K: Kind>(q: &StandIn, extent: Extent) {
    weight_gradient::<K>(q, &conv::images(extent));
}

pub fn conv3d_weight_gradient<K: Kind>(q: &StandIn, extent: Extent) {
    weight_gradient::<K>(q, &conv::volumes(extent));
}

fn convolution<K: Kind>(q: &StandIn, shapes: &[Conv3dShape]) {
    for shape in shapes {
        let [x_len, w_len, y_len] = conv::lengths(shape);
        let (x, w, bias) = (numbers(1, x_len), numbers(2, w_len), numbers(3, shape.outputs));
        let [x_, w_, bias_] = [("x", &x), ("w", &w), ("bias", &bias)].map(|(name, x)| Buffer::of(q, name, x));
        for (with_bias, activation) in [(false, Activation::None), (true, Activation::Relu)] {
            let y = Buffer::empty(q, "y", y_len);
            let given = with_bias.then(|| bias_.read());
            let (to, precision) = (y.write(), precision::<K>());
            operations::conv(
                q,
                precision,
                shape,
                Operands { x: x_.read(), w: w_.read(), bias: given },
                activation,
                to,
            );
            is_near_the_cpus::<K>(&y, &format!("{shape:?}"), [&x, &w], |[x, w]| {
                let (mut y, mut scratch) = (vec![0.0; y_len], cpus_scratch(shape));
                let given = with_bias.then_some(&bias[..]);
                cpu().conv(shape, Operands { x, w, bias: given }, activation, &mut y, &mut scratch);
                y
            });
        }
    }
}

fn input_gradient<K: Kind>(q: &StandIn, shapes: &[Conv3dShape]) {
    for shape in shapes {
        let [x_len, w_len, y_len] = conv::lengths(shape);
        let (w, dy) = (numbers(2, w_len), numbers(4, y_len));
        let (w_, dy_, dx) = (Buffer::of(q, "w", &w), Buffer::of(q, "dy", &dy), Buffer::empty(q, "dx", x_len));
        operations::conv_input_gradient(q, precision::<K>(), shape, w_.read(), dy_.read(), dx.write());
        is_near_the_cpus::<K>(&dx, &format!("dx of {shape:?}"), [&w, &dy], |[w, dy]| {
            let (mut dx, mut scratch) = (vec![0.0; x_len], cpus_scratch(shape));
            cpu().conv_input_gradient(shape, w, dy, &mut dx, &mut scratch);
            dx
        });
    }
}

fn weight_gradient<K: Kind>(q: &StandIn, shapes: &[Conv3dShape]) {
    for shape in shapes {
        let [x_len, w_len, y_len] = conv::lengths(shape);
        let (x, dy) = (numbers(1, x_len), numbers(4, y_len));
        let (x_, dy_, dw) = (Buffer::of(q, "x", &x), Buffer::of(q, "dy", &dy), Buffer::empty(q, "dw", w_len));
        let room = Buffer::empty(q, "scratch", operations::conv_scratch(shape));
        let (to, room, precision) = (dw.write(), room.write(), precision::<K>());
        operations::conv_weight_gradient(
            q,
            precision,
            shape,
            x_.read(),
            dy_.read(),
            WeightGradients { dw: to, db: None },
            room,
        );
        is_near_the_cpus::<K>(&dw, &format!("dw of {shape:?}"), [&x, &dy], |[x, dy]| {
            let (mut dw, mut scratch) = (vec![0.0; w_len], cpus_scratch(shape));
            cpu().conv_weight_gradient(shape, x, dy, &mut dw, None, &mut scratch);
            dw
        });
    }
}
