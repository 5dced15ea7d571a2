//! Rotary positions of packed queries, keys and values, and keys and values for each head of their group.
//!
//! This file does not know attention.

use super::{Values, ValuesMut, alike, same, size};
use crate::kernels;
use crate::launch::{Argument, KernelLaunch, Queue};
use dtrain_engine::device::{RotaryShape, RotarySpeeds};

/// What both kernels are told of a shape: points, positions, the place of the first, heads of queries, of keys, planes of a head, and
/// the bits of its speeds. A point is a plane of one row.
///
/// *Panics* on heads that do not fit, and on lengths that are not the shape's.
#[track_caller]
fn arguments(shape: &RotaryShape, packed: usize, spread: usize) -> (usize, [Argument; 10]) {
    let RotaryShape { time, first, heads, kv_heads, head, speeds, .. } = *shape;
    shape.check();
    same("the packed side", packed, shape.rows() * shape.packed());
    same("the spread side", spread, shape.rows() * shape.spread());
    size(first + time);
    let points = shape.rows() * head / 2;
    let [time, first, heads, kv_heads, planes] =
        [time, first, heads, kv_heads, head / 2].map(|n| size(n).into());
    let RotarySpeeds { rate, slowed, slope, shift } = speeds;
    let [rate, slowed, slope, shift] = [rate, slowed, slope, shift].map(|number| number.to_bits().into());
    let all = (points as u64).into();
    (points, [all, time, first, heads, kv_heads, planes, rate, slowed, slope, shift])
}

/// Rotary positions, and keys and values for each head; see [`RotaryShape`].
pub fn rotary<'x, 'y>(
    queue: &impl Queue,
    shape: &RotaryShape,
    x: impl Into<Values<'x>>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (x, mut y) = (x.into(), y.into());
    let (points, of) = arguments(shape, x.len(), y.len());
    if points == 0 {
        return;
    }
    let storage = alike(x.storage(), &[y.storage()]);
    let kernel = storage.of([&kernels::ROTARY, &kernels::ROTARY_BF16, &kernels::ROTARY_F16]);
    let [all, time, first, heads, kv_heads, planes, rate, slowed, slope, shift] = of;
    let arguments =
        [x.into(), (&mut y).into(), all, time, first, heads, kv_heads, planes, rate, slowed, slope, shift];
    queue.launch(&KernelLaunch::over(kernel, points, arguments));
}

/// `dx` of it: turned back, and the heads of a group added in order.
pub fn rotary_gradient<'x, 'y>(
    queue: &impl Queue,
    shape: &RotaryShape,
    dy: impl Into<Values<'x>>,
    dx: impl Into<ValuesMut<'y>>,
) {
    let (dy, mut dx) = (dy.into(), dx.into());
    let (points, of) = arguments(shape, dx.len(), dy.len());
    if points == 0 {
        return;
    }
    let storage = alike(dy.storage(), &[dx.storage()]);
    let kernel = storage.of([
        &kernels::ROTARY_GRADIENT,
        &kernels::ROTARY_GRADIENT_BF16,
        &kernels::ROTARY_GRADIENT_F16,
    ]);
    let [all, time, first, heads, kv_heads, planes, rate, slowed, slope, shift] = of;
    let arguments =
        [dy.into(), (&mut dx).into(), all, time, first, heads, kv_heads, planes, rate, slowed, slope, shift];
    queue.launch(&KernelLaunch::over(kernel, points, arguments));
}
