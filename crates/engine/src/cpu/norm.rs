//! Layer norm, RMS norm and batch norm.
//!
//! Means and variances are taken in two passes, the second around the mean, each in sixteen lanes.
//!
//! This file does not know running statistics beyond one blend; the stage keeps them.

use super::isa::on_every_isa;
use super::math::{sum, sum2};
use crate::device::{Centre, ChannelNorm, RowNorm, Rows};

/// Rows that one task takes; gradients of gain and bias are summed within a block, then blocks in order.
pub(super) const ROW_BLOCK: usize = 64;

on_every_isa! {
    /// Layer norm or RMS norm of some rows; `bias` may be empty; `saved` gets what was taken off and the reciprocal deviation of each.
    pub(super) fn layer_norm(
        norm: RowNorm,
        x: &[f32],
        gain: &[f32],
        bias: &[f32],
        y: &mut [f32],
        saved: &mut [f32],
    ) {
        let RowNorm { rows: Rows { width, .. }, centre, epsilon } = norm;
        for ((x, y), saved) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(saved.as_chunks_mut::<2>().0) {
            let mean = match centre {
                Centre::Mean => sum(x, |v| v) / width as f32,
                Centre::Zero => 0.0,
            };
            let variance = sum(x, |v| (v - mean) * (v - mean)) / width as f32;
            let factor = 1.0 / (variance + epsilon).sqrt();
            *saved = [mean, factor];
            if bias.is_empty() {
                for ((y, &x), &gain) in y.iter_mut().zip(x).zip(gain) {
                    *y = (x - mean) * factor * gain;
                }
                continue;
            }
            for (((y, &x), &gain), &bias) in y.iter_mut().zip(x).zip(gain).zip(bias) {
                *y = ((x - mean) * factor).mul_add(gain, bias);
            }
        }
    }
}

on_every_isa! {
    /// Its gradients over one block of rows: `sums` gets `dgain`, then `dbias` of the block.
    pub(super) fn layer_norm_gradient(
        norm: RowNorm,
        x: &[f32],
        gain: &[f32],
        saved: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        sums: &mut [f32],
    ) {
        sums.fill(0.0);
        let width = norm.rows.width;
        let (dgain, dbias) = sums.split_at_mut(width);
        for (row, saved) in saved.as_chunks::<2>().0.iter().enumerate() {
            let (x, dy) = (&x[row * width..][..width], &dy[row * width..][..width]);
            let [mean, factor] = *saved;
            for ((((dgain, dbias), &x), &dy), _) in dgain.iter_mut().zip(&mut *dbias).zip(x).zip(dy).zip(gain) {
                *dgain = dy.mul_add((x - mean) * factor, *dgain);
                *dbias += dy;
            }
            if dx.is_empty() {
                continue;
            }
            // dx = factor (d - mean(d) - xhat mean(d xhat)), d = dy gain; dx holds d until both means are known. Where no mean was taken off,
            // its gradient is not either.
            let dx = &mut dx[row * width..][..width];
            for ((dx, &dy), &gain) in dx.iter_mut().zip(dy).zip(gain) {
                *dx = dy * gain;
            }
            let along = match norm.centre {
                Centre::Mean => sum(dx, |d| d) / width as f32,
                Centre::Zero => 0.0,
            };
            let across = sum2(dx, x, |d, x| d * ((x - mean) * factor)) / width as f32;
            for (dx, &x) in dx.iter_mut().zip(x) {
                *dx = (*dx - along - (x - mean) * factor * across) * factor;
            }
        }
    }
}

on_every_isa! {
    /// Adds up the sums of all blocks, in order; no block gives zeros. Nobody wants `dbias` where it is empty.
    pub(super) fn add_parts(parts: &[f32], dgain: &mut [f32], dbias: &mut [f32]) {
        let width = dgain.len();
        for (at, part) in parts.chunks_exact(2 * width).enumerate() {
            for (sums, part) in [&mut *dgain, &mut *dbias].into_iter().zip(part.chunks_exact(width)) {
                for (sum, &v) in sums.iter_mut().zip(part) {
                    *sum = if at == 0 { v } else { *sum + v };
                }
            }
        }
        if parts.is_empty() {
            dgain.fill(0.0);
            dbias.fill(0.0);
        }
    }
}

/// The planes of one channel, an image each.
#[inline(always)]
fn planes(shape: ChannelNorm, channel: usize, x: &[f32]) -> impl Iterator<Item = &[f32]> {
    let per_image = shape.channels * shape.area;
    x.chunks_exact(per_image.max(1)).map(move |image| &image[channel * shape.area..][..shape.area])
}

on_every_isa! {
    /// Mean and sum of squared deviations of one channel, over planes in order, f64 between planes.
    pub(super) fn channel_statistics(shape: ChannelNorm, channel: usize, x: &[f32]) -> (f64, f64) {
        let count = (shape.images * shape.area) as f64;
        let mut total = 0.0f64;
        for plane in planes(shape, channel, x) {
            total += f64::from(sum(plane, |v| v));
        }
        let mean = total / count;
        let near = mean as f32;
        let (mut squares, mut first) = (0.0f64, 0.0f64);
        for plane in planes(shape, channel, x) {
            squares += f64::from(sum(plane, |v| (v - near) * (v - near)));
            first += f64::from(sum(plane, |v| v - near));
        }
        // What rounding the mean to f32 adds to the squares is taken off again.
        (near as f64 + first / count, squares - first * first / count)
    }
}

on_every_isa! {
    /// `y = (x - mean) * factor * gain + bias` over one image's plane.
    pub(super) fn scale_plane(mean: f32, factor: f32, gain: f32, bias: f32, x: &[f32], y: &mut [f32]) {
        let slope = factor * gain;
        for (y, &x) in y.iter_mut().zip(x) {
            *y = (x - mean).mul_add(slope, bias);
        }
    }
}

on_every_isa! {
    /// `(sum of dy, sum of dy * xhat)` of one channel, over planes in order.
    pub(super) fn channel_gradient(
        shape: ChannelNorm,
        channel: usize,
        saved: [f32; 2],
        x: &[f32],
        dy: &[f32],
    ) -> [f64; 2] {
        let [mean, factor] = saved;
        let mut totals = [0.0f64; 2];
        for (x, dy) in planes(shape, channel, x).zip(planes(shape, channel, dy)) {
            totals[0] += f64::from(sum(dy, |d| d));
            totals[1] += f64::from(sum2(dy, x, |d, x| d * ((x - mean) * factor)));
        }
        totals
    }
}

on_every_isa! {
    /// `dx = slope * (dy - along - xhat * across)` over one image's plane.
    pub(super) fn plane_gradient(
        saved: [f32; 2],
        slope: f32,
        means: [f32; 2],
        x: &[f32],
        dy: &[f32],
        dx: &mut [f32],
    ) {
        let ([mean, factor], [along, across]) = (saved, means);
        for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
            *dx = slope * (dy - along - (x - mean) * factor * across);
        }
    }
}
