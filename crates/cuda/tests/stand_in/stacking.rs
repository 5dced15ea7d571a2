//! A row's bits do not depend on how many rows there are: a rank may stack the rows of several micro-batches.

use super::halves::as_f64;
use super::memory::Number;
use super::{Buffer, StandIn, nearest, numbers};
use dtrain_cuda::operations::{self, Half};
use dtrain_cuda::{Values, ValuesMut};
use dtrain_engine::device::{
    Activation, Attended, AttentionShape, Conv3dShape, LinearShape, Mask, NormGradients, NormInputs,
    Operands, RowNorm, Rows,
};

/// Rows that are stacked.
const MANY: usize = 131;

/// Runs an operation on all rows at once and on some alone; the closure gets the number of rows, its operand's rows and
/// returns the rows of its result.
fn alone(q: &StandIn, what: &str, many: usize, x: &[f32], run: impl Fn(usize, &[f32]) -> Vec<f32>) {
    let whole = run(many, x);
    let (wide, out) = (x.len() / many, whole.len() / many);
    for row in [0, 1, many / 2, many - 1] {
        let one = run(1, &x[row * wide..][..wide]);
        let stacked = &whole[row * out..][..out];
        if one.iter().zip(stacked).any(|(one, stacked)| one.bits() != stacked.bits()) {
            q.wrong(format!("{what}: row {row} has other bits alone"));
        }
    }
}

/// Of linear layers, layer norm and its gradient, convolutions and attention.
pub fn rows_are_the_same_alone(q: &StandIn) {
    let (width, inputs) = (70, 600);
    let (w, bias) = (numbers(1, width * inputs), numbers(2, width));
    let (w_, bias_) = (Buffer::of(q, "w", &w), Buffer::of(q, "bias", &bias));
    alone(q, "linear", MANY, &numbers(3, MANY * inputs), |rows, x| {
        let (x, y) = (Buffer::of(q, "x", x), Buffer::empty(q, "y", rows * width));
        let (given, activation) = (Some(bias_.read()), Activation::None);
        let layer = LinearShape::new(Rows { rows, width }, inputs);
        let scratch = Buffer::empty(q, "scratch", operations::linear_scratch(layer));
        operations::linear(
            q,
            layer,
            Operands { x: x.read(), w: w_.read(), bias: given },
            activation,
            y.write(),
            scratch.write(),
        );
        y.now()
    });
    alone(q, "layer norm and its gradient", MANY, &numbers(4, MANY * width), |rows, x| {
        let norm = RowNorm::layer(Rows { rows, width }, 1e-5);
        let x = Buffer::of(q, "x", x);
        let [y, dx, saved] = [rows * width, rows * width, 2 * rows].map(|len| Buffer::empty(q, "out", len));
        let [dgain, dbias, scratch] =
            [width, width, operations::layer_norm_scratch(norm.rows)].map(|len| Buffer::empty(q, "out", len));
        operations::layer_norm(q, norm, x.read(), bias_.read(), Some(bias_.read()), y.write(), saved.write());
        operations::layer_norm_gradient(
            q,
            norm,
            NormInputs { x: x.read(), gain: bias_.read(), saved: saved.read(), dy: y.read() },
            None,
            NormGradients { dx: Some(dx.write()), dgain: dgain.write(), dbias: Some(dbias.write()) },
            scratch.write(),
        );
        dx.now()
    });
    // Images, then volumes: size, kernel, elements of an output.
    for (size, kernel, out) in [([1, 7, 9], [1, 3, 3], 180), ([3, 3, 7], [2, 3, 3], 140)] {
        let (stride, padding) = ([1, 2, 1], [0, 1, 1]);
        let conv = |images| Conv3dShape { images, channels: 3, size, outputs: 5, kernel, stride, padding };
        let w = &w[..135 * kernel[0]];
        let kernels = Buffer::of(q, "w", w);
        alone(q, &format!("convolution of {size:?}"), 5, &numbers(5, 5 * 189), |images, x| {
            let (x, y) = (Buffer::of(q, "x", x), Buffer::empty(q, "y", images * out));
            let operands = Operands { x: x.read(), w: kernels.read(), bias: None };
            operations::conv(q, &conv(images), operands, Activation::Relu, y.write());
            y.now()
        });
        alone(q, &format!("gradient of inputs of {size:?}"), 5, &numbers(5, 5 * out), |images, dy| {
            let (dy, dx) = (Buffer::of(q, "dy", dy), Buffer::empty(q, "dx", images * 189));
            operations::conv_input_gradient(q, &conv(images), [kernels.read(), dy.read()], None, dx.write());
            dx.now()
        });
        for half in [Half::Bf16, Half::F16] {
            let rounded = |x: &[f32]| x.iter().map(|v| nearest(half, f64::from(*v))).collect::<Vec<u16>>();
            let wide = |x: Vec<u16>| x.into_iter().map(|v| as_f64(half, v) as f32).collect();
            let kernels = Buffer::of(q, "w", &rounded(w));
            alone(
                q,
                &format!("convolution of {size:?} in {half:?}"),
                5,
                &numbers(5, 5 * 189),
                |images, x| {
                    let (x, y) =
                        (Buffer::of(q, "x", &rounded(x)), Buffer::<u16>::empty(q, "y", images * out));
                    let operands = Operands {
                        x: Values::halves_of(x.read(), half),
                        w: Values::halves_of(kernels.read(), half),
                        bias: None,
                    };
                    let to = ValuesMut::halves_of(y.write(), half);
                    operations::conv(q, &conv(images), operands, Activation::Relu, to);
                    wide(y.now())
                },
            );
            alone(q, &format!("gradient of {size:?} in {half:?}"), 5, &numbers(5, 5 * out), |images, dy| {
                let (dy, dx) =
                    (Buffer::of(q, "dy", &rounded(dy)), Buffer::<u16>::empty(q, "dx", images * 189));
                let to = ValuesMut::halves_of(dx.write(), half);
                let read = [&kernels, &dy].map(|halves| Values::halves_of(halves.read(), half));
                operations::conv_input_gradient(q, &conv(images), read, None, to);
                wide(dx.now())
            });
        }
    }
    alone(q, "attention and its gradient", 3, &numbers(6, 3 * 3 * 40 * 66), |batch, qkv| {
        let shape = AttentionShape { batch, time: 40, heads: 2, head: 33, mask: Mask::Causal };
        let qkv = Buffer::of(q, "qkv", qkv);
        let [y, d, saved, scratch] =
            [batch * 2640, 3 * batch * 2640, batch * 80, batch * 80].map(|len| Buffer::empty(q, "out", len));
        operations::attention(q, &shape, qkv.read(), y.write(), saved.write());
        let (saved, out) = (saved.read(), y.read());
        operations::attention_gradient(
            q,
            &shape,
            Attended { qkv: qkv.read(), y: out, saved, dy: out },
            d.write(),
            scratch.write(),
        );
        d.now()
    });
}
