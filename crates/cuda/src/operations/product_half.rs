//! Matrix products of halves on tensor cores, by the kernels that are always there.
//!
//! This file does not know libraries of products, nor who asks for halves.

use super::elementwise::code;
use super::product::{by_tanh, hold, linear_lengths, product_of_linear};
use super::ranges::{BLOCKS, Ending, are_enough, filling, finish, ranges, room_for};
use super::sums::{Parts, sum_parts};
use super::{
    Floats, FloatsMut, Half, Halves, HalvesMut, Storage, Values, ValuesMut, pitch_of, room, same, size,
};
use crate::kernels::{self, Kernel};
use crate::launch::{Argument, KernelLaunch, Queue};
use dtrain_engine::device::{Activation, Gelu, LinearShape, Operands, Product, Strides, Write};

/// The kernels of a tile: rows by columns (`x w'`), rows by rows (`dy w`), columns by rows (`dy' x`).
type Tile = (usize, [&'static Kernel; 3]);

/// The place of those of gradients of weights.
const COLUMNS_BY_ROWS: usize = 2;

static OF_BF16: [Tile; 2] = [
    (64, [&kernels::PRODUCT_BF16_NT_64, &kernels::PRODUCT_BF16_NN_64, &kernels::PRODUCT_BF16_TN_64]),
    (128, [&kernels::PRODUCT_BF16_NT_128, &kernels::PRODUCT_BF16_NN_128, &kernels::PRODUCT_BF16_TN_128]),
];
static OF_F16: [Tile; 2] = [
    (64, [&kernels::PRODUCT_F16_NT_64, &kernels::PRODUCT_F16_NN_64, &kernels::PRODUCT_F16_TN_64]),
    (128, [&kernels::PRODUCT_F16_NT_128, &kernels::PRODUCT_F16_NN_128, &kernels::PRODUCT_F16_TN_128]),
];

/// The kernels of a linear layer with GELU behind it, by tile.
static GELU_OF_BF16: [(usize, &Kernel); 2] =
    [(64, &kernels::LINEAR_BF16_GELU_64), (128, &kernels::LINEAR_BF16_GELU_128)];
static GELU_OF_F16: [(usize, &Kernel); 2] =
    [(64, &kernels::LINEAR_F16_GELU_64), (128, &kernels::LINEAR_F16_GELU_128)];

/// Where a result goes.
#[derive(Debug)]
pub enum HalfResult<'a> {
    /// Rounded as the operands were.
    Half(HalvesMut<'a>),
    /// As it was summed.
    F32(FloatsMut<'a>),
}

impl HalfResult<'_> {
    fn storage(&self, half: Half) -> Storage {
        match self {
            Self::Half(_) => Storage::Half(half),
            Self::F32(_) => Storage::F32,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Half(c) => c.len(),
            Self::F32(c) => c.len(),
        }
    }

    /// *Panics* if it, or an operand, is not as long as the shape says.
    pub(crate) fn holds(&self, shape: &Product, [a, b]: [Halves<'_>; 2]) {
        hold(shape, [a.len(), b.len(), self.len()]);
    }
}

/// How a matrix lies: from row to row, or from column to column where columns are contiguous.
fn pitch(strides: Strides) -> Option<(usize, bool)> {
    match strides {
        Strides { row, col: 1 } => Some((row, true)),
        Strides { row: 1, col } => Some((col, false)),
        _ => None,
    }
}

/// Which of a tile's kernels a shape has, and from line to line of A and of B; nothing on layouts that no gradient of a linear
/// layer has.
fn layouts(shape: &Product) -> Option<(usize, usize, usize)> {
    match (pitch(shape.a)?, pitch(shape.b)?) {
        ((a, true), (b, false)) => Some((0, a, b)),
        ((a, true), (b, true)) => Some((1, a, b)),
        ((a, false), (b, true)) => Some((COLUMNS_BY_ROWS, a, b)),
        ((_, false), (_, false)) => None,
    }
}

/// Whether there are kernels for a shape: rows or columns of A and rows or columns of B are contiguous, but not columns of A by
/// columns of B.
#[must_use]
pub fn product_half_is_there(shape: &Product) -> bool {
    layouts(shape).is_some()
}

/// Whether lines come 16 bytes at a time: those that begin at 16 bytes.
fn is_fast(at: u64, pitch: usize) -> u32 {
    u32::from(at.is_multiple_of(16) && pitch.is_multiple_of(8))
}

/// In how many ranges K is cut. A result in f32 is a gradient of weights: those lie densely, and have the longest K.
fn cut(shape: &Product, result: Storage) -> usize {
    let Some((which, ..)) = layouts(shape).filter(|_| shape.m * shape.n > 0 && shape.write == Write::Set)
    else {
        return 1;
    };
    match (result, which) {
        (Storage::F32, COLUMNS_BY_ROWS) if shape.c_row == shape.n => {
            let (tile, _) = OF_BF16[usize::from(are_enough(shape.m, shape.n))];
            let tiles = shape.m.div_ceil(tile) * shape.n.div_ceil(tile);
            filling(BLOCKS, tiles, shape.k)
        }
        (Storage::F32, _) => 1,
        (Storage::Half(_), _) => ranges(shape.n, shape.k),
    }
}

/// Elements of scratch that [`product_half`] wants for a result that lies so.
#[must_use]
pub fn product_half_scratch(shape: &Product, result: Storage) -> usize {
    room_for(cut(shape, result), shape)
}

/// The same of [`linear_half`].
#[must_use]
pub fn linear_half_scratch(half: Half, shape: LinearShape) -> usize {
    product_half_scratch(&product_of_linear(shape, shape.outputs), Storage::Half(half))
}

/// Which kernel of a tile a shape has, the tile, and from line to line of A and of B.
///
/// *Panics* where [`product_half_is_there`] says no.
fn planned(half: Half, shape: &Product) -> (usize, &'static Tile, usize, usize) {
    let found = layouts(shape);
    let (which, a_pitch, b_pitch) =
        found.unwrap_or_else(|| panic!("no product of halves has these layouts: {shape:?}"));
    let all = match half {
        Half::Bf16 => &OF_BF16,
        Half::F16 => &OF_F16,
    };
    (which, &all[usize::from(are_enough(shape.m, shape.n))], a_pitch, b_pitch)
}

/// A product, or the sums of so many ranges of it, one behind the other.
fn launched(
    queue: &impl Queue,
    half: Half,
    (shape, ranges): (&Product, usize),
    [a, b]: [Halves<'_>; 2],
    mut c: HalfResult<'_>,
    ending: Ending<'_>,
) {
    c.holds(shape, [a, b]);
    let adds = shape.write == Write::Add;
    assert!(!adds || ending.plus.is_none(), "one thing is added to a sum: {shape:?}");
    same("plus", ending.plus.map_or(c.len(), |plus| plus.len()), c.len());
    if shape.m * shape.n == 0 {
        return;
    }
    let (which, (tile, kernels), a_pitch, b_pitch) = planned(half, shape);
    let aligned = is_fast(a.address(), a_pitch) | is_fast(b.address(), b_pitch) << 1;
    let [m, n, k] = [shape.m, shape.n, shape.k].map(|n| size(n).into());
    let [a_pitch, b_pitch, c_pitch] = [a_pitch, b_pitch, shape.c_row].map(|n| (n as u64).into());
    let (plus, added) = (ending.plus.and_then(Values::halves).into(), u32::from(adds));
    let (floats, halves, plus, adds_floats) = match &mut c {
        HalfResult::F32(c) => (c.into(), Argument::none('H'), plus, added),
        // What is there is added before the sum is rounded, by the thread that writes it.
        HalfResult::Half(c) if adds => (Argument::none('F'), c.into(), c.read().into(), 0),
        HalfResult::Half(c) => (Argument::none('F'), c.into(), plus, 0),
    };
    let arguments = [
        a.into(),
        b.into(),
        ending.bias.into(),
        plus,
        floats,
        halves,
        m,
        n,
        k,
        a_pitch,
        b_pitch,
        c_pitch,
        adds_floats.into(),
        code(ending.activation).into(),
        aligned.into(),
        size(ranges).into(),
    ];
    let tiles = shape.m.div_ceil(*tile) * shape.n.div_ceil(*tile);
    let again = if adds_floats > 0 { 4 * shape.m * shape.n } else { 0 };
    let launch = KernelLaunch::new(kernels[which], tiles * ranges, arguments).and_moves(again);
    queue.launch(&launch.multiplies(operations(shape.m, shape.n, shape.k)));
}

/// Multiplications and additions of a product.
fn operations(m: usize, n: usize, k: usize) -> usize {
    2 * m * n * k
}

fn finished(
    queue: &impl Queue,
    half: Half,
    shape: &Product,
    operands: [Halves<'_>; 2],
    c: HalfResult<'_>,
    ending: Ending<'_>,
    mut scratch: FloatsMut<'_>,
) {
    c.holds(shape, operands);
    let (ranges, len) = (cut(shape, c.storage(half)), shape.m * shape.n);
    if ranges == 1 {
        return launched(queue, half, (shape, 1), operands, c, ending);
    }
    let dense = Product { c_row: shape.n, ..*shape };
    room("scratch", scratch.len(), ranges * len);
    let mut parts = scratch.part(0..ranges * len);
    let sums = HalfResult::F32(parts.part(0..ranges * len));
    launched(queue, half, (&dense, ranges), operands, sums, Ending::PLAIN);
    match c {
        HalfResult::F32(mut c) => {
            let all = Parts { len, count: ranges, pitch: len };
            sum_parts(queue, &all, parts.read(), c.part(0..len));
        }
        HalfResult::Half(c) => finish(queue, shape, parts.read(), ending, ValuesMut::halves_of(c, half)),
    }
}

/// `C = A B` or `C += A B`, rounded once. `scratch` has [`product_half_scratch`] elements. *Order*: K in steps of 16 from the first, in
/// ranges where that wants scratch, whose sums are added then: of f32 by `sum_parts`, of halves in order; then C.
///
/// *Panics* where [`product_half_is_there`] says no.
pub fn product_half(
    queue: &impl Queue,
    half: Half,
    shape: &Product,
    operands: [Halves<'_>; 2],
    c: HalfResult<'_>,
    scratch: FloatsMut<'_>,
) {
    finished(queue, half, shape, operands, c, Ending::PLAIN, scratch);
}

/// `y[rows, out] = act(x[rows, in] w[out, in]^T + bias[out]) + plus[rows, out]`; the bias is f32 and added before the sum is
/// rounded, and so is `plus`, if there is one. The rows of `y` may lie further apart than they are long. `scratch` has
/// [`linear_half_scratch`] elements.
pub fn linear_half(
    queue: &impl Queue,
    half: Half,
    shape: LinearShape,
    operands: Operands<Halves<'_>, Floats<'_>>,
    (activation, plus): (Activation, Option<Halves<'_>>),
    y: HalfResult<'_>,
    scratch: FloatsMut<'_>,
) {
    let (LinearShape { rows, outputs, .. }, Operands { x, w, bias }) = (shape, operands);
    let pitch = pitch_of("y", y.len(), rows, outputs);
    linear_lengths(shape, [x.len(), w.len(), rows * outputs], bias);
    let product = product_of_linear(shape, pitch);
    let ending = Ending { bias, activation, plus: plus.map(|plus| Values::halves_of(plus, half)) };
    finished(queue, half, &product, [x, w], y, ending, scratch);
}

/// `z[rows, out] = x[rows, in] w[out, in]^T + bias[out]` and `y = gelu(z)`, in halves: where K is not cut the bits of
/// [`linear_half`] and of [`gelu`](super::gelu) behind it.
pub fn linear_gelu_half(
    queue: &impl Queue,
    half: Half,
    shape: LinearShape,
    operands: Operands<Halves<'_>, Floats<'_>>,
    form: Gelu,
    [mut z, mut y]: [HalvesMut<'_>; 2],
) {
    let (LinearShape { rows, inputs, outputs }, Operands { x, w, bias }) = (shape, operands);
    linear_lengths(shape, [x.len(), w.len(), y.len()], bias);
    same("z", z.len(), y.len());
    if y.len() == 0 {
        return;
    }
    let all = match half {
        Half::Bf16 => &GELU_OF_BF16,
        Half::F16 => &GELU_OF_F16,
    };
    let (tile, kernel) = all[usize::from(are_enough(rows, outputs))];
    let aligned = is_fast(x.address(), inputs) | is_fast(w.address(), inputs) << 1;
    let [m, n, k] = [rows, outputs, inputs].map(|n| size(n).into());
    let (z, y, form) = ((&mut z).into(), (&mut y).into(), by_tanh(form).into());
    let arguments = [x.into(), w.into(), bias.into(), z, y, m, n, k, form, aligned.into()];
    let blocks = rows.div_ceil(tile) * outputs.div_ceil(tile);
    let launch = KernelLaunch::new(kernel, blocks, arguments);
    queue.launch(&launch.multiplies(operations(rows, outputs, inputs)));
}
