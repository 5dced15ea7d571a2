//! Self-attention.
//!
//! This file does not know the projections around it.

use super::{Floats, FloatsMut, room, same, size};
use crate::kernels::{self, Kernel};
use crate::launch::{Argument, KernelLaunch, Queue};
use dtrain_engine::device::{Attended, AttentionShape, Mask};

/// Heads up to so wide have these kernels: forward, the gradient of queries, that of keys and values.
static WIDTHS: [(usize, [&Kernel; 3]); 4] = [
    (32, [&kernels::ATTENTION_32, &kernels::ATTENTION_QUERIES_32, &kernels::ATTENTION_KEYS_32]),
    (64, [&kernels::ATTENTION_64, &kernels::ATTENTION_QUERIES_64, &kernels::ATTENTION_KEYS_64]),
    (128, [&kernels::ATTENTION_128, &kernels::ATTENTION_QUERIES_128, &kernels::ATTENTION_KEYS_128]),
    (256, [&kernels::ATTENTION_256, &kernels::ATTENTION_QUERIES_256, &kernels::ATTENTION_KEYS_256]),
];

/// The kernels of a shape and their blocks. A thread has 32 elements of a head, a block 128 threads.
///
/// *Panics* on heads wider than 256.
fn planned(shape: &AttentionShape) -> ([&'static Kernel; 3], usize) {
    let (width, kernels) = WIDTHS
        .iter()
        .find(|(width, _)| shape.head <= *width)
        .unwrap_or_else(|| panic!("a head of {} elements, at most 256 are supported", shape.head));
    (*kernels, shape.batch * shape.heads * shape.time.div_ceil(4096 / width))
}

fn scale(shape: &AttentionShape) -> f32 {
    1.0 / (shape.head as f32).sqrt()
}

/// Elements that attention keeps for its gradient.
#[must_use]
pub fn attention_saved(shape: &AttentionShape) -> usize {
    shape.batch * shape.heads * shape.time
}

/// Elements of scratch that the gradient needs.
#[must_use]
pub fn attention_scratch(shape: &AttentionShape) -> usize {
    shape.batch * shape.heads * shape.time
}

/// Self-attention over packed `qkv: [B, T, 3, heads, head]`; the output is `[B, T, heads, head]`.
pub fn attention(
    queue: &impl Queue,
    shape: &AttentionShape,
    qkv: Floats<'_>,
    mut y: FloatsMut<'_>,
    mut saved: FloatsMut<'_>,
) {
    let out = shape.batch * shape.time * shape.heads * shape.head;
    same("qkv", qkv.len(), 3 * out);
    same("y", y.len(), out);
    same("saved", saved.len(), attention_saved(shape));
    if out > 0 {
        let ([kernel, ..], blocks) = planned(shape);
        let [time, heads, head, reach] = sizes(shape);
        let arguments =
            [qkv.into(), (&mut y).into(), (&mut saved).into(), time, heads, head, reach, scale(shape).into()];
        let launch = KernelLaunch::new(kernel, blocks, arguments);
        queue.launch(&launch.multiplies_in_f32(2 * one_product(shape)));
    }
}

/// Multiplications and additions of one product of all queries with the keys that they see.
pub(super) fn one_product(shape: &AttentionShape) -> usize {
    let twice_the_seen = match shape.mask {
        Mask::Causal => shape.time + 1,
        Mask::None => 2 * shape.time,
    };
    shape.batch * shape.heads * shape.head * shape.time * twice_the_seen
}

/// Positions, heads, their width, and how many keys behind its own a query sees, as kernels take them.
pub(super) fn sizes(shape: &AttentionShape) -> [Argument; 4] {
    let reach = if shape.mask == Mask::Causal { 0 } else { shape.time };
    [shape.time, shape.heads, shape.head, reach].map(|n| size(n).into())
}

/// `dqkv` of self-attention.
pub fn attention_gradient(
    queue: &impl Queue,
    shape: &AttentionShape,
    inputs: Attended<Floats<'_>>,
    mut dqkv: FloatsMut<'_>,
    mut scratch: FloatsMut<'_>,
) {
    let Attended { qkv, y, saved, dy } = inputs;
    let out = shape.batch * shape.time * shape.heads * shape.head;
    same("qkv", qkv.len(), 3 * out);
    same("y", y.len(), out);
    same("saved", saved.len(), attention_saved(shape));
    same("dy", dy.len(), out);
    same("dqkv", dqkv.len(), 3 * out);
    room("scratch", scratch.len(), attention_scratch(shape));
    if out == 0 {
        return;
    }
    let ([_, queries, keys], blocks) = planned(shape);
    let [time, heads, head, reach] = sizes(shape);
    let arguments = [
        qkv.into(),
        y.into(),
        saved.into(),
        dy.into(),
        (&mut dqkv).into(),
        (&mut scratch).into(),
        time,
        heads,
        head,
        reach,
        scale(shape).into(),
    ];
    let launch = KernelLaunch::new(queries, blocks, arguments);
    queue.launch(&launch.multiplies_in_f32(3 * one_product(shape)));
    let arguments = [
        qkv.into(),
        saved.into(),
        scratch.read().into(),
        dy.into(),
        (&mut dqkv).into(),
        time,
        heads,
        head,
        reach,
        scale(shape).into(),
    ];
    let launch = KernelLaunch::new(keys, blocks, arguments);
    queue.launch(&launch.multiplies_in_f32(4 * one_product(shape)));
}
