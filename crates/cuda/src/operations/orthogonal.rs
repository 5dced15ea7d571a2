//! What makes matrices orthogonal, beside products.
//!
//! This file does not know how often, nor by which coefficients.

use super::{Floats, Values, ValuesMut, alike, same, sum_of_squares, sum_of_squares_scratch};
use crate::kernels;
use crate::launch::{KernelLaunch, Queue};
use crate::memory::SliceMut;

/// Elements of f64 scratch that [`unit()`] wants.
#[must_use]
pub fn unit_scratch(len: usize) -> usize {
    1 + sum_of_squares_scratch(len)
}

/// `y = x / max(|x|, least)`. *Order*: that of [`sum_of_squares`]. `scratch` has [`unit_scratch`] elements.
pub fn unit<'y>(
    queue: &impl Queue,
    least: f32,
    x: Floats<'_>,
    y: impl Into<ValuesMut<'y>>,
    scratch: SliceMut<'_, f64>,
) {
    let mut y = y.into();
    same("y", y.len(), x.len());
    let (mut squares, parts) = scratch.split(1);
    if x.len() == 0 {
        return;
    }
    sum_of_squares(queue, x, 1.0, squares.part(0..1), parts);
    let kernel = y.storage().of([&kernels::UNIT, &kernels::UNIT_BF16, &kernels::UNIT_F16]);
    let arguments = [x.into(), squares.read().into(), (&mut y).into(), (x.len() as u64).into(), least.into()];
    queue.launch(&KernelLaunch::over(kernel, x.len(), arguments));
}

/// `y = a x + b y`; where `b` is 0, `y` is not read.
pub fn combine<'x, 'y>(
    queue: &impl Queue,
    [a, b]: [f32; 2],
    x: impl Into<Values<'x>>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (x, mut y) = (x.into(), y.into());
    same("y", y.len(), x.len());
    if x.len() > 0 {
        let storage = alike(x.storage(), &[y.storage()]);
        let kernel = storage.of([&kernels::COMBINE, &kernels::COMBINE_BF16, &kernels::COMBINE_F16]);
        let again = if b == 0.0 { 0 } else { x.len() * storage.bytes() };
        let arguments = [x.into(), (&mut y).into(), (x.len() as u64).into(), a.into(), b.into()];
        queue.launch(&KernelLaunch::over_wide(kernel, x.len(), storage.bytes(), arguments).and_moves(again));
    }
}
