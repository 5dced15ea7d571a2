//! Convolutions of numbers that are stored in any way; the gradient of weights is f32.
//!
//! This file does not know batch norm or pooling.

use super::elementwise::code;
use super::product::TILE;
use super::ranges::filling;
use super::sums::{Parts, plane_sums, plane_sums_scratch, sum_parts};
use super::tiles::{Tile, quickest};
use super::{FloatsMut, Storage, Values, ValuesMut, alike, room, same, size};
use crate::kernels;
use crate::launch::{Argument, KernelLaunch, Queue};
use crate::values::nothing;
use dtrain_engine::device::{Activation, Conv3dShape, ConvShape, Operands};

/// Blocks that a weight gradient is cut for: some for each place that the largest GPU has for one. The sums of all ranges are then at
/// most so many tiles.
const BLOCKS: usize = 2048;

/// The kernels of a kind of convolutions, by tile.
struct Kernels {
    forward: &'static [Tile],
    input: &'static [Tile],
    weights: &'static [Tile],
}

static FLAT: Kernels = Kernels {
    forward: &[
        Tile::new([64, 64], 379, &kernels::CONV2D_64X64),
        Tile::new([32, 256], 760, &kernels::CONV2D_32X256),
        Tile::new([64, 128], 690, &kernels::CONV2D_64X128),
        Tile::new([128, 128], 1226, &kernels::CONV2D_128X128),
    ],
    input: &[
        Tile::new([64, 64], 379, &kernels::CONV2D_INPUT_GRADIENT_64X64),
        Tile::new([32, 256], 788, &kernels::CONV2D_INPUT_GRADIENT_32X256),
        Tile::new([64, 128], 715, &kernels::CONV2D_INPUT_GRADIENT_64X128),
        Tile::new([128, 128], 1245, &kernels::CONV2D_INPUT_GRADIENT_128X128),
    ],
    weights: &[
        Tile::new([64, 64], 455, &kernels::CONV2D_WEIGHT_GRADIENT_64X64),
        Tile::new([32, 64], 325, &kernels::CONV2D_WEIGHT_GRADIENT_32X64),
        Tile::new([128, 128], 1304, &kernels::CONV2D_WEIGHT_GRADIENT_128X128),
    ],
};
static FLAT_BF16: Kernels = Kernels {
    forward: &[Tile::only(&kernels::CONV2D_BF16)],
    input: &[Tile::only(&kernels::CONV2D_BF16_INPUT_GRADIENT)],
    weights: &[Tile::only(&kernels::CONV2D_BF16_WEIGHT_GRADIENT)],
};
static FLAT_F16: Kernels = Kernels {
    forward: &[Tile::only(&kernels::CONV2D_F16)],
    input: &[Tile::only(&kernels::CONV2D_F16_INPUT_GRADIENT)],
    weights: &[Tile::only(&kernels::CONV2D_F16_WEIGHT_GRADIENT)],
};
static DEEP: Kernels = Kernels {
    forward: &[
        Tile::new([64, 64], 383, &kernels::CONV3D_64X64),
        Tile::new([32, 256], 793, &kernels::CONV3D_32X256),
        Tile::new([64, 128], 707, &kernels::CONV3D_64X128),
        Tile::new([128, 128], 1243, &kernels::CONV3D_128X128),
    ],
    input: &[
        Tile::new([64, 64], 403, &kernels::CONV3D_INPUT_GRADIENT_64X64),
        Tile::new([32, 256], 840, &kernels::CONV3D_INPUT_GRADIENT_32X256),
        Tile::new([64, 128], 743, &kernels::CONV3D_INPUT_GRADIENT_64X128),
        Tile::new([128, 128], 1271, &kernels::CONV3D_INPUT_GRADIENT_128X128),
    ],
    weights: &[
        Tile::new([64, 64], 484, &kernels::CONV3D_WEIGHT_GRADIENT_64X64),
        Tile::new([32, 64], 349, &kernels::CONV3D_WEIGHT_GRADIENT_32X64),
        Tile::new([128, 128], 1337, &kernels::CONV3D_WEIGHT_GRADIENT_128X128),
    ],
};
static DEEP_BF16: Kernels = Kernels {
    forward: &[Tile::only(&kernels::CONV3D_BF16)],
    input: &[Tile::only(&kernels::CONV3D_BF16_INPUT_GRADIENT)],
    weights: &[Tile::only(&kernels::CONV3D_BF16_WEIGHT_GRADIENT)],
};
static DEEP_F16: Kernels = Kernels {
    forward: &[Tile::only(&kernels::CONV3D_F16)],
    input: &[Tile::only(&kernels::CONV3D_F16_INPUT_GRADIENT)],
    weights: &[Tile::only(&kernels::CONV3D_F16_WEIGHT_GRADIENT)],
};

/// What is one element deep is an image.
fn kernels_of(storage: Storage, shape: &Conv3dShape) -> &'static Kernels {
    let flat = [&FLAT, &FLAT_BF16, &FLAT_F16];
    storage.of(if shape.flat().is_some() { flat } else { [&DEEP, &DEEP_BF16, &DEEP_F16] })
}

