//! Checks of pooling: the CPU's bits.

use super::{Buffer, Extent, StandIn, cpu, numbers};
use dtrain_cuda::operations;
use dtrain_engine::device::{Device, Pool2d};

fn shapes(extent: Extent) -> Vec<Pool2d> {
    let all = [
        ([1, 1], [1, 1], [1, 1], 1),
        ([28, 28], [2, 2], [2, 2], 5),
        ([7, 9], [3, 2], [1, 3], 3),
        ([5, 5], [5, 5], [5, 5], 7),
        // Windows that leave gaps, and places that no window covers.
        ([11, 8], [2, 1], [4, 3], 2),
        ([9, 10], [3, 3], [2, 2], 4),
    ];
    extent
        .of(1, &all)
        .iter()
        .map(|&(size, window, stride, planes)| Pool2d { planes, size, window, stride, padding: [0; 2] })
        .collect()
}

/// Of maxima also those of padded planes.
fn shapes_of_maxima(extent: Extent) -> Vec<Pool2d> {
    let mut all = shapes(extent);
    // Windows that do not meet, with gaps and without, at the end of a plane and before it.
    all.push(Pool2d { planes: 3, size: [9, 7], window: [2, 2], stride: [2, 2], padding: [1, 1] });
    all.push(Pool2d { planes: 2, size: [8, 11], window: [3, 3], stride: [4, 3], padding: [1, 1] });
    all.push(Pool2d { planes: 2, size: [9, 7], window: [3, 3], stride: [2, 2], padding: [1, 1] });
    all.push(Pool2d { planes: 1, size: [5, 6], window: [2, 5], stride: [3, 1], padding: [1, 2] });
    all
}

fn lengths(shape: &Pool2d) -> [usize; 2] {
    [shape.size, shape.output_size()].map(|size| shape.planes * size[0] * size[1])
}

/// Few values, so that there are equals, and a NaN.
fn values(len: usize) -> Vec<f32> {
    let mut x: Vec<f32> = numbers(1, len).iter().map(|v| (v * 4.0).round()).collect();
    x[len / 3] = f32::NAN;
    x
}

pub fn max_pool(q: &StandIn, extent: Extent) {
    for shape in shapes_of_maxima(extent) {
        let [len, out] = lengths(&shape);
        let (x, mut dy) = (values(len), numbers(2, out));
        dy[0] = -0.0;
        let (mut y2, mut places2, mut dx2) = (vec![0.0; out], vec![0.0; out], vec![0.0; len]);
        cpu().max_pool(&shape, &x, &mut y2, &mut places2);
        cpu().max_pool_gradient(&shape, &places2, &dy, &mut dx2);
        let places2: Vec<u32> = places2.iter().map(|place| place.to_bits()).collect();
        let (x_, dy_, places_) =
            (Buffer::of(q, "x", &x), Buffer::of(q, "dy", &dy), Buffer::of(q, "places", &places2));
        let (y, places, dx) =
            (Buffer::empty(q, "y", out), Buffer::<u32>::empty(q, "places", out), Buffer::empty(q, "dx", len));
        operations::max_pool(q, &shape, x_.read(), y.write(), places.write());
        y.has_bits(&format!("{shape:?}"), &y2);
        places.has_bits(&format!("{shape:?}"), &places2);
        operations::max_pool_gradient(q, &shape, places_.read(), dy_.read(), dx.write());
        dx.has_bits(&format!("{shape:?}"), &dx2);
    }
}

pub fn avg_pool(q: &StandIn, extent: Extent) {
    for shape in shapes(extent) {
        let [len, out] = lengths(&shape);
        let (x, dy) = (numbers(1, len), numbers(2, out));
        let (mut y2, mut dx2) = (vec![0.0; out], vec![0.0; len]);
        cpu().avg_pool(&shape, &x, &mut y2);
        cpu().avg_pool_gradient(&shape, &dy, &mut dx2);
        let (x_, dy_) = (Buffer::of(q, "x", &x), Buffer::of(q, "dy", &dy));
        let (y, dx) = (Buffer::empty(q, "y", out), Buffer::empty(q, "dx", len));
        operations::avg_pool(q, &shape, x_.read(), y.write());
        y.has_bits(&format!("{shape:?}"), &y2);
        operations::avg_pool_gradient(q, &shape, dy_.read(), dx.write());
        dx.has_bits(&format!("{shape:?}"), &dx2);
    }
}
