//! Convolutions and pooling against a plain float64 reference, outputs poisoned with NaN first.

mod kernels_support;

use dtrain_engine::device::*;
use kernels_support::*;

/// Convolutions of every kind: strides, padding, kernels of one, images narrower than a tile, one channel; images first, then
/// sequences, then volumes.
fn convolutions() -> Vec<Conv3dShape> {
    let conv = |images, channels, size, outputs, kernel, stride, padding| Conv3dShape {
        images,
        channels,
        size,
        outputs,
        kernel,
        stride,
        padding,
    };
    let flat = |images, channels, size, outputs, kernel, stride, padding| {
        Conv3dShape::from(Conv2dShape { images, channels, size, outputs, kernel, stride, padding })
    };
    vec![
        flat(3, 1, [28, 28], 32, [3, 3], [1, 1], [0, 0]),
        flat(2, 32, [26, 26], 64, [3, 3], [1, 1], [0, 0]),
        flat(5, 16, [8, 8], 33, [3, 3], [1, 1], [1, 1]),
        flat(2, 3, [9, 7], 5, [3, 2], [2, 1], [1, 0]),
        flat(2, 4, [11, 12], 6, [5, 4], [2, 3], [2, 1]),
        flat(3, 7, [6, 5], 3, [1, 1], [1, 1], [0, 0]),
        flat(2, 5, [6, 6], 4, [1, 1], [2, 2], [0, 0]),
        flat(1, 70, [5, 5], 17, [3, 3], [1, 1], [2, 2]),
        flat(1, 2, [4, 4], 3, [4, 4], [1, 1], [0, 0]),
        flat(1, 1, [30, 40], 2, [3, 3], [1, 1], [1, 1]),
        // Sums of more than a block, by phases; padding as wide as the kernel; a step longer than the image.
        flat(2, 75, [7, 9], 60, [3, 3], [2, 2], [1, 1]),
        flat(1, 2, [5, 6], 3, [2, 1], [1, 1], [2, 3]),
        flat(2, 2, [3, 4], 3, [2, 3], [7, 5], [0, 1]),
        flat(1, 4, [50, 60], 3, [3, 3], [2, 2], [1, 1]),
        flat(1, 2, [9, 71], 3, [2, 4], [3, 2], [1, 2]),
        flat(2, 1, [1, 3], 2, [1, 7], [5, 2], [4, 2]),
        flat(2, 3, [1, 1500], 5, [1, 5], [1, 1], [0, 2]),
        flat(3, 4, [1, 37], 6, [1, 4], [1, 3], [0, 1]),
        conv(2, 1, [8, 32, 32], 16, [3, 3, 3], [1, 1, 1], [1, 1, 1]),
        conv(2, 16, [8, 16, 16], 32, [3, 3, 3], [2, 2, 2], [1, 1, 1]),
        conv(2, 3, [5, 6, 7], 4, [2, 3, 1], [1, 2, 3], [0, 1, 2]),
        conv(1, 2, [4, 5, 3], 3, [1, 1, 1], [2, 1, 2], [0, 0, 0]),
        conv(1, 40, [3, 3, 3], 5, [3, 3, 3], [1, 1, 1], [1, 0, 2]),
        conv(1, 1, [9, 4, 5], 2, [5, 4, 2], [3, 1, 1], [2, 2, 1]),
        conv(3, 2, [2, 2, 2], 2, [2, 2, 2], [2, 2, 2], [1, 0, 1]),
        // Small images, of which several are taken at once and some are left.
        flat(30, 3, [4, 4], 19, [3, 3], [1, 1], [1, 1]),
        flat(13, 70, [3, 5], 2, [3, 3], [1, 1], [1, 1]),
        flat(6, 2, [1, 9], 3, [1, 3], [1, 1], [0, 2]),
        conv(21, 4, [3, 2, 5], 3, [3, 3, 2], [1, 1, 1], [1, 1, 0]),
        // In tiles: several images at once with some left, sides that are odd, an image in parts, every padding.
        flat(70, 48, [4, 4], 32, [3, 3], [1, 1], [1, 1]),
        flat(5, 32, [9, 7], 64, [3, 3], [1, 1], [1, 1]),
        flat(1, 32, [71, 17], 48, [3, 3], [1, 1], [2, 0]),
        flat(3, 64, [11, 12], 80, [3, 3], [1, 1], [0, 2]),
    ]
}