/// Weights as the kernels of a storage take them: the copy in halves, where those are wanted.
///
/// *Panics* on weights without one.
fn weights(storage: Storage, w: Values<'_>) -> Argument {
    match storage {
        Storage::F32 => w.floats().into(),
        Storage::Half(_) => w.halves().expect("weights have a copy in halves").into(),
    }
}

/// A convolution as its kernels see it.
struct Plan {
    /// Elements of input, weights, output.
    lengths: [usize; 3],
    /// Places in the kernels of one output.
    terms: usize,
    /// Outputs of one channel in all images.
    cells: usize,
    /// Ranges of cells of a weight gradient.
    splits: usize,
    argument: Argument,
}

impl Plan {
    /// Launches one of the three, over so many ranges of K.
    fn launch<const N: usize>(
        &self,
        queue: &impl Queue,
        storage: Storage,
        tiles: &'static [Tile],
        matrix: [usize; 2],
        ranges: usize,
        arguments: [Argument; N],
    ) {
        let tile = quickest(queue.multiprocessors(), tiles, matrix, ranges);
        let launch = KernelLaunch::new(tile.kernel, tile.of(matrix) * ranges, arguments);
        let operations = 2 * self.terms * self.lengths[2];
        queue.launch(&match storage {
            Storage::F32 => launch.multiplies_in_f32(operations),
            Storage::Half(_) => launch.multiplies(operations),
        });
    }
}

/// Elements of the input, the weights and the output.
#[must_use]
pub fn conv_lengths(shape: &Conv3dShape) -> [usize; 3] {
    planned(shape).lengths
}

fn volume(sides: [usize; 3]) -> usize {
    sides.iter().product()
}

/// A shape as the kernels are given it.
fn fields<const N: usize, const FIELDS: usize>(shape: &ConvShape<N>) -> [u32; FIELDS] {
    let ConvShape { images, channels, size: sides, outputs, kernel, stride, padding } = *shape;
    let fields = [images, channels].into_iter().chain(sides).chain([outputs]);
    let fields = fields.chain(kernel).chain(stride).chain(padding).chain(shape.output_size());
    let mut fields = fields.map(size);
    std::array::from_fn(|_| fields.next().expect("three numbers, and five for each axis"))
}

fn planned(shape: &Conv3dShape) -> Plan {
    for d in [0, 1, 2] {
        let fits = shape.stride[d] > 0
            && shape.kernel[d] > 0
            && shape.size[d] + 2 * shape.padding[d] >= shape.kernel[d];
        assert!(fits, "a kernel larger than the image: {shape:?}");
    }
    let terms = shape.channels * volume(shape.kernel);
    let cells = shape.images * volume(shape.output_size());
    let elements = shape.images * volume(shape.size);
    // Kernels count columns of a product in 32 bits.
    size(cells.max(elements));
    Plan {
        lengths: [elements * shape.channels, shape.outputs * terms, cells * shape.outputs],
        terms,
        cells,
        splits: filling(BLOCKS, tiles(shape.outputs, terms), cells),
        argument: match shape.flat() {
            Some(flat) => Argument::Conv2d(fields(&flat)),
            None => Argument::Conv3d(fields(shape)),
        },
    }
}

fn tiles(rows: usize, columns: usize) -> usize {
    rows.div_ceil(TILE) * columns.div_ceil(TILE)
}

/// Elements of scratch that the weight gradient needs. A function of the shape alone.
#[must_use]
pub fn conv_scratch(shape: &Conv3dShape) -> usize {
    let plan = planned(shape);
    let bias = plane_sums_scratch([shape.images, shape.outputs, volume(shape.output_size())]);
    bias.max(if plan.splits > 1 { plan.splits * plan.lengths[1] } else { 0 })
}

/// Convolution with bias and activation.
pub fn conv<'x, 'y>(
    queue: &impl Queue,
    shape: &Conv3dShape,
    operands: Operands<impl Into<Values<'x>>>,
    activation: Activation,
    y: impl Into<ValuesMut<'y>>,
) {
    let Operands { x, w, bias } = operands;
    let (x, w, bias, mut y) = (x.into(), w.into(), bias.map(|bias| bias.into().floats()), y.into());
    let storage = alike(x.storage(), &[y.storage()]);
    let plan = planned(shape);
    let [x_len, w_len, y_len] = plan.lengths;
    same("x", x.len(), x_len);
    same("w", w.len(), w_len);
    same("y", y.len(), y_len);
    same("bias", bias.map_or(shape.outputs, |bias| bias.len()), shape.outputs);
    if y_len > 0 {
        let (w, bias) = (weights(storage, w), bias.into());
        let arguments = [x.into(), w, bias, (&mut y).into(), plan.argument, code(activation).into()];
        plan.launch(
            queue,
            storage,
            kernels_of(storage, shape).forward,
            [shape.outputs, plan.cells],
            1,
            arguments,
        );
    }
}

