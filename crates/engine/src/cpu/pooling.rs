//! Max and average pooling over planes, forward and backward.
//!
//! This file does not know images or channels: a plane is a plane.

use super::isa::on_every_isa;
use crate::device::Pool2d;

on_every_isa! {
    /// Max-pooling of some planes; the first of equals wins, and a NaN wins over everything.
    pub(super) fn max_pool(shape: Pool2d, x: &[f32], y: &mut [f32], places: &mut [f32]) {
        let [height, width] = shape.size;
        let [out_height, out_width] = shape.output_size();
        let area = out_height * out_width;
        for (plane, x) in x.chunks_exact(height * width).enumerate() {
            for row in 0..out_height {
                let at = plane * area + row * out_width;
                let (y, places) = (&mut y[at..at + out_width], &mut places[at..at + out_width]);
                let first = row * shape.stride[0] * width;
                if shape.padding != [0, 0] {
                    max_row_of_part(shape, row, x, y, places);
                } else if shape.window == [2, 2] && shape.stride[1] == 2 {
                    max_row_of_pairs(width, first, x, y, places);
                } else {
                    max_row(shape, first, x, y, places);
                }
            }
        }
    }
}

/// One row of outputs whose windows start at element `first` of the plane.
#[inline(always)]
fn max_row(shape: Pool2d, first: usize, x: &[f32], y: &mut [f32], places: &mut [f32]) {
    let width = shape.size[1];
    let step = shape.stride[1];
    for (column, (y, place)) in y.iter_mut().zip(places).enumerate() {
        let corner = first + column * step;
        let (mut best, mut best_at) = (x[corner], corner as u32);
        for i in 0..shape.window[0] {
            let row = corner + i * width;
            for (j, &v) in x[row..row + shape.window[1]].iter().enumerate() {
                let wins = v > best || v.is_nan();
                best = if wins { v } else { best };
                best_at = if wins { (row + j) as u32 } else { best_at };
            }
        }
        *y = best;
        *place = f32::from_bits(best_at);
    }
}

/// One row of outputs of a padded plane: each window's part that lies in it.
#[inline(always)]
fn max_row_of_part(shape: Pool2d, row: usize, x: &[f32], y: &mut [f32], places: &mut [f32]) {
    let inside = |d: usize, at: usize| {
        let first = at * shape.stride[d];
        let to = (first + shape.window[d]).saturating_sub(shape.padding[d]).min(shape.size[d]);
        first.saturating_sub(shape.padding[d])..to
    };
    let (rows, width) = (inside(0, row), shape.size[1]);
    for (column, (y, place)) in y.iter_mut().zip(places).enumerate() {
        let columns = inside(1, column);
        let corner = rows.start * width + columns.start;
        let (mut best, mut best_at) = (x[corner], corner as u32);
        for i in rows.clone() {
            for j in columns.clone() {
                let v = x[i * width + j];
                let wins = v > best || v.is_nan();
                best = if wins { v } else { best };
                best_at = if wins { (i * width + j) as u32 } else { best_at };
            }
        }
        *y = best;
        *place = f32::from_bits(best_at);
    }
}

/// As [`max_row`], for windows of two by two side by side: straight-line code that vectorises.
#[inline(always)]
fn max_row_of_pairs(width: usize, first: usize, x: &[f32], y: &mut [f32], places: &mut [f32]) {
    let top = x[first..][..2 * y.len()].as_chunks::<2>().0;
    let bottom = x[first + width..][..2 * y.len()].as_chunks::<2>().0;
    let outputs = y.iter_mut().zip(places);
    for (column, ((y, place), (&[a, b], &[c, d]))) in outputs.zip(top.iter().zip(bottom)).enumerate() {
        let corner = (first + 2 * column) as u32;
        let (mut best, mut at) = (a, corner);
        for (v, v_at) in [(b, corner + 1), (c, corner + width as u32), (d, corner + width as u32 + 1)] {
            let wins = v > best || v.is_nan();
            best = if wins { v } else { best };
            at = if wins { v_at } else { at };
        }
        *y = best;
        *place = f32::from_bits(at);
    }
}

on_every_isa! {
    /// `dx` of max-pooling: each output's gradient is added where its maximum was, outputs in order.
    pub(super) fn max_pool_gradient(shape: Pool2d, places: &[f32], dy: &[f32], dx: &mut [f32]) {
        dx.fill(0.0);
        let [out_height, out_width] = shape.output_size();
        let area = out_height * out_width;
        let planes = dx.chunks_exact_mut(shape.size[0] * shape.size[1]);
        for ((dx, places), dy) in planes.zip(places.chunks_exact(area)).zip(dy.chunks_exact(area)) {
            for (place, &dy) in places.iter().zip(dy) {
                dx[place.to_bits() as usize] += dy;
            }
        }
    }
}

on_every_isa! {
    /// Average pooling of some planes: the window's sum in order, divided by its size.
    pub(super) fn avg_pool(shape: Pool2d, x: &[f32], y: &mut [f32]) {
        let [height, width] = shape.size;
        let [out_height, out_width] = shape.output_size();
        let count = (shape.window[0] * shape.window[1]) as f32;
        let area = out_height * out_width;
        for (x, y) in x.chunks_exact(height * width).zip(y.chunks_exact_mut(area)) {
            for row in 0..out_height {
                for column in 0..out_width {
                    let corner = row * shape.stride[0] * width + column * shape.stride[1];
                    let mut total = 0.0;
                    for i in 0..shape.window[0] {
                        for &v in &x[corner + i * width..][..shape.window[1]] {
                            total += v;
                        }
                    }
                    y[row * out_width + column] = total / count;
                }
            }
        }
    }
}

on_every_isa! {
    /// `dx` of average pooling: each output's share is added to its window, outputs in order.
    pub(super) fn avg_pool_gradient(shape: Pool2d, dy: &[f32], dx: &mut [f32]) {
        dx.fill(0.0);
        let [height, width] = shape.size;
        let [out_height, out_width] = shape.output_size();
        let count = (shape.window[0] * shape.window[1]) as f32;
        let area = out_height * out_width;
        for (dx, dy) in dx.chunks_exact_mut(height * width).zip(dy.chunks_exact(area)) {
            for row in 0..out_height {
                for column in 0..out_width {
                    let corner = row * shape.stride[0] * width + column * shape.stride[1];
                    let share = dy[row * out_width + column] / count;
                    for i in 0..shape.window[0] {
                        for v in &mut dx[corner + i * width..][..shape.window[1]] {
                            *v += share;
                        }
                    }
                }
            }
        }
    }
}
