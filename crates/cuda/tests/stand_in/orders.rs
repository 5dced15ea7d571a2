//! The orders of sums as the kernels' top comments state them, once more and plainly: a sum has these very bits.

use super::conv::volume;
use dtrain_engine::device::{Centre, Conv3dShape, RowNorm, Rows};
use std::ops::Add;

/// The sum of a warp's lanes: pairs 16, 8, 4, 2, 1 apart.
pub fn across_warp<T: Copy + Add<Output = T>>(mut lanes: Vec<T>) -> T {
    assert_eq!(lanes.len(), 32);
    while lanes.len() > 1 {
        let (low, high) = lanes.split_at(lanes.len() / 2);
        lanes = low.iter().zip(high).map(|(&a, &b)| a + b).collect();
    }
    lanes[0]
}

/// The sum of a block's 256 threads: each warp, then the warps in order.
pub fn across_block<T: Copy + Add<Output = T>>(threads: &[T]) -> T {
    assert_eq!(threads.len(), 256);
    let warps = threads.chunks(32).map(|warp| across_warp(warp.to_vec()));
    warps.reduce(|sum, warp| sum + warp).expect("eight warps")
}

/// Sums of `lanes` lanes: lane `i` adds elements `i`, `i + lanes`, ... in order, from zero.
pub fn in_lanes<T: Copy + Default + Add<Output = T>>(lanes: usize, x: impl Iterator<Item = T>) -> Vec<T> {
    let mut sums = vec![T::default(); lanes];
    for (i, v) in x.enumerate() {
        sums[i % lanes] = sums[i % lanes] + v;
    }
    sums
}

/// Sums of `lanes` lanes: lane `i` adds the eight elements from `8 i` on, then those from `8 (i + lanes)` on, ... in order.
fn in_wide_lanes(lanes: usize, x: impl Iterator<Item = f32>) -> Vec<f32> {
    let mut sums = vec![0.0; lanes];
    for (i, v) in x.enumerate() {
        sums[i / 8 % lanes] += v;
    }
    sums
}

fn in_order(x: impl IntoIterator<Item = f32>) -> f32 {
    x.into_iter().reduce(|sum, v| sum + v).unwrap_or(0.0)
}

/// `sum_parts`: in order, or by eight lanes where there are many parts.
fn of_parts(parts: impl Iterator<Item = f32>) -> f32 {
    let parts: Vec<f32> = parts.collect();
    if parts.len() < 32 { in_order(parts) } else { in_order(in_lanes(8, parts.into_iter())) }
}

/// `column_parts`, then `sum_parts`: runs of 256 rows, eight lanes each.
pub fn column_sums(shape: Rows, x: &[f32]) -> Vec<f32> {
    let column = |c: usize| {
        let values: Vec<f32> = x.iter().skip(c).step_by(shape.width).copied().collect();
        of_parts(values.chunks(256).map(|run| in_order(in_lanes(8, run.iter().copied()))))
    };
    (0..shape.width).map(column).collect()
}

/// `plane_parts`, then `sum_parts`: runs of 4 096 values of a channel, 256 lanes each.
pub fn plane_sums([channels, area]: [usize; 2], x: &[f32]) -> Vec<f32> {
    let channel = |c: usize| {
        let planes = x.chunks(area).skip(c).step_by(channels);
        let values: Vec<f32> = planes.flatten().copied().collect();
        of_parts(values.chunks(4096).map(|run| across_block(&in_lanes(256, run.iter().copied()))))
    };
    (0..channels).map(channel).collect()
}

/// `layer_norm`: 32 lanes a row, eight elements at a time, the variance in a second pass.
pub fn layer_norm(norm: RowNorm, x: &[f32], gain: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let width = norm.rows.width as f32;
    let row = |x: &[f32]| {
        let mean = match norm.centre {
            Centre::Mean => across_warp(in_wide_lanes(32, x.iter().copied())) / width,
            Centre::Zero => 0.0,
        };
        let variance = across_warp(in_wide_lanes(32, x.iter().map(|v| (v - mean) * (v - mean)))) / width;
        let factor = 1.0 / (variance + norm.epsilon).sqrt();
        let y = x.iter().zip(gain).enumerate().map(move |(i, (v, gain))| {
            let hat = (v - mean) * factor;
            bias.map_or(hat * gain, |bias| hat.mul_add(*gain, bias[i]))
        });
        y.collect::<Vec<f32>>()
    };
    x.chunks(norm.rows.width).flat_map(row).collect()
}

/// `layer_norm_parts`, then `sum_parts`: runs of 64 rows, sixteen lanes each; `dgain`, then `dbias`.
pub fn layer_norm_sums(shape: Rows, x: &[f32], saved: &[f32], dy: &[f32]) -> [Vec<f32>; 2] {
    let run = |first: usize, column: usize| {
        let mut lanes = [[0.0f32; 16]; 2];
        for row in first..(first + 64).min(shape.rows) {
            let (at, lane) = (row * shape.width + column, row % 16);
            let hat = (x[at] - saved[2 * row]) * saved[2 * row + 1];
            lanes[0][lane] = dy[at].mul_add(hat, lanes[0][lane]);
            lanes[1][lane] += dy[at];
        }
        lanes.map(in_order)
    };
    [0, 1].map(|which| {
        let column = |column| of_parts((0..shape.rows).step_by(64).map(|first| run(first, column)[which]));
        (0..shape.width).map(column).collect()
    })
}

/// `conv2d_weight_gradient` or `conv3d_weight_gradient`, then `sum_parts`: ranges of cells, each in blocks of 512, in order by
/// fused multiply-add.
pub fn weight_gradient(shape: &Conv3dShape, x: &[f32], dy: &[f32]) -> Vec<f32> {
    let out = shape.output_size();
    let (area, window) = (volume(out), volume(shape.kernel));
    let cells = shape.images * area;
    let tiles = shape.outputs.div_ceil(64) * (shape.channels * window).div_ceil(64);
    let splits = (2048 / tiles).min(cells.div_ceil(512)).max(1);
    let each = cells.div_ceil(splits).next_multiple_of(16);
    // Where element `index` of a box is.
    let place = |[_, rows, columns]: [usize; 3], index: usize| {
        [index / columns / rows, index / columns % rows, index % columns]
    };
    // The element that a place of a kernel meets at a cell, zero outside the image.
    let met = |term: usize, cell: usize| {
        let (at, tap) = (place(out, cell % area), place(shape.kernel, term % window));
        let at = [0, 1, 2].map(|d| (at[d] * shape.stride[d] + tap[d]).wrapping_sub(shape.padding[d]));
        let [_, rows, columns] = shape.size;
        let inside = (0..3).all(|d| at[d] < shape.size[d]);
        let first = (cell / area * shape.channels + term / window) * volume(shape.size);
        if inside { x[first + (at[0] * rows + at[1]) * columns + at[2]] } else { 0.0 }
    };
    let element = |output: usize, term: usize| {
        of_parts((0..splits).map(|split| {
            let range = (split * each).min(cells)..((split + 1) * each).min(cells);
            in_order(range.clone().step_by(512).map(|start| {
                (start..(start + 512).min(range.end)).fold(0.0f32, |sum, cell| {
                    let dy = dy[(cell / area * shape.outputs + output) * area + cell % area];
                    dy.mul_add(met(term, cell), sum)
                })
            }))
        }))
    };
    let terms = shape.channels * window;
    (0..shape.outputs * terms).map(|i| element(i / terms, i % terms)).collect()
}