fn volume(sides: [usize; 3]) -> usize {
    sides.iter().product()
}

/// All places in a box, in order.
fn places([depth, height, width]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..depth * height * width).map(move |i| [i / (height * width), i / width % height, i % width])
}

fn index(sides: [usize; 3], place: [usize; 3]) -> usize {
    (place[0] * sides[1] + place[1]) * sides[2] + place[2]
}

/// Calls `f(y index, x index, w index)` for each term of a convolution.
fn for_each_term(shape: &Conv3dShape, mut f: impl FnMut(usize, usize, usize)) {
    let out = shape.output_size();
    for (image, o) in (0..shape.images).flat_map(|image| (0..shape.outputs).map(move |o| (image, o))) {
        for to in places(out) {
            let y = (image * shape.outputs + o) * volume(out) + index(out, to);
            for (c, tap) in (0..shape.channels).flat_map(|c| places(shape.kernel).map(move |tap| (c, tap))) {
                let from =
                    [0, 1, 2].map(|d| (to[d] * shape.stride[d] + tap[d]).wrapping_sub(shape.padding[d]));
                if (0..3).all(|d| from[d] < shape.size[d]) {
                    let x = (image * shape.channels + c) * volume(shape.size) + index(shape.size, from);
                    let w = (o * shape.channels + c) * volume(shape.kernel) + index(shape.kernel, tap);
                    f(y, x, w);
                }
            }
        }
    }
}

#[test]
fn a_convolution_and_its_gradients_are_right() {
    let cpu = cpu();
    for shape in convolutions() {
        let out = volume(shape.output_size());
        let x = numbers(1, shape.images * shape.channels * volume(shape.size));
        let w = numbers(2, shape.outputs * shape.channels * volume(shape.kernel));
        let bias = numbers(3, shape.outputs);
        let dy = numbers(4, shape.images * shape.outputs * out);
        let (mut y, mut dx, mut dw, mut db) =
            (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()], vec![0.0; bias.len()]);
        for (i, y) in y.iter_mut().enumerate() {
            *y = f64::from(bias[i / out % shape.outputs]);
            db[i / out % shape.outputs] += f64::from(dy[i]);
        }
        for_each_term(&shape, |yi, xi, wi| {
            y[yi] += f64::from(x[xi]) * f64::from(w[wi]);
            dx[xi] += f64::from(dy[yi]) * f64::from(w[wi]);
            dw[wi] += f64::from(dy[yi]) * f64::from(x[xi]);
        });
        let mut scratch = poison(cpu.conv_scratch(&shape).expect("the CPU has them"));
        let mut out = poison(y.len());
        cpu.conv(
            &shape,
            Operands { x: &x, w: &w, bias: Some(&bias) },
            Activation::None,
            &mut out,
            &mut scratch,
        );
        assert_near(&format!("y of {shape:?}"), &out, &y);
        cpu.conv(
            &shape,
            Operands { x: &x, w: &w, bias: Some(&bias) },
            Activation::Relu,
            &mut out,
            &mut scratch,
        );
        let positive: Vec<f64> = y.iter().map(|v| v.max(0.0)).collect();
        assert_near(&format!("activated y of {shape:?}"), &out, &positive);
        let mut out = poison(x.len());
        cpu.conv_input_gradient(&shape, &w, &dy, &mut out, &mut scratch);
        assert_near(&format!("dx of {shape:?}"), &out, &dx);
        let (mut out, mut out_bias) = (poison(w.len()), poison(bias.len()));
        cpu.conv_weight_gradient(&shape, &x, &dy, &mut out, Some(&mut out_bias), &mut scratch);
        assert_near(&format!("dw of {shape:?}"), &out, &dw);
        assert_near(&format!("db of {shape:?}"), &out_bias, &db);
    }
}

