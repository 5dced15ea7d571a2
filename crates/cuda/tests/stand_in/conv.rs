//! Checks of convolutions: the CPU's bits for outputs and gradients of inputs.

use super::{Buffer, Extent, StandIn, cpu, numbers, orders};
use dtrain_cuda::operations::WeightGradients;
use dtrain_cuda::{Precision, operations};
use dtrain_engine::device::{Activation, Conv2dShape, Conv3dShape, Device, Operands};

/// Images, channels, size, outputs, kernel, stride, padding.
type Fields<const N: usize> = (usize, usize, [usize; N], usize, [usize; N], [usize; N], [usize; N]);

fn flat((images, channels, size, outputs, kernel, stride, padding): Fields<2>) -> Conv3dShape {
    Conv2dShape { images, channels, size, outputs, kernel, stride, padding }.into()
}

fn deep((images, channels, size, outputs, kernel, stride, padding): Fields<3>) -> Conv3dShape {
    Conv3dShape { images, channels, size, outputs, kernel, stride, padding }
}

/// Convolutions in tiles of 64 x 64 results, of 32 x 256, of 64 x 128 and of 128 x 128; of weights of 64 x 64, 32 x 64, 64 x 64 and
/// 128 x 128.
fn images_in_tiles() -> [Conv3dShape; 4] {
    [
        (1, 40, [8, 7], 40, [3, 3], [2, 1], [1, 1]),
        (2, 20, [10, 11], 20, [3, 3], [1, 1], [1, 1]),
        (1, 50, [10, 12], 50, [3, 3], [1, 1], [1, 1]),
        (1, 100, [10, 12], 100, [2, 1], [1, 1], [0, 0]),
    ]
    .map(flat)
}

/// The same over volumes.
fn volumes_in_tiles() -> [Conv3dShape; 4] {
    [
        (1, 40, [2, 5, 5], 40, [1, 3, 3], [1, 2, 1], [0, 1, 1]),
        (2, 20, [3, 8, 9], 20, [2, 3, 1], [2, 1, 1], [1, 1, 0]),
        (1, 50, [3, 5, 8], 50, [3, 1, 3], [1, 1, 1], [1, 0, 1]),
        (1, 100, [3, 5, 8], 100, [1, 1, 2], [1, 1, 1], [0, 0, 0]),
    ]
    .map(deep)
}

/// Convolutions over images.
pub fn images(extent: Extent) -> Vec<Conv3dShape> {
    let all = [
        (1, 1, [1, 1], 1, [1, 1], [1, 1], [0, 0]),
        (2, 3, [9, 7], 5, [3, 3], [1, 1], [1, 1]),
        (3, 2, [10, 11], 4, [3, 2], [2, 3], [1, 0]),
        (2, 70, [5, 5], 66, [3, 3], [1, 1], [1, 1]),
        (1, 2, [12, 12], 3, [5, 5], [3, 2], [2, 2]),
        // More than one range of cells in the gradient of weights, which are shorter than a block of K.
        (5, 2, [20, 19], 3, [3, 3], [1, 1], [1, 1]),
        (2, 3, [8, 9], 5, [3, 3], [2, 1], [1, 1]),
    ];
    extent.of(2, &all).iter().map(|fields| flat(*fields)).collect()
}

/// Convolutions over volumes: each is deep in its size, its kernel or its padding.
pub fn volumes(extent: Extent) -> Vec<Conv3dShape> {
    let all = [
        (1, 1, [2, 1, 1], 1, [2, 1, 1], [1, 1, 1], [0, 0, 0]),
        // Nothing but the padding is deep, then nothing but the size.
        (2, 1, [1, 3, 4], 2, [1, 2, 2], [1, 1, 1], [1, 0, 0]),
        (1, 2, [5, 2, 3], 3, [1, 1, 1], [2, 1, 1], [0, 0, 0]),
        // No two sides, steps or zeros alike.
        (2, 3, [5, 9, 7], 4, [3, 2, 4], [2, 1, 3], [1, 0, 2]),
        (1, 30, [3, 4, 5], 70, [3, 3, 3], [1, 1, 1], [1, 1, 1]),
        // More than one range of cells in the gradient of weights, as above.
        (2, 2, [9, 14, 12], 3, [2, 3, 3], [1, 1, 1], [1, 1, 1]),
        (2, 3, [4, 6, 5], 5, [2, 3, 3], [2, 1, 2], [1, 1, 0]),
    ];
    extent.of(2, &all).iter().map(|fields| deep(*fields)).collect()
}

/// Elements of a box.
pub fn volume(sides: [usize; 3]) -> usize {
    sides.iter().product()
}

pub fn lengths(shape: &Conv3dShape) -> [usize; 3] {
    [
        shape.images * shape.channels * volume(shape.size),
        shape.outputs * shape.channels * volume(shape.kernel),
        shape.images * shape.outputs * volume(shape.output_size()),
    ]
}

/// The same bits but for the sign of zero: the CPU adds products with the zeros of its grid.
fn same_but_zeros(buffer: &Buffer<'_, f32>, what: &str, wanted: &[f32]) {
    let wanted: Vec<f32> = buffer
        .now()
        .iter()
        .zip(wanted)
        .map(|(&now, &wanted)| if now == 0.0 && wanted == 0.0 { now } else { wanted })
        .collect();
    buffer.has_bits(what, &wanted);
}

pub fn conv2d(q: &StandIn, extent: Extent) {
    forward(q, &images(extent));
}

pub fn conv2d_in_tiles(q: &StandIn, _: Extent) {
    forward(q, &images_in_tiles());
}

