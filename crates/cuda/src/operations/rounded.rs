//! Products and attention of f32 memory on tensor cores: operands are rounded to bf16 on their way, sums are f32.
//!
//! A product's result is f32 as it was summed. Attention's kernels write bf16, so its outputs and gradients are bf16 that lie in
//! f32 memory; its sums of exponentials are f32. Scratch holds what is rounded, a part for each, aligned to 16 bytes.
//!
//! This file does not know who asks for bf16, nor what to do where there is no kernel for a shape.

use super::product::reach;
use super::{
    Bf16Result, Floats, FloatsMut, HalvesMut, attention_bf16, attention_bf16_gradient, from_bf16,
    linear_bf16, product_bf16, room, to_bf16,
};
use crate::launch::Queue;
use dtrain_engine::device::{Activation, Attention, Product, Rows};

/// Rounds an operand to the beginning of a part of the scratch.
fn rounded<'a>(queue: &impl Queue, x: Floats<'_>, part: &'a mut HalvesMut<'_>) -> HalvesMut<'a> {
    room("a part of the scratch", part.len(), x.len());
    to_bf16(queue, x, part.part(0..x.len()));
    part.part(0..x.len())
}

/// Elements of scratch for A and for B.
#[must_use]
pub fn product_rounded_scratch(shape: &Product) -> [usize; 2] {
    [reach(shape.m, shape.k, shape.a), reach(shape.k, shape.n, shape.b)]
}

/// [`product_bf16`] of f32 operands. `scratch` has [`product_rounded_scratch`] elements.
///
/// *Panics* as it does.
pub fn product_rounded(
    queue: &impl Queue,
    shape: &Product,
    a: Floats<'_>,
    b: Floats<'_>,
    c: FloatsMut<'_>,
    [mut a_part, mut b_part]: [HalvesMut<'_>; 2],
) {
    // What lies behind a matrix is somebody else's.
    let [a_len, b_len] = product_rounded_scratch(shape);
    let a = rounded(queue, a.part(0..a_len), &mut a_part);
    let b = rounded(queue, b.part(0..b_len), &mut b_part);
    product_bf16(queue, shape, a.read(), b.read(), Bf16Result::F32(c));
}

/// Elements of scratch for inputs and for weights.
#[must_use]
pub fn linear_rounded_scratch(shape: Rows, inputs: usize) -> [usize; 2] {
    [shape.rows * inputs, shape.width * inputs]
}

/// [`linear_bf16`] of f32 operands. `scratch` has [`linear_rounded_scratch`] elements.
#[allow(clippy::too_many_arguments)]
pub fn linear_rounded(
    queue: &impl Queue,
    shape: Rows,
    inputs: usize,
    x: Floats<'_>,
    w: Floats<'_>,
    bias: Option<Floats<'_>>,
    activation: Activation,
    y: FloatsMut<'_>,
    [mut x_part, mut w_part]: [HalvesMut<'_>; 2],
) {
    let (x, w) = (rounded(queue, x, &mut x_part), rounded(queue, w, &mut w_part));
    linear_bf16(queue, shape, inputs, x.read(), w.read(), bias, activation, Bf16Result::F32(y));
}

/// Elements of an output of attention.
fn outputs(shape: &Attention) -> usize {
    shape.batch * shape.time * shape.heads * shape.head
}

/// Elements of scratch for `qkv` and for `y`.
#[must_use]
pub fn attention_rounded_scratch(shape: &Attention) -> [usize; 2] {
    [3 * outputs(shape), outputs(shape)]
}

/// [`attention_bf16`] of f32 memory. `scratch` has [`attention_rounded_scratch`] elements.
///
/// *Panics* as it does.
pub fn attention_rounded(
    queue: &impl Queue,
    shape: &Attention,
    qkv: Floats<'_>,
    y: FloatsMut<'_>,
    saved: FloatsMut<'_>,
    [mut qkv_part, mut y_part]: [HalvesMut<'_>; 2],
) {
    let qkv = rounded(queue, qkv, &mut qkv_part);
    let mut out = y_part.part(0..outputs(shape));
    attention_bf16(queue, shape, qkv.read(), out.part(0..outputs(shape)), saved);
    from_bf16(queue, out.read(), y);
}

/// Elements of scratch for `qkv`, `y`, `dy` and `dqkv`.
#[must_use]
pub fn attention_rounded_gradient_scratch(shape: &Attention) -> [usize; 4] {
    let out = outputs(shape);
    [3 * out, out, out, 3 * out]
}

/// [`attention_bf16_gradient`] of f32 memory. `scratch` has its elements, `halves`
/// [`attention_rounded_gradient_scratch`].
///
/// *Panics* as it does.
#[allow(clippy::too_many_arguments)]
pub fn attention_rounded_gradient(
    queue: &impl Queue,
    shape: &Attention,
    qkv: Floats<'_>,
    y: Floats<'_>,
    saved: Floats<'_>,
    dy: Floats<'_>,
    dqkv: FloatsMut<'_>,
    scratch: FloatsMut<'_>,
    [mut qkv_part, mut y_part, mut dy_part, mut d_part]: [HalvesMut<'_>; 4],
) {
    let qkv = rounded(queue, qkv, &mut qkv_part);
    // What the forward pass left is bf16 already, so this changes no bit.
    let (y, dy) = (rounded(queue, y, &mut y_part), rounded(queue, dy, &mut dy_part));
    let len = 3 * outputs(shape);
    let mut d = d_part.part(0..len);
    attention_bf16_gradient(queue, shape, qkv.read(), y.read(), saved, dy.read(), d.part(0..len), scratch);
    from_bf16(queue, d.read(), dqkv);
}
