//! Checks of products on tensor cores, against f64 on the same halves.
//!
//! A sum in f32 of K terms is off by at most K 2^-24 of the sum of its terms' sizes; one rounding to bf16 by 2^-8 of a result,
//! to f16 by 2^-11.

use super::halves::values;
use super::memory::Wide;
use super::{Buffer, Extent, Kind, StandIn, halves, numbers};
use dtrain_cuda::operations::{self, HalfResult};
use dtrain_cuda::{Storage, Values, ValuesMut};
use dtrain_engine::device::{Activation, Gelu, LinearShape, Operands, Product, Rows, Strides, Write};

const F32: f64 = 1e-6;

/// Rows, columns and K: one element, less than a tile, one tile, more, lines that do not begin at 16 bytes.
const SMALL: [[usize; 3]; 6] =
    [[1, 1, 1], [3, 70, 33], [64, 64, 32], [65, 17, 100], [130, 72, 40], [50, 69, 45]];
/// Enough tiles of 128, most of them not whole.
const LARGE: [[usize; 3]; 1] = [[1410, 1410, 17]];

pub fn wanted<T: Wide>(shape: &Product, a: &[T], b: &[T], c: &[f32]) -> Vec<f64> {
    let Product { m, n, k, .. } = *shape;
    let [a, b] = [a, b].map(|x| x.iter().map(|v| v.wide()).collect::<Vec<_>>());
    let mut out: Vec<f64> = c.iter().map(|v| v.wide()).collect();
    for i in 0..m {
        for j in 0..n {
            let terms =
                (0..k).map(|l| a[i * shape.a.row + l * shape.a.col] * b[l * shape.b.row + j * shape.b.col]);
            let sum: f64 = terms.sum();
            let to = &mut out[i * shape.c_row + j];
            *to = if shape.write == Write::Add { *to + sum } else { sum };
        }
    }
    out
}