fn pools() -> Vec<Pool2d> {
    vec![
        Pool2d { planes: 70, size: [24, 24], window: [2, 2], stride: [2, 2], padding: [0; 2] },
        Pool2d { planes: 3, size: [7, 9], window: [3, 2], stride: [2, 3], padding: [0; 2] },
        Pool2d { planes: 2, size: [5, 5], window: [3, 3], stride: [1, 1], padding: [0; 2] },
        Pool2d { planes: 1, size: [4, 4], window: [4, 4], stride: [4, 4], padding: [0; 2] },
        Pool2d { planes: 3, size: [8, 7], window: [3, 3], stride: [2, 2], padding: [1, 1] },
        Pool2d { planes: 2, size: [5, 6], window: [2, 5], stride: [3, 1], padding: [1, 2] },
    ]
}

/// Calls `f(output index, input index)` for each element of each window.
fn for_each_cell(shape: &Pool2d, mut f: impl FnMut(usize, usize)) {
    let [oh, ow] = shape.output_size();
    for plane in 0..shape.planes {
        for (oy, ox) in (0..oh).flat_map(|oy| (0..ow).map(move |ox| (oy, ox))) {
            for (a, b) in (0..shape.window[0]).flat_map(|a| (0..shape.window[1]).map(move |b| (a, b))) {
                let inside =
                    |at: usize, d: usize| at.checked_sub(shape.padding[d]).filter(|at| *at < shape.size[d]);
                let (y, x) = (inside(oy * shape.stride[0] + a, 0), inside(ox * shape.stride[1] + b, 1));
                let (Some(y), Some(x)) = (y, x) else { continue };
                let at = y * shape.size[1] + x;
                f((plane * oh + oy) * ow + ox, plane * shape.size[0] * shape.size[1] + at);
            }
        }
    }
}

#[test]
fn pooling_and_its_gradients_are_right() {
    let cpu = cpu();
    for shape in pools() {
        let [oh, ow] = shape.output_size();
        let (inputs, outputs) = (shape.planes * shape.size[0] * shape.size[1], shape.planes * oh * ow);
        // Few different values, so that there are equals.
        let x: Vec<f32> = numbers(1, inputs).iter().map(|v| (v * 4.0).round()).collect();
        let dy = numbers(2, outputs);
        let count = (shape.window[0] * shape.window[1]) as f64;
        let mut best = vec![None::<usize>; outputs];
        let (mut mean, mut d_mean, mut d_max) = (vec![0.0; outputs], vec![0.0; inputs], vec![0.0; inputs]);
        for_each_cell(&shape, |out, at| {
            if best[out].is_none_or(|best| x[at] > x[best]) {
                best[out] = Some(at);
            }
            mean[out] += f64::from(x[at]) / count;
            d_mean[at] += f64::from(dy[out]) / count;
        });
        let most: Vec<f64> = best.iter().map(|at| f64::from(x[at.unwrap()])).collect();
        for (out, at) in best.iter().enumerate() {
            d_max[at.unwrap()] += f64::from(dy[out]);
        }
        let (mut y, mut places, mut dx) = (poison(outputs), poison(outputs), poison(inputs));
        cpu.max_pool(&shape, &x, &mut y, &mut places);
        assert_near("max", &y, &most);
        cpu.max_pool_gradient(&shape, &places, &dy, &mut dx);
        assert_near("gradient of max", &dx, &d_max);
        if shape.padding != [0, 0] {
            continue;
        }
        let (mut y, mut dx) = (poison(outputs), poison(inputs));
        cpu.avg_pool(&shape, &x, &mut y);
        assert_near("average", &y, &mean);
        cpu.avg_pool_gradient(&shape, &dy, &mut dx);
        assert_near("gradient of average", &dx, &d_mean);
    }
}