/// `dx` of a convolution. Where `x` is given, it is what a ReLU gave to be convolved, and what that does to the gradient is done too.
pub fn conv_input_gradient<'x, 'y>(
    queue: &impl Queue,
    shape: &Conv3dShape,
    [w, dy]: [impl Into<Values<'x>>; 2],
    x: Option<Values<'_>>,
    dx: impl Into<ValuesMut<'y>>,
) {
    let (w, dy, mut dx) = (w.into(), dy.into(), dx.into());
    let storage = alike(dy.storage(), &[dx.storage(), x.map_or(dx.storage(), |x| x.storage())]);
    let plan = planned(shape);
    let [x_len, w_len, y_len] = plan.lengths;
    same("w", w.len(), w_len);
    same("dy", dy.len(), y_len);
    same("x", x.map_or(x_len, |x| x.len()), x_len);
    same("dx", dx.len(), x_len);
    if x_len > 0 {
        let matrix = [shape.channels, x_len / shape.channels];
        let x = x.map_or(nothing(storage), Into::into);
        let arguments = [weights(storage, w), dy.into(), x, (&mut dx).into(), plan.argument];
        plan.launch(queue, storage, kernels_of(storage, shape).input, matrix, 1, arguments);
    }
}

/// What the gradient of a convolution's parameters writes.
pub struct WeightGradients<'a> {
    /// Of the weights.
    pub dw: FloatsMut<'a>,
    /// Of the bias, if there is one.
    pub db: Option<FloatsMut<'a>>,
}

/// `dw` and, if asked, `db` of a convolution. `scratch` has [`conv_scratch`] elements.
pub fn conv_weight_gradient<'x>(
    queue: &impl Queue,
    shape: &Conv3dShape,
    x: impl Into<Values<'x>>,
    dy: impl Into<Values<'x>>,
    gradients: WeightGradients<'_>,
    mut scratch: FloatsMut<'_>,
) {
    let (x, dy) = (x.into(), dy.into());
    let storage = alike(x.storage(), &[dy.storage()]);
    let WeightGradients { mut dw, db } = gradients;
    let plan = planned(shape);
    let [x_len, w_len, y_len] = plan.lengths;
    same("x", x.len(), x_len);
    same("dy", dy.len(), y_len);
    same("dw", dw.len(), w_len);
    room("scratch", scratch.len(), conv_scratch(shape));
    if w_len > 0 {
        let matrix = [shape.outputs, plan.terms];
        let to: Argument = if plan.splits > 1 { (&mut scratch).into() } else { (&mut dw).into() };
        let arguments = [x.into(), dy.into(), to, plan.argument, size(plan.splits).into()];
        plan.launch(queue, storage, kernels_of(storage, shape).weights, matrix, plan.splits, arguments);
        if plan.splits > 1 {
            let parts = Parts { len: w_len, count: plan.splits, pitch: w_len };
            sum_parts(queue, &parts, scratch.read().part(0..plan.splits * w_len), dw);
        }
    }
    if let Some(db) = db {
        conv_bias_gradient(queue, shape, dy, db, scratch);
    }
}

/// `db` of a convolution alone. `scratch` has [`conv_scratch`] elements.
pub fn conv_bias_gradient<'x>(
    queue: &impl Queue,
    shape: &Conv3dShape,
    dy: impl Into<Values<'x>>,
    db: FloatsMut<'_>,
    scratch: FloatsMut<'_>,
) {
    let dy = dy.into();
    let planes = [shape.images, shape.outputs, volume(shape.output_size())];
    same("dy", dy.len(), planes.iter().product());
    same("db", db.len(), shape.outputs);
    if dy.len() == 0 {
        return super::fill(queue, db, 0.0);
    }
    plane_sums(queue, planes, dy, db, scratch);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image of channels, its weights' kernels of 3 x 3.
    fn shape(images: usize, channels: usize, side: usize, outputs: usize) -> Conv3dShape {
        Conv3dShape {
            images,
            channels,
            size: [1, side, side],
            outputs,
            kernel: [1, 3, 3],
            stride: [1; 3],
            padding: [0, 1, 1],
        }
    }

    #[test]
    fn a_weight_gradient_is_cut_until_it_fills_a_gpu_or_its_ranges_are_short() {
        for (shape, splits) in [
            // One tile: as many ranges as there are places for blocks, or fewer that are long enough.
            (shape(4096, 1, 28, 32), 2048),
            (shape(128, 1, 28, 32), 196),
            (shape(1, 1, 5, 3), 1),
            // 5 tiles, 576 and 2304.
            (shape(4096, 32, 26, 64), 409),
            (shape(4096, 512, 7, 512), 3),
            (shape(4096, 1024, 7, 1024), 1),
        ] {
            let plan = planned(&shape);
            assert_eq!(plan.splits, splits, "{shape:?}");
            // Each range has a cell at least, and the sums of all no more room than the blocks have.
            assert!(
                plan.cells >= splits && (splits == 1 || splits * plan.lengths[1] <= BLOCKS * TILE * TILE)
            );
        }
        assert_eq!(planned(&shape(0, 1, 28, 32)).splits, 1);
    }
}
