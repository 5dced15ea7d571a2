//! Half of the inputs, let through by the other half.
//!
//! This file does not know the layers around it.

use super::{Values, ValuesMut, alike, same, size};
use crate::kernels;
use crate::launch::{KernelLaunch, Queue};
use dtrain_engine::device::Rows;

/// `y[r, i] = a sigmoid(a) b`, of `a = x[r, i]` and `b = x[r, width + i]`.
pub fn swiglu<'x, 'y>(
    queue: &impl Queue,
    shape: Rows,
    x: impl Into<Values<'x>>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (x, mut y, len) = (x.into(), y.into(), shape.rows * shape.width);
    same("x", x.len(), 2 * len);
    same("y", y.len(), len);
    if len == 0 {
        return;
    }
    let storage = alike(x.storage(), &[y.storage()]);
    let kernel = storage.of([&kernels::SWIGLU, &kernels::SWIGLU_BF16, &kernels::SWIGLU_F16]);
    let [rows, width] = [shape.rows, shape.width].map(|n| size(n).into());
    let arguments = [x.into(), (&mut y).into(), (len as u64).into(), rows, width];
    queue.launch(&KernelLaunch::over_wide(kernel, len, storage.bytes(), arguments));
}

/// `dx: [rows, 2 width]` of it.
pub fn swiglu_gradient<'x, 'y>(
    queue: &impl Queue,
    shape: Rows,
    x: impl Into<Values<'x>>,
    dy: impl Into<Values<'x>>,
    dx: impl Into<ValuesMut<'y>>,
) {
    let (x, dy, mut dx, len) = (x.into(), dy.into(), dx.into(), shape.rows * shape.width);
    same("x", x.len(), 2 * len);
    same("dy", dy.len(), len);
    same("dx", dx.len(), 2 * len);
    if len == 0 {
        return;
    }
    let storage = alike(x.storage(), &[dy.storage(), dx.storage()]);
    let kernel = storage.of([
        &kernels::SWIGLU_GRADIENT,
        &kernels::SWIGLU_GRADIENT_BF16,
        &kernels::SWIGLU_GRADIENT_F16,
    ]);
    let [rows, width] = [shape.rows, shape.width].map(|n| size(n).into());
    let arguments = [x.into(), dy.into(), (&mut dx).into(), (len as u64).into(), rows, width];
    queue.launch(&KernelLaunch::over_wide(kernel, len, storage.bytes(), arguments));
}
