//! Checks of convolutions on tensor cores: near the CPU's, whose own tests compare them with f64.

use super::memory::Wide;
use super::stored::{of, to, wide};
use super::{Buffer, Extent, Kind, StandIn, conv, cpu, halves, numbers};
use dtrain_cuda::Values;
use dtrain_cuda::operations::{self, WeightGradients};
use dtrain_engine::device::{Activation, Conv3dShape, Device, Operands};

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

fn as_f64s(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| v.wide()).collect()
}

fn convolution<K: Kind>(q: &StandIn, shapes: &[Conv3dShape]) {
    for shape in shapes {
        let [x_len, w_len, y_len] = conv::lengths(shape);
        let (x, w, bias) =
            (halves::<K>(1, x_len, 1.0), halves::<K>(2, w_len, 1.0), numbers(3, shape.outputs));
        let (x_, w_, bias_) = (Buffer::of(q, "x", &x), Buffer::of(q, "w", &w), Buffer::of(q, "bias", &bias));
        for (with_bias, activation) in [(false, Activation::None), (true, Activation::Relu)] {
            let y = Buffer::<u16>::empty(q, "y", y_len);
            let given = with_bias.then(|| Values::from(bias_.read()));
            let operands = Operands { x: of::<K>(&x_), w: of::<K>(&w_), bias: given };
            operations::conv(q, shape, operands, activation, to::<K>(&y));
            let (mut wanted, mut scratch) = (vec![0.0; y_len], cpus_scratch(shape));
            let given = with_bias.then_some(&bias[..]);
            let (x, w) = (wide::<K>(&x), wide::<K>(&w));
            let operands = Operands { x: &x[..], w: &w[..], bias: given };
            cpu().conv(shape, operands, activation, &mut wanted, &mut scratch);
            y.is_within_half::<K>(&format!("{shape:?}"), &as_f64s(&wanted), K::ROUNDING);
        }
    }
}

fn input_gradient<K: Kind>(q: &StandIn, shapes: &[Conv3dShape]) {
    for shape in shapes {
        let [x_len, w_len, y_len] = conv::lengths(shape);
        let (w, dy) = (halves::<K>(2, w_len, 1.0), halves::<K>(4, y_len, 1.0));
        let (w_, dy_) = (Buffer::of(q, "w", &w), Buffer::of(q, "dy", &dy));
        let dx = Buffer::<u16>::empty(q, "dx", x_len);
        let read = [of::<K>(&w_), of::<K>(&dy_)];
        operations::conv_input_gradient(q, shape, read, None, to::<K>(&dx));
        let (mut wanted, mut scratch) = (vec![0.0; x_len], cpus_scratch(shape));
        cpu().conv_input_gradient(shape, &wide::<K>(&w), &wide::<K>(&dy), &mut wanted, &mut scratch);
        dx.is_within_half::<K>(&format!("dx of {shape:?}"), &as_f64s(&wanted), K::ROUNDING);
        // What a ReLU does behind it has the bits of a pass of its own.
        let x = halves::<K>(5, x_len, 1.0);
        let x_ = Buffer::of(q, "x", &x);
        let undone = Buffer::<u16>::empty(q, "dx undone", x_len);
        operations::conv_input_gradient(q, shape, read, Some(of::<K>(&x_)), to::<K>(&undone));
        operations::relu_gradient(q, of::<K>(&x_), to::<K>(&dx));
        undone.has_bits(&format!("dx of {shape:?} behind a ReLU"), &dx.now());
    }
}

fn weight_gradient<K: Kind>(q: &StandIn, shapes: &[Conv3dShape]) {
    for shape in shapes {
        let [x_len, w_len, y_len] = conv::lengths(shape);
        let (x, dy) = (halves::<K>(1, x_len, 1.0), halves::<K>(4, y_len, 1.0));
        let (x_, dy_, dw) = (Buffer::of(q, "x", &x), Buffer::of(q, "dy", &dy), Buffer::empty(q, "dw", w_len));
        let db = Buffer::empty(q, "db", shape.outputs);
        let room = Buffer::empty(q, "scratch", operations::conv_scratch(shape));
        let gradients = WeightGradients { dw: dw.write(), db: Some(db.write()) };
        operations::conv_weight_gradient(q, shape, of::<K>(&x_), of::<K>(&dy_), gradients, room.write());
        let (mut wanted, mut scratch) = (vec![0.0; w_len], cpus_scratch(shape));
        let mut wanted_db = vec![0.0; shape.outputs];
        let (x, dy) = (wide::<K>(&x), wide::<K>(&dy));
        cpu().conv_weight_gradient(shape, &x, &dy, &mut wanted, Some(&mut wanted_db), &mut scratch);
        dw.is_near(&format!("dw of {shape:?}"), &wanted);
        db.is_near(&format!("db of {shape:?}"), &wanted_db);
    }
}
