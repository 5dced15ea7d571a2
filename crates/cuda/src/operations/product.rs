//! Matrix products by the kernel that is always there.
//!
//! This file does not know libraries of products.

use super::elementwise::code;
use super::ranges::{Ending, finish, room_for, whole_ranges};
use super::tiles::{Tile, quickest};
use super::{Floats, FloatsMut, room, same, size};
use crate::kernels;
use crate::launch::{KernelLaunch, Queue};
use dtrain_engine::device::{Activation, Gelu, LinearShape, Operands, Product, Strides, Write};

/// Rows and columns of the tiles by which it is decided whether K is cut.
pub(super) const TILE: usize = 64;

/// The kernels by tile.
static PRODUCTS: [Tile; 3] = [
    Tile::new([64, 64], 364, &kernels::PRODUCT_64X64),
    Tile::new([32, 64], 225, &kernels::PRODUCT_32X64),
    Tile::new([128, 128], 1190, &kernels::PRODUCT_128X128),
];
static GELUS: [Tile; 3] = [
    Tile::new([64, 64], 352, &kernels::LINEAR_GELU_64X64),
    Tile::new([32, 64], 227, &kernels::LINEAR_GELU_32X64),
    Tile::new([128, 128], 1176, &kernels::LINEAR_GELU_128X128),
];

/// Elements from the first of a matrix to its last.
pub(super) fn reach(rows: usize, columns: usize, strides: Strides) -> usize {
    if rows * columns == 0 { 0 } else { (rows - 1) * strides.row + (columns - 1) * strides.col + 1 }
}

/// Asserts that a matrix lies within its memory.
#[track_caller]
pub(super) fn inside(what: &str, len: usize, rows: usize, columns: usize, strides: Strides) {
    let most = reach(rows, columns, strides);
    assert!(most <= len, "{what} has {len} elements, its shape reaches to {most}");
}

/// Asserts that operands and result of a product, of these lengths, are as long as its shape says.
#[track_caller]
pub(crate) fn hold(shape: &Product, [a, b, c]: [usize; 3]) {
    inside("a", a, shape.m, shape.k, shape.a);
    inside("b", b, shape.k, shape.n, shape.b);
    inside("c", c, shape.m, shape.n, Strides::rows(shape.c_row));
    assert!(shape.m < 2 || shape.c_row >= shape.n, "rows of c overlap: {shape:?}");
}

/// The product of a linear layer, whose results lie `pitch` apart.
pub(crate) fn product_of_linear(shape: LinearShape, pitch: usize) -> Product {
    let LinearShape { rows, inputs, outputs } = shape;
    Product {
        m: rows,
        n: outputs,
        k: inputs,
        a: Strides::rows(inputs),
        b: Strides::transposed(inputs),
        c_row: pitch,
        write: Write::Set,
    }
}

/// In how many ranges K is cut, each a block in which the CPU adds up.
fn cut(shape: &Product) -> usize {
    let tiles = shape.m.div_ceil(TILE) * shape.n.div_ceil(TILE);
    if shape.write == Write::Add { 1 } else { whole_ranges(tiles, shape.k) }
}

/// Elements of scratch that [`product`] wants.
#[must_use]
pub fn product_scratch(shape: &Product) -> usize {
    room_for(cut(shape), shape)
}

/// The same of [`linear`].
#[must_use]
pub fn linear_scratch(shape: LinearShape) -> usize {
    product_scratch(&product_of_linear(shape, shape.outputs))
}

fn finished(
    queue: &impl Queue,
    shape: &Product,
    a: Floats<'_>,
    b: Floats<'_>,
    c: FloatsMut<'_>,
    ending: Ending<'_>,
    mut scratch: FloatsMut<'_>,
) {
    hold(shape, [a.len(), b.len(), c.len()]);
    if shape.m * shape.n == 0 {
        return;
    }
    let ranges = cut(shape);
    if ranges == 1 {
        return launched(queue, (shape, ranges), [a, b], c, ending);
    }
    let len = product_scratch(shape);
    room("scratch", scratch.len(), len);
    let dense = Product { c_row: shape.n, ..*shape };
    launched(queue, (&dense, ranges), [a, b], scratch.part(0..len), Ending::PLAIN);
    finish(queue, shape, scratch.read().part(0..len), ending, c.into());
}

