//! What has no kernel for halves: as that of f32, with operands and results that are halves on their way.
//!
//! It is slow, and there for shapes that few models have. Scratch holds what is not halves, a part for each. This file does not
//! know which shapes have kernels.

use super::product::reach;
use super::{
    Floats, FloatsMut, Half, HalfResult, Halves, HalvesMut, attention, attention_gradient, from_half,
    product, product_scratch, room, to_half,
};
use crate::launch::Queue;
use dtrain_engine::device::{Attended, AttentionShape, Product, Write};

/// Halves as f32, at the beginning of a part of the scratch.
fn exact<'a>(queue: &impl Queue, half: Half, x: Halves<'_>, part: &'a mut FloatsMut<'_>) -> Floats<'a> {
    room("a part of the scratch", part.len(), x.len());
    from_half(queue, half, x, part.part(0..x.len()));
    part.read().part(0..x.len())
}

/// Elements of scratch for A, for B, for C, and for the product's sums.
#[must_use]
pub fn product_exact_scratch(shape: &Product) -> [usize; 4] {
    let [a, b] = [reach(shape.m, shape.k, shape.a), reach(shape.k, shape.n, shape.b)];
    [a, b, shape.m * shape.c_row, product_scratch(shape)]
}

/// [`product`] of halves. `scratch` has [`product_exact_scratch`] elements.
pub fn product_exact(
    queue: &impl Queue,
    half: Half,
    shape: &Product,
    [a, b]: [Halves<'_>; 2],
    c: HalfResult<'_>,
    [mut a_part, mut b_part, mut c_part, sums]: [FloatsMut<'_>; 4],
) {
    let [a_len, b_len, ..] = product_exact_scratch(shape);
    let (a, b) = (
        exact(queue, half, a.part(0..a_len), &mut a_part),
        exact(queue, half, b.part(0..b_len), &mut b_part),
    );
    match c {
        HalfResult::F32(c) => product(queue, shape, a, b, c, sums),
        HalfResult::Half(c) => {
            let len = c.len();
            if shape.write == Write::Add || shape.c_row > shape.n {
                // What is added to, and what lies between rows and stays.
                from_half(queue, half, c.read(), c_part.part(0..len));
            }
            product(queue, shape, a, b, c_part.part(0..len), sums);
            to_half(queue, half, c_part.read().part(0..len), c);
        }
    }
}

/// Elements of an output of attention.
fn outputs(shape: &AttentionShape) -> usize {
    shape.batch * shape.time * shape.heads * shape.head
}

/// Elements of scratch for `qkv` and for `y`.
#[must_use]
pub fn attention_exact_scratch(shape: &AttentionShape) -> [usize; 2] {
    [3 * outputs(shape), outputs(shape)]
}

/// [`attention`] of halves. `scratch` has [`attention_exact_scratch`] elements.
///
/// *Panics* as it does.
pub fn attention_exact(
    queue: &impl Queue,
    half: Half,
    shape: &AttentionShape,
    qkv: Halves<'_>,
    y: HalvesMut<'_>,
    saved: FloatsMut<'_>,
    [mut qkv_part, mut y_part]: [FloatsMut<'_>; 2],
) {
    let qkv = exact(queue, half, qkv, &mut qkv_part);
    attention(queue, shape, qkv, y_part.part(0..outputs(shape)), saved);
    to_half(queue, half, y_part.read().part(0..outputs(shape)), y);
}

/// Elements of scratch for `qkv`, `y`, `dy` and `dqkv`.
#[must_use]
pub fn attention_exact_gradient_scratch(shape: &AttentionShape) -> [usize; 4] {
    let out = outputs(shape);
    [3 * out, out, out, 3 * out]
}

/// [`attention_gradient`] of halves. `scratch` has its elements, `parts` [`attention_exact_gradient_scratch`].
///
/// *Panics* as it does.
pub fn attention_exact_gradient(
    queue: &impl Queue,
    half: Half,
    shape: &AttentionShape,
    inputs: Attended<Halves<'_>, Floats<'_>>,
    dqkv: HalvesMut<'_>,
    scratch: FloatsMut<'_>,
    [mut qkv_part, mut y_part, mut dy_part, mut d_part]: [FloatsMut<'_>; 4],
) {
    let Attended { qkv, y, saved, dy } = inputs;
    let qkv = exact(queue, half, qkv, &mut qkv_part);
    let (y, dy) = (exact(queue, half, y, &mut y_part), exact(queue, half, dy, &mut dy_part));
    let len = 3 * outputs(shape);
    attention_gradient(queue, shape, Attended { qkv, y, saved, dy }, d_part.part(0..len), scratch);
    to_half(queue, half, d_part.read().part(0..len), dqkv);
}