pub fn conv3d(q: &StandIn, extent: Extent) {
    forward(q, &volumes(extent));
}

pub fn conv3d_in_tiles(q: &StandIn, _: Extent) {
    forward(q, &volumes_in_tiles());
}

pub fn conv2d_input_gradient(q: &StandIn, extent: Extent) {
    input_gradient(q, &images(extent));
}

pub fn conv2d_input_gradient_in_tiles(q: &StandIn, _: Extent) {
    input_gradient(q, &images_in_tiles());
}

pub fn conv3d_input_gradient(q: &StandIn, extent: Extent) {
    input_gradient(q, &volumes(extent));
}

pub fn conv3d_input_gradient_in_tiles(q: &StandIn, _: Extent) {
    input_gradient(q, &volumes_in_tiles());
}

pub fn conv2d_weight_gradient(q: &StandIn, extent: Extent) {
    weight_gradient(q, &images(extent));
}

pub fn conv2d_weight_gradient_in_tiles(q: &StandIn, _: Extent) {
    weight_gradient(q, &images_in_tiles());
}

pub fn conv3d_weight_gradient(q: &StandIn, extent: Extent) {
    weight_gradient(q, &volumes(extent));
}

pub fn conv3d_weight_gradient_in_tiles(q: &StandIn, _: Extent) {
    weight_gradient(q, &volumes_in_tiles());
}

fn forward(q: &StandIn, shapes: &[Conv3dShape]) {
    for shape in shapes {
        let [x_len, w_len, y_len] = lengths(shape);
        let (x, w, bias) = (numbers(1, x_len), numbers(2, w_len), numbers(3, shape.outputs));
        let [x_, w_, bias_] = [("x", &x), ("w", &w), ("bias", &bias)].map(|(name, x)| Buffer::of(q, name, x));
        for (with_bias, activation) in [(false, Activation::None), (true, Activation::Relu)] {
            let y = Buffer::empty(q, "y", y_len);
            let given = with_bias.then(|| bias_.read());
            operations::conv(
                q,
                shape,
                Operands { x: x_.read(), w: w_.read(), bias: given },
                activation,
                y.write(),
            );
            let mut wanted = vec![0.0; y_len];
            let mut scratch = vec![0.0; cpu().conv_scratch(shape).expect("the CPU has them")];
            let given = with_bias.then_some(&bias[..]);
            cpu().conv(shape, Operands { x: &x, w: &w, bias: given }, activation, &mut wanted, &mut scratch);
            same_but_zeros(&y, &format!("{shape:?}"), &wanted);
        }
    }
}

fn input_gradient(q: &StandIn, shapes: &[Conv3dShape]) {
    for shape in shapes {
        let [x_len, w_len, y_len] = lengths(shape);
        let (w, dy) = (numbers(2, w_len), numbers(4, y_len));
        let (w_, dy_, dx) = (Buffer::of(q, "w", &w), Buffer::of(q, "dy", &dy), Buffer::empty(q, "dx", x_len));
        operations::conv_input_gradient(q, shape, [w_.read(), dy_.read()], None, dx.write());
        let mut wanted = vec![0.0; x_len];
        let mut scratch = vec![0.0; cpu().conv_scratch(shape).expect("the CPU has them")];
        cpu().conv_input_gradient(shape, &w, &dy, &mut wanted, &mut scratch);
        same_but_zeros(&dx, &format!("dx of {shape:?}"), &wanted);
        // What a ReLU does behind it has the bits of a pass of its own.
        let (x, undone) = (Buffer::of(q, "x", &numbers(5, x_len)), Buffer::empty(q, "dx undone", x_len));
        operations::conv_input_gradient(
            q,
            shape,
            [w_.read(), dy_.read()],
            Some(x.read().into()),
            undone.write(),
        );
        operations::relu_gradient(q, x.read(), dx.write());
        undone.has_bits(&format!("dx of {shape:?} behind a ReLU"), &dx.now());
    }
}

fn weight_gradient(q: &StandIn, shapes: &[Conv3dShape]) {
    for shape in shapes {
        let [x_len, w_len, y_len] = lengths(shape);
        let (x, dy) = (numbers(1, x_len), numbers(4, y_len));
        let (x_, dy_) = (Buffer::of(q, "x", &x), Buffer::of(q, "dy", &dy));
        let (mut wanted, mut wanted_db) = (vec![0.0; w_len], vec![0.0; shape.outputs]);
        let mut scratch = vec![0.0; cpu().conv_scratch(shape).expect("the CPU has them")];
        cpu().conv_weight_gradient(shape, &x, &dy, &mut wanted, Some(&mut wanted_db), &mut scratch);
        let in_order = orders::weight_gradient(shape, &x, &dy);
        for with_db in [true, false] {
            let (dw, db) = (Buffer::empty(q, "dw", w_len), Buffer::empty(q, "db", shape.outputs));
            let scratch = Buffer::empty(q, "scratch", operations::conv_scratch(shape));
            let to = with_db.then(|| db.write());
            operations::conv_weight_gradient(
                q,
                shape,
                x_.read(),
                dy_.read(),
                WeightGradients { dw: dw.write(), db: to },
                scratch.write(),
            );
            dw.is_near(&format!("dw of {shape:?}"), &wanted);
            dw.has_bits(&format!("dw of {shape:?}"), &in_order);
            if with_db {
                let cells = volume(shape.output_size());
                db.is_near(&format!("db of {shape:?}"), &wanted_db);
                db.has_bits(&format!("db of {shape:?}"), &orders::plane_sums([shape.outputs, cells], &dy));
            }
        }
    }
}