/// A product, or the sums of so many ranges of it, one behind the other.
fn launched(
    queue: &impl Queue,
    (shape, ranges): (&Product, usize),
    [a, b]: [Floats<'_>; 2],
    mut c: FloatsMut<'_>,
    ending: Ending<'_>,
) {
    let [m, n, k] = [shape.m, shape.n, shape.k].map(|n| size(n).into());
    let strides =
        [shape.a.row, shape.a.col, shape.b.row, shape.b.col, shape.c_row].map(|n| (n as u64).into());
    let [a_row, a_column, b_row, b_column, c_row] = strides;
    let arguments = [
        a.into(),
        b.into(),
        ending.bias.into(),
        (&mut c).into(),
        m,
        n,
        k,
        a_row,
        a_column,
        b_row,
        b_column,
        c_row,
        u32::from(shape.write == Write::Add).into(),
        code(ending.activation).into(),
        size(ranges).into(),
    ];
    let matrix = [shape.m, shape.n];
    let tile = quickest(queue.multiprocessors(), &PRODUCTS, matrix, ranges);
    let launch = KernelLaunch::new(tile.kernel, tile.of(matrix) * ranges, arguments);
    queue.launch(&launch.multiplies_in_f32(2 * shape.m * shape.n * shape.k));
}

/// `C = A B` or `C += A B`. `scratch` has [`product_scratch`] elements. *Order*: K in blocks of 512 from zero, each in order by fused
/// multiply-add, blocks added in order, then C.
pub fn product(
    queue: &impl Queue,
    shape: &Product,
    a: Floats<'_>,
    b: Floats<'_>,
    c: FloatsMut<'_>,
    scratch: FloatsMut<'_>,
) {
    finished(queue, shape, a, b, c, Ending::PLAIN, scratch);
}

/// Asserts the lengths of the operands of a linear layer.
#[track_caller]
pub(super) fn linear_lengths(shape: LinearShape, [x, w, y]: [usize; 3], bias: Option<Floats<'_>>) {
    let LinearShape { rows, inputs, outputs } = shape;
    same("x", x, rows * inputs);
    same("w", w, outputs * inputs);
    same("y", y, rows * outputs);
    same("bias", bias.map_or(outputs, |bias| bias.len()), outputs);
}

/// `y[rows, out] = act(x[rows, in] w[out, in]^T + bias[out])`; the bias is added after the sum. `scratch` has [`linear_scratch`]
/// elements.
pub fn linear(
    queue: &impl Queue,
    shape: LinearShape,
    operands: Operands<Floats<'_>>,
    activation: Activation,
    y: FloatsMut<'_>,
    scratch: FloatsMut<'_>,
) {
    let Operands { x, w, bias } = operands;
    linear_lengths(shape, [x.len(), w.len(), y.len()], bias);
    let product = product_of_linear(shape, shape.outputs);
    finished(queue, &product, x, w, y, Ending { bias, activation, plus: None }, scratch);
}

/// What the kernels call a form of GELU: whether it is by way of tanh.
pub(super) fn by_tanh(form: Gelu) -> u32 {
    match form {
        Gelu::Exact => 0,
        Gelu::Tanh => 1,
    }
}

/// `z[rows, out] = x[rows, in] w[out, in]^T + bias[out]` and `y = gelu(z)`: the bits of [`linear`] and of
/// [`gelu`](super::gelu) behind it.
pub fn linear_gelu(
    queue: &impl Queue,
    shape: LinearShape,
    operands: Operands<Floats<'_>>,
    form: Gelu,
    mut z: FloatsMut<'_>,
    mut y: FloatsMut<'_>,
) {
    let (LinearShape { rows, inputs, outputs }, Operands { x, w, bias }) = (shape, operands);
    linear_lengths(shape, [x.len(), w.len(), y.len()], bias);
    same("z", z.len(), y.len());
    if y.len() == 0 {
        return;
    }
    let [m, n, k] = [rows, outputs, inputs].map(|n| size(n).into());
    let (z, y, form) = ((&mut z).into(), (&mut y).into(), by_tanh(form).into());
    let arguments = [x.into(), w.into(), bias.into(), z, y, m, n, k, form];
    let tile = quickest(queue.multiprocessors(), &GELUS, [rows, outputs], 1);
    let launch = KernelLaunch::new(tile.kernel, tile.of([rows, outputs]), arguments);
    queue.launch(&launch.multiplies_in_f32(2 * rows * outputs * inputs));
}
