//! Self-attention over halves, on tensor cores.
//!
//! This file does not know the projections around it, nor who asks for halves.

use super::attention::{attention_saved, attention_scratch, one_product, sizes};
use super::{Floats, FloatsMut, Half, Halves, HalvesMut, room, same};
use crate::kernels::{self, Kernel};
use crate::launch::{KernelLaunch, Queue};
use dtrain_engine::device::{Attended, AttentionShape};

/// Heads up to so wide have these kernels: forward, the gradient of queries, that of keys and values.
type Width = (usize, [&'static Kernel; 3]);

static OF_BF16: [Width; 3] = [
    (
        32,
        [&kernels::ATTENTION_BF16_32, &kernels::ATTENTION_BF16_QUERIES_32, &kernels::ATTENTION_BF16_KEYS_32],
    ),
    (
        64,
        [&kernels::ATTENTION_BF16_64, &kernels::ATTENTION_BF16_QUERIES_64, &kernels::ATTENTION_BF16_KEYS_64],
    ),
    (
        128,
        [
            &kernels::ATTENTION_BF16_128,
            &kernels::ATTENTION_BF16_QUERIES_128,
            &kernels::ATTENTION_BF16_KEYS_128,
        ],
    ),
];
static OF_F16: [Width; 3] = [
    (32, [&kernels::ATTENTION_F16_32, &kernels::ATTENTION_F16_QUERIES_32, &kernels::ATTENTION_F16_KEYS_32]),
    (64, [&kernels::ATTENTION_F16_64, &kernels::ATTENTION_F16_QUERIES_64, &kernels::ATTENTION_F16_KEYS_64]),
    (
        128,
        [&kernels::ATTENTION_F16_128, &kernels::ATTENTION_F16_QUERIES_128, &kernels::ATTENTION_F16_KEYS_128],
    ),
];

/// Queries or keys of a block.
const ROWS: usize = 64;

/// Whether there are kernels for a shape: heads of up to 128 elements, a multiple of 8.
#[must_use]
pub fn attention_half_is_there(shape: &AttentionShape) -> bool {
    shape.head <= 128 && shape.head.is_multiple_of(8)
}

/// The kernels of a shape and their blocks.
///
/// *Panics* where [`attention_half_is_there`] says no.
fn planned(half: Half, shape: &AttentionShape) -> ([&'static Kernel; 3], usize) {
    assert!(
        attention_half_is_there(shape),
        "a head of {} elements: tensor cores take up to 128, a multiple of 8",
        shape.head
    );
    let all = match half {
        Half::Bf16 => &OF_BF16,
        Half::F16 => &OF_F16,
    };
    let (_, kernels) = all.iter().find(|(width, _)| shape.head <= *width).expect("128 is the last");
    (*kernels, shape.batch * shape.heads * shape.time.div_ceil(ROWS))
}

fn scale(shape: &AttentionShape) -> f32 {
    1.0 / (shape.head as f32).sqrt()
}

/// Asserts that memory can be read 16 bytes at a time.
#[track_caller]
fn aligned(what: &str, address: u64) {
    assert!(address.is_multiple_of(16), "{what} is at {address:#x}, which is not aligned to 16 bytes");
}

/// Self-attention over packed `qkv: [B, T, 3, heads, head]`; the output is `[B, T, heads, head]`. Of the f32 `saved`
/// there are [`attention_saved`] elements.
///
/// *Panics* where [`attention_half_is_there`] says no, and on operands that are not aligned to 16 bytes.
pub fn attention_half(
    queue: &impl Queue,
    half: Half,
    shape: &AttentionShape,
    qkv: Halves<'_>,
    mut y: HalvesMut<'_>,
    mut saved: FloatsMut<'_>,
) {
    let out = shape.batch * shape.time * shape.heads * shape.head;
    same("qkv", qkv.len(), 3 * out);
    same("y", y.len(), out);
    same("saved", saved.len(), attention_saved(shape));
    if out > 0 {
        aligned("qkv", qkv.address());
        aligned("y", y.address());
        let ([kernel, ..], blocks) = planned(half, shape);
        let [time, heads, head, reach] = sizes(shape);
        let arguments =
            [qkv.into(), (&mut y).into(), (&mut saved).into(), time, heads, head, reach, scale(shape).into()];
        let launch = KernelLaunch::new(kernel, blocks, arguments);
        queue.launch(&launch.multiplies(2 * one_product(shape)));
    }
}

/// `dqkv` of self-attention. Of the f32 `scratch` there are [`attention_scratch`] elements.
///
/// *Panics* as [`attention_half`].
pub fn attention_half_gradient(
    queue: &impl Queue,
    half: Half,
    shape: &AttentionShape,
    inputs: Attended<Halves<'_>, Floats<'_>>,
    mut dqkv: HalvesMut<'_>,
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
    for (what, address) in
        [("qkv", qkv.address()), ("y", y.address()), ("dy", dy.address()), ("dqkv", dqkv.address())]
    {
        aligned(what, address);
    }
    let ([_, queries, keys], blocks) = planned(half, shape);
    let [time, heads, head, reach] = sizes(shape);
    let (qkv, dy, logs) = (qkv.into(), dy.into(), saved.into());
    let factor = scale(shape).into();
    let (d, deltas) = ((&mut dqkv).into(), (&mut scratch).into());
    let arguments = [qkv, y.into(), logs, dy, d, deltas, time, heads, head, reach, factor];
    // Each of the two writes its part of the gradient.
    let apart = |launch: KernelLaunch, part: usize| {
        let not_written = 2 * (3 - part) * out;
        let bytes = launch.work.bytes as usize - not_written;
        launch.moves(bytes)
    };
    let launch = apart(KernelLaunch::new(queries, blocks, arguments), 1);
    queue.launch(&launch.multiplies(3 * one_product(shape)));
    let deltas = scratch.read().into();
    let arguments = [qkv, logs, deltas, dy, d, time, heads, head, reach, factor];
    let launch = apart(KernelLaunch::new(keys, blocks, arguments), 2);
    queue.launch(&launch.multiplies(4 * one_product(shape)));
}