/// A product with f32 as its result, and with the scratch that it wants.
pub fn into_floats<K: Kind>(
    q: &StandIn,
    shape: &Product,
    [a, b]: [&Buffer<'_, u16>; 2],
    c: &Buffer<'_, f32>,
) {
    let scratch = Buffer::empty(q, "scratch", operations::product_half_scratch(shape, Storage::F32));
    let to = HalfResult::F32(c.write());
    operations::product_half(q, K::HALF, shape, [a.read(), b.read()], to, scratch.write());
}

/// One layout, to both kinds of results.
fn check<K: Kind>(q: &StandIn, [m, n, k]: [usize; 3], [a_turned, b_turned]: [bool; 2], more: usize) {
    let a = if a_turned { Strides::transposed(m + more) } else { Strides::rows(k + more) };
    let b = if b_turned { Strides::transposed(k + more) } else { Strides::rows(n + more) };
    let far = |rows: usize, columns: usize, s: Strides| (rows - 1) * s.row + (columns - 1) * s.col + 1;
    let (x, y) = (halves::<K>(1, far(m, k, a), 1.0), halves::<K>(2, far(k, n, b), 1.0));
    let (a_, b_) = (Buffer::of(q, "a", &x), Buffer::of(q, "b", &y));
    for write in [Write::Set, Write::Add] {
        let shape = Product { m, n, k, a, b, c_row: n + more, write };
        // What lies between the rows of C stays as it is.
        let before = numbers(3, far(m, n, Strides::rows(n + more)));
        let c = Buffer::of(q, "c", &before);
        into_floats::<K>(q, &shape, [&a_, &b_], &c);
        c.is_within(&format!("{shape:?}"), &wanted(&shape, &values::<K>(&x), &values::<K>(&y), &before), F32);
    }
    // To halves what is there is added before the sum is rounded, and what lies between rows stays too.
    let shape = Product { m, n, k, a, b, c_row: n + more, write: Write::Add };
    let before = halves::<K>(3, far(m, n, Strides::rows(n + more)), 1.0);
    let c = Buffer::of(q, "c", &before);
    let to = HalfResult::Half(c.write());
    let nothing = Buffer::<f32>::empty(q, "scratch", 0);
    operations::product_half(q, K::HALF, &shape, [a_.read(), b_.read()], to, nothing.write());
    let before: Vec<f32> = values::<K>(&before).into_iter().map(|v| v as f32).collect();
    let sums = wanted(&shape, &values::<K>(&x), &values::<K>(&y), &before);
    c.is_within_half::<K>(&format!("{shape:?} to {:?}", K::HALF), &sums, K::ROUNDING);
    let shape = Product { m, n, k, a, b, c_row: n, write: Write::Set };
    let c = Buffer::<u16>::empty(q, "c", m * n);
    let wanted_room = operations::product_half_scratch(&shape, Storage::Half(K::HALF));
    let scratch = Buffer::<f32>::empty(q, "scratch", wanted_room);
    let to = HalfResult::Half(c.write());
    operations::product_half(q, K::HALF, &shape, [a_.read(), b_.read()], to, scratch.write());
    let wanted = wanted(&shape, &values::<K>(&x), &values::<K>(&y), &vec![0.0; m * n]);
    c.is_within_half::<K>(&format!("{shape:?} to {:?}", K::HALF), &wanted, K::ROUNDING);
}

fn all<K: Kind>(q: &StandIn, extent: Extent, turned: [bool; 2]) {
    for &shape in extent.of(1, &SMALL) {
        // Some pitches are multiples of 16 bytes, most are not.
        for more in [0, 3] {
            check::<K>(q, shape, turned, more);
        }
    }
}

/// Some elements of many tiles, both kinds of kernels for the same bits: a taller product has whole tiles of 128.
fn large<K: Kind>(q: &StandIn, turned: [bool; 2]) {
    for [m, n, k] in LARGE {
        let a = if turned[0] { Strides::transposed(m + 6) } else { Strides::rows(k + 7) };
        let b = if turned[1] { Strides::transposed(k + 7) } else { Strides::rows(n + 6) };
        let (x, y) = (halves::<K>(1, (m + 6) * (k + 7), 1.0), halves::<K>(2, (n + 6) * (k + 7), 1.0));
        let (a_, b_) = (Buffer::of(q, "a", &x), Buffer::of(q, "b", &y));
        let c = Buffer::<f32>::empty(q, "c", m * n);
        let shape = Product { m, n, k, a, b, c_row: n, write: Write::Set };
        into_floats::<K>(q, &shape, [&a_, &b_], &c);
        let before = vec![0.0; m * n];
        let wanted = wanted(&shape, &values::<K>(&x), &values::<K>(&y), &before);
        c.is_within(&format!("{shape:?}"), &wanted, F32);
        // The same columns of fewer rows by tiles of 64: the same bits.
        let few = Product { m: 70, ..shape };
        let part = Buffer::<f32>::empty(q, "part", 70 * n);
        into_floats::<K>(q, &few, [&a_, &b_], &part);
        part.has_bits(&format!("{few:?} by smaller tiles"), &c.now()[..70 * n]);
    }
}

pub fn nt<K: Kind>(q: &StandIn, extent: Extent) {
    all::<K>(q, extent, [false, true]);
}

pub fn nn<K: Kind>(q: &StandIn, extent: Extent) {
    all::<K>(q, extent, [false, false]);
}

pub fn tn<K: Kind>(q: &StandIn, extent: Extent) {
    all::<K>(q, extent, [true, false]);
}

/// A gradient of weights with a long K is a sum of ranges, each with the bits of a product of its own.
pub fn ranges<K: Kind>(q: &StandIn, _: Extent) {
    // Three ranges of 352 terms, the last of them shorter; and two of 288 of more than one tile.
    for ([m, n, k], each) in [([3, 70, 1050], 352), ([66, 5, 545], 288)] {
        let (a, b) = (Strides::transposed(m), Strides::rows(n));
        let (x, y) = (halves::<K>(1, m * k, 1.0), halves::<K>(2, n * k, 1.0));
        let (a_, b_, c) =
            (Buffer::of(q, "a", &x), Buffer::of(q, "b", &y), Buffer::<f32>::empty(q, "c", m * n));
        let shape = Product { m, n, k, a, b, c_row: n, write: Write::Set };
        into_floats::<K>(q, &shape, [&a_, &b_], &c);
        let of_range = |from: usize| {
            let end = k.min(from + each);
            let part = Product { k: end - from, ..shape };
            let [a, b] = [&x[from * m..end * m], &y[from * n..end * n]].map(|x| Buffer::of(q, "a range", x));
            let c = Buffer::<f32>::empty(q, "its sums", m * n);
            into_floats::<K>(q, &part, [&a, &b], &c);
            c.now()
        };
        let add = |sums: Vec<f32>, more: Vec<f32>| sums.iter().zip(more).map(|(a, b)| a + b).collect();
        let in_order = (0..k).step_by(each).map(of_range).reduce(add).expect("a range");
        c.has_bits(&format!("{shape:?} in ranges"), &in_order);
    }
}

pub fn large_nt<K: Kind>(q: &StandIn, _: Extent) {
    large::<K>(q, [false, true]);
}

pub fn large_nn<K: Kind>(q: &StandIn, _: Extent) {
    large::<K>(q, [false, false]);
}

pub fn large_tn<K: Kind>(q: &StandIn, _: Extent) {
    large::<K>(q, [true, false]);
}

/// Scratch for a linear layer.
pub fn scratch<'q, K: Kind>(q: &'q StandIn<'q>, shape: LinearShape) -> Buffer<'q, f32> {
    Buffer::empty(q, "scratch", operations::linear_half_scratch(K::HALF, shape))
}

/// Rows, inputs and outputs, the last with so many inputs and so few outputs that its K is cut.
const LAYERS: [(usize, usize, usize); 5] =
    [(1, 1, 1), (65, 24, 10), (7, 130, 70), (5, 20, 7), (67, 2_100, 3)];

pub fn linear<K: Kind>(q: &StandIn, extent: Extent) {
    for &(rows, inputs, width) in extent.of(2, &LAYERS) {
        for (activation, with_bias) in
            [(Activation::None, true), (Activation::Relu, true), (Activation::Relu, false)]
        {
            let (x, w) = (halves::<K>(1, rows * inputs, 1.0), halves::<K>(2, width * inputs, 1.0));
            let bias = numbers(3, width);
            let (x_, w_) = (Buffer::of(q, "x", &x), Buffer::of(q, "w", &w));
            let (bias_, y) = (Buffer::of(q, "bias", &bias), Buffer::<u16>::empty(q, "y", rows * width));
            let shape = Rows { rows, width };
            let given = with_bias.then(|| bias_.read());
            let to = HalfResult::Half(y.write());
            operations::linear_half(
                q,
                K::HALF,
                LinearShape::new(shape, inputs),
                Operands { x: x_.read(), w: w_.read(), bias: given },
                (activation, None),
                to,
                scratch::<K>(q, LinearShape::new(shape, inputs)).write(),
            );
            let (a, b) = (Strides::rows(inputs), Strides::transposed(inputs));
            let product = Product { m: rows, n: width, k: inputs, a, b, c_row: width, write: Write::Set };
            let mut out = wanted(&product, &values::<K>(&x), &values::<K>(&w), &vec![0.0; rows * width]);
            for (i, v) in out.iter_mut().enumerate() {
                *v += if with_bias { bias[i % width].wide() } else { 0.0 };
                *v = if activation == Activation::Relu { v.max(0.0) } else { *v };
            }
            y.is_within_half::<K>(&format!("linear of {shape:?} with {inputs} inputs"), &out, K::ROUNDING);
            // A row has the same bits by itself.
            let (first, one) = (Buffer::<u16>::empty(q, "first row", width), Rows { rows: 1, width });
            let x = Buffer::of(q, "first of x", &x[..inputs]);
            operations::linear_half(
                q,
                K::HALF,
                LinearShape::new(one, inputs),
                Operands { x: x.read(), w: w_.read(), bias: given },
                (activation, None),
                HalfResult::Half(first.write()),
                scratch::<K>(q, LinearShape::new(one, inputs)).write(),
            );
            first.has_bits(&format!("the first row of {shape:?} with {inputs} inputs"), &y.now()[..width]);
        }
    }
}

/// What is added to a linear layer's output is added before the sum is rounded.
pub fn linear_plus<K: Kind>(q: &StandIn, extent: Extent) {
    for &(rows, inputs, width) in extent.of(2, &LAYERS) {
        let (x, w) = (halves::<K>(1, rows * inputs, 1.0), halves::<K>(2, width * inputs, 1.0));
        let (bias, plus) = (numbers(3, width), halves::<K>(4, rows * width, 2.0));
        let (x_, w_) = (Buffer::of(q, "x", &x), Buffer::of(q, "w", &w));
        let (bias_, plus_) = (Buffer::of(q, "bias", &bias), Buffer::of(q, "plus", &plus));
        let y = Buffer::<u16>::empty(q, "y", rows * width);
        let shape = LinearShape { rows, inputs, outputs: width };
        let operands = Operands { x: x_.read(), w: w_.read(), bias: Some(bias_.read()) };
        let to = HalfResult::Half(y.write());
        let (behind, room) = ((Activation::None, Some(plus_.read())), scratch::<K>(q, shape));
        operations::linear_half(q, K::HALF, shape, operands, behind, to, room.write());
        let (a, b) = (Strides::rows(inputs), Strides::transposed(inputs));
        let product = Product { m: rows, n: width, k: inputs, a, b, c_row: width, write: Write::Set };
        let mut out = wanted(&product, &values::<K>(&x), &values::<K>(&w), &vec![0.0; rows * width]);
        for (i, (v, plus)) in out.iter_mut().zip(values::<K>(&plus)).enumerate() {
            *v += bias[i % width].wide() + plus;
        }
        y.is_within_half::<K>(&format!("{shape:?} and more"), &out, K::ROUNDING);
    }
}

/// The bits of a product with a bias, and of GELU as a pass of its own.
fn gelu_of<K: Kind>(q: &StandIn, (rows, inputs, width): (usize, usize, usize), forms: &[(Gelu, bool)]) {
    let (x, w) = (halves::<K>(1, rows * inputs, 1.0), halves::<K>(2, width * inputs, 1.0));
    let (x_, w_, bias_) =
        (Buffer::of(q, "x", &x), Buffer::of(q, "w", &w), Buffer::of(q, "bias", &numbers(3, width)));
    let shape = Rows { rows, width };
    for &(form, with_bias) in forms {
        let given = || with_bias.then(|| bias_.read());
        let [z, y, plain_z, plain_y] =
            ["z", "y", "plain z", "plain y"].map(|name| Buffer::<u16>::empty(q, name, rows * width));
        let (to_z, to_y) = (z.write(), y.write());
        operations::linear_gelu_half(
            q,
            K::HALF,
            LinearShape::new(shape, inputs),
            Operands { x: x_.read(), w: w_.read(), bias: given() },
            form,
            [to_z, to_y],
        );
        let (to, none) = (HalfResult::Half(plain_z.write()), Activation::None);
        operations::linear_half(
            q,
            K::HALF,
            LinearShape::new(shape, inputs),
            Operands { x: x_.read(), w: w_.read(), bias: given() },
            (none, None),
            to,
            scratch::<K>(q, LinearShape::new(shape, inputs)).write(),
        );
        let from = Values::halves_of(plain_z.read(), K::HALF);
        operations::gelu(q, form, from, ValuesMut::halves_of(plain_y.write(), K::HALF));
        z.has_bits(&format!("what goes into {form:?} of {shape:?} with {inputs} inputs"), &plain_z.now());
        y.has_bits(&format!("{form:?} of {shape:?} with {inputs} inputs"), &plain_y.now());
    }
}

pub fn linear_gelu<K: Kind>(q: &StandIn, extent: Extent) {
    for &shape in extent.of(1, &[(65, 24, 10), (1, 1, 1), (7, 130, 70), (5, 20, 7)]) {
        gelu_of::<K>(q, shape, &[(Gelu::Exact, true), (Gelu::Tanh, true), (Gelu::Tanh, false)]);
    }
}

/// By tiles of 128.
pub fn large_linear_gelu<K: Kind>(q: &StandIn, _: Extent) {
    gelu_of::<K>(q, (1410, 17, 1410), &[(Gelu::Tanh, true)]);
}
