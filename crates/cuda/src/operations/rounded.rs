//! Products and attention of f32 memory on tensor cores: operands are rounded to halves on their way, sums are f32.
//!
//! A product's result is f32 as it was summed. Attention's kernels write halves, so its outputs and gradients are halves that lie in
//! f32 memory; its sums of exponentials are f32. Scratch holds what is rounded, a part for each, aligned to 16 bytes.
//!
//! This file does not know who asks for halves, nor what to do where there is no kernel for a shape.

use super::product::reach;
use super::{
    Floats, FloatsMut, Half, HalfResult, HalvesMut, attention_half, attention_half_gradient, from_half,
    linear_gelu_half, linear_half, product_half, room, to_half,
};
use crate::launch::Queue;
use dtrain_engine::device::{Activation, Attended, AttentionShape, Gelu, LinearShape, Operands, Product};

/// Rounds an operand to the beginning of a part of the scratch.
fn rounded<'a>(queue: &impl Queue, half: Half, x: Floats<'_>, part: &'a mut HalvesMut<'_>) -> HalvesMut<'a> {
    room("a part of the scratch", part.len(), x.len());
    to_half(queue, half, x, part.part(0..x.len()));
    part.part(0..x.len())
}

/// Elements of scratch for A and for B.
#[must_use]
pub fn product_rounded_scratch(shape: &Product) -> [usize; 2] {
    [reach(shape.m, shape.k, shape.a), reach(shape.k, shape.n, shape.b)]
}

/// [`product_half`] of f32 operands. `scratch` has [`product_rounded_scratch`] elements.
///
/// *Panics* as it does.
pub fn product_rounded(
    queue: &impl Queue,
    half: Half,
    shape: &Product,
    a: Floats<'_>,
    b: Floats<'_>,
    c: FloatsMut<'_>,
    [mut a_part, mut b_part]: [HalvesMut<'_>; 2],
) {
    // What lies behind a matrix is somebody else's.
    let [a_len, b_len] = product_rounded_scratch(shape);
    let a = rounded(queue, half, a.part(0..a_len), &mut a_part);
    let b = rounded(queue, half, b.part(0..b_len), &mut b_part);
    product_half(queue, half, shape, a.read(), b.read(), HalfResult::F32(c));
}

/// Elements of scratch for inputs and for weights.
#[must_use]
pub fn linear_rounded_scratch(shape: LinearShape) -> [usize; 2] {
    [shape.rows * shape.inputs, shape.outputs * shape.inputs]
}

/// [`linear_half`] of f32 operands. `scratch` has [`linear_rounded_scratch`] elements.
pub fn linear_rounded(
    queue: &impl Queue,
    half: Half,
    shape: LinearShape,
    operands: Operands<Floats<'_>>,
    activation: Activation,
    y: FloatsMut<'_>,
    [mut x_part, mut w_part]: [HalvesMut<'_>; 2],
) {
    let Operands { x, w, bias } = operands;
    let (x, w) = (rounded(queue, half, x, &mut x_part), rounded(queue, half, w, &mut w_part));
    let operands = Operands { x: x.read(), w: w.read(), bias };
    linear_half(queue, half, shape, operands, activation, HalfResult::F32(y));
}

/// [`linear_gelu_half`] of f32 operands. `scratch` has [`linear_rounded_scratch`] elements.
pub fn linear_gelu_rounded(
    queue: &impl Queue,
    half: Half,
    shape: LinearShape,
    operands: Operands<Floats<'_>>,
    form: Gelu,
    outputs: [FloatsMut<'_>; 2],
    [mut x_part, mut w_part]: [HalvesMut<'_>; 2],
) {
    let Operands { x, w, bias } = operands;
    let (x, w) = (rounded(queue, half, x, &mut x_part), rounded(queue, half, w, &mut w_part));
    linear_gelu_half(queue, half, shape, Operands { x: x.read(), w: w.read(), bias }, form, outputs);
}

/// Elements of an output of attention.
fn outputs(shape: &AttentionShape) -> usize {
    shape.batch * shape.time * shape.heads * shape.head
}

/// Elements of scratch for `qkv` and for `y`.
#[must_use]
pub fn attention_rounded_scratch(shape: &AttentionShape) -> [usize; 2] {
    [3 * outputs(shape), outputs(shape)]
}

/// [`attention_half`] of f32 memory. `scratch` has [`attention_rounded_scratch`] elements.
///
/// *Panics* as it does.
pub fn attention_rounded(
    queue: &impl Queue,
    half: Half,
    shape: &AttentionShape,
    qkv: Floats<'_>,
    y: FloatsMut<'_>,
    saved: FloatsMut<'_>,
    [mut qkv_part, mut y_part]: [HalvesMut<'_>; 2],
) {
    let qkv = rounded(queue, half, qkv, &mut qkv_part);
    let mut out = y_part.part(0..outputs(shape));
    attention_half(queue, half, shape, qkv.read(), out.part(0..outputs(shape)), saved);
    from_half(queue, half, out.read(), y);
}

/// Elements of scratch for `qkv`, `y`, `dy` and `dqkv`.
#[must_use]
pub fn attention_rounded_gradient_scratch(shape: &AttentionShape) -> [usize; 4] {
    let out = outputs(shape);
    [3 * out, out, out, 3 * out]
}

/// [`attention_half_gradient`] of f32 memory. `scratch` has its elements, `halves`
/// [`attention_rounded_gradient_scratch`].
///
/// *Panics* as it does.
pub fn attention_rounded_gradient(
    queue: &impl Queue,
    half: Half,
    shape: &AttentionShape,
    inputs: Attended<Floats<'_>>,
    dqkv: FloatsMut<'_>,
    scratch: FloatsMut<'_>,
    [mut qkv_part, mut y_part, mut dy_part, mut d_part]: [HalvesMut<'_>; 4],
) {
    let Attended { qkv, y, saved, dy } = inputs;
    let qkv = rounded(queue, half, qkv, &mut qkv_part);
    // What the forward pass left are halves already, so this changes no bit.
    let (y, dy) = (rounded(queue, half, y, &mut y_part), rounded(queue, half, dy, &mut dy_part));
    let len = 3 * outputs(shape);
    let mut d = d_part.part(0..len);
    let inputs = Attended { qkv: qkv.read(), y: y.read(), saved, dy: dy.read() };
    attention_half_gradient(queue, half, shape, inputs, d.part(0..len), scratch);
    from_half(queue, half, d.read(), dqkv);
}
