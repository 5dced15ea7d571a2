//! Max and average pooling.
//!
//! This file does not know images or channels: a plane is a plane.

use super::{Ids, Values, ValuesMut, alike, same, size};
use crate::kernels;
use crate::launch::{Argument, KernelLaunch, Queue};
use crate::memory::SliceMut;
use dtrain_engine::device::Pool2d;

/// Elements of input and output, and the shape as kernels take it.
fn planned(shape: &Pool2d) -> ([usize; 2], Argument) {
    for d in [0, 1] {
        let fits = shape.stride[d] > 0
            && shape.window[d] > 0
            && shape.size[d] >= shape.window[d]
            && 2 * shape.padding[d] <= shape.window[d];
        assert!(fits, "a window larger than the plane: {shape:?}");
    }
    let out = shape.output_size();
    let fields = [
        shape.planes,
        shape.size[0],
        shape.size[1],
        shape.window[0],
        shape.window[1],
        shape.stride[0],
        shape.stride[1],
        out[0],
        out[1],
        shape.padding[0],
        shape.padding[1],
    ];
    let lengths = [shape.size, out].map(|size| shape.planes * size[0] * size[1]);
    (lengths, Argument::Pool2d(fields.map(size)))
}

/// Max-pooling; `places` keeps the index in its plane of each maximum, the first of equals.
pub fn max_pool<'x, 'y>(
    queue: &impl Queue,
    shape: &Pool2d,
    x: impl Into<Values<'x>>,
    y: impl Into<ValuesMut<'y>>,
    mut places: SliceMut<'_, u32>,
) {
    let (([len, out], argument), x, mut y) = (planned(shape), x.into(), y.into());
    let storage = alike(x.storage(), &[y.storage()]);
    same("x", x.len(), len);
    same("y", y.len(), out);
    same("places", places.len(), out);
    if out > 0 {
        let arguments = [x.into(), (&mut y).into(), (&mut places).into(), argument];
        queue.launch(&KernelLaunch::over(
            storage.of([&kernels::MAX_POOL, &kernels::MAX_POOL_BF16, &kernels::MAX_POOL_F16]),
            out,
            arguments,
        ));
    }
}

/// `dx` of max-pooling.
pub fn max_pool_gradient<'x, 'y>(
    queue: &impl Queue,
    shape: &Pool2d,
    places: Ids<'_>,
    dy: impl Into<Values<'x>>,
    dx: impl Into<ValuesMut<'y>>,
) {
    let (([len, out], argument), dy, mut dx) = (planned(shape), dy.into(), dx.into());
    let storage = alike(dy.storage(), &[dx.storage()]);
    same("places", places.len(), out);
    same("dy", dy.len(), out);
    same("dx", dx.len(), len);
    if len > 0 {
        let arguments = [places.into(), dy.into(), (&mut dx).into(), argument];
        queue.launch(&KernelLaunch::over(
            storage.of([
                &kernels::MAX_POOL_GRADIENT,
                &kernels::MAX_POOL_GRADIENT_BF16,
                &kernels::MAX_POOL_GRADIENT_F16,
            ]),
            len,
            arguments,
        ));
    }
}

/// Average pooling.
pub fn avg_pool<'x, 'y>(
    queue: &impl Queue,
    shape: &Pool2d,
    x: impl Into<Values<'x>>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (([len, out], argument), x, mut y) = (planned(shape), x.into(), y.into());
    let storage = alike(x.storage(), &[y.storage()]);
    same("x", x.len(), len);
    same("y", y.len(), out);
    if out > 0 {
        queue.launch(&KernelLaunch::over(
            storage.of([&kernels::AVG_POOL, &kernels::AVG_POOL_BF16, &kernels::AVG_POOL_F16]),
            out,
            [x.into(), (&mut y).into(), argument],
        ));
    }
}

/// `dx` of average pooling.
pub fn avg_pool_gradient<'x, 'y>(
    queue: &impl Queue,
    shape: &Pool2d,
    dy: impl Into<Values<'x>>,
    dx: impl Into<ValuesMut<'y>>,
) {
    let (([len, out], argument), dy, mut dx) = (planned(shape), dy.into(), dx.into());
    let storage = alike(dy.storage(), &[dx.storage()]);
    same("dy", dy.len(), out);
    same("dx", dx.len(), len);
    if len > 0 {
        let arguments = [dy.into(), (&mut dx).into(), argument];
        queue.launch(&KernelLaunch::over(
            storage.of([
                &kernels::AVG_POOL_GRADIENT,
                &kernels::AVG_POOL_GRADIENT_BF16,
                &kernels::AVG_POOL_GRADIENT_F16,
            ]),
            len,
            arguments,
        ));
    }
}
