//! Point-wise kernels over flat slices, and the sums of columns.
//!
//! This file does not know threads: each kernel works on the chunk it is given.

use super::isa::{Have, on_every_isa};
use super::math::{self, half_of_tanh, normal, sum2};
use crate::device::{Gelu, Leaf};
use dtrain_types::{Key, Merger, Wire};

on_every_isa! {
    /// `y = max(x, 0)`; NaN stays NaN, so that a broken pass is seen.
    pub(super) fn relu(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = if x <= 0.0 { 0.0 } else { x };
        }
    }
}

on_every_isa! {
    /// `d = y > 0 ? d : 0`.
    pub(super) fn relu_gradient(y: &[f32], d: &mut [f32]) {
        for (d, &y) in d.iter_mut().zip(y) {
            *d = if y > 0.0 { *d } else { 0.0 };
        }
    }
}

on_every_isa! {
    /// `y = 1 / (1 + e^-x)`.
    pub(super) fn sigmoid(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = math::sigmoid(x);
        }
    }
}

on_every_isa! {
    /// `d = d y (1 - y)`.
    pub(super) fn sigmoid_gradient(y: &[f32], d: &mut [f32]) {
        for (d, &y) in d.iter_mut().zip(y) {
            *d *= y * (1.0 - y);
        }
    }
}

on_every_isa! {
    /// `y = a sigmoid(a) b` of some rows, whose first half is `a` and whose second is `b`.
    pub(super) fn swiglu(width: usize, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(2 * width)) {
            let (gates, x) = x.split_at(width);
            for ((y, &gate), &x) in y.iter_mut().zip(gates).zip(x) {
                *y = gate * math::sigmoid(gate) * x;
            }
        }
    }
}

on_every_isa! {
    /// Its gradients: `da = dy b s (1 + a (1 - s))`, `db = dy a s`, `s = sigmoid(a)`.
    pub(super) fn swiglu_gradient(width: usize, x: &[f32], dy: &[f32], dx: &mut [f32]) {
        let rows = dx.chunks_exact_mut(2 * width).zip(x.chunks_exact(2 * width)).zip(dy.chunks_exact(width));
        for ((dx, x), dy) in rows {
            let ((gates, x), (dgates, dx)) = (x.split_at(width), dx.split_at_mut(width));
            for ((((dgate, dx), &gate), &x), &dy) in dgates.iter_mut().zip(dx).zip(gates).zip(x).zip(dy) {
                let s = math::sigmoid(gate);
                *dgate = dy * x * (s * gate.mul_add(1.0 - s, 1.0));
                *dx = dy * (gate * s);
            }
        }
    }
}

on_every_isa! {
    /// `y = a x + b y`, or `a x` where `b` is 0.
    pub(super) fn combine(by: [f32; 2], x: &[f32], y: &mut [f32]) {
        let [a, b] = by;
        for (y, &x) in y.iter_mut().zip(x) {
            *y = if b == 0.0 { a * x } else { a * x + b * *y };
        }
    }
}

on_every_isa! {
    /// `y[r, i] = x[r, i] by[r]` of some rows.
    pub(super) fn scale_rows(width: usize, x: &[f32], by: &[f32], y: &mut [f32]) {
        for ((y, x), &by) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(by) {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x * by;
            }
        }
    }
}

on_every_isa! {
    /// `y[r] = sum over i of a[r, i] b[r, i]` of some rows.
    pub(super) fn dot_rows(width: usize, a: &[f32], b: &[f32], y: &mut [f32]) {
        for ((y, a), b) in y.iter_mut().zip(a.chunks_exact(width)).zip(b.chunks_exact(width)) {
            *y = sum2(a, b, |a, b| a * b);
        }
    }
}

/// `y = gelu(x)`.
pub(super) fn gelu(isa: Have, form: Gelu, x: &[f32], y: &mut [f32]) {
    match form {
        Gelu::Exact => gelu_exact(isa, x, y),
        Gelu::Tanh => gelu_tanh(isa, x, y),
    }
}

/// `d = d gelu'(x)`.
pub(super) fn gelu_gradient(isa: Have, form: Gelu, x: &[f32], d: &mut [f32]) {
    match form {
        Gelu::Exact => gelu_exact_gradient(isa, x, d),
        Gelu::Tanh => gelu_tanh_gradient(isa, x, d),
    }
}

on_every_isa! {
    /// `y = x Phi(x)`.
    fn gelu_exact(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x * normal(x).0;
        }
    }
}

on_every_isa! {
    /// `d = d (Phi(x) + x phi(x))`.
    fn gelu_exact_gradient(x: &[f32], d: &mut [f32]) {
        for (d, &x) in d.iter_mut().zip(x) {
            let (distribution, density) = normal(x);
            *d *= x.mul_add(density, distribution);
        }
    }
}

on_every_isa! {
    /// `y = x s`, `s = (1 + tanh u) / 2` of [`half_of_tanh`].
    fn gelu_tanh(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x * half_of_tanh(x)[0];
        }
    }
}

on_every_isa! {
    /// `d = d (s + x s (1 - s) 2 u')`.
    fn gelu_tanh_gradient(x: &[f32], d: &mut [f32]) {
        for (d, &x) in d.iter_mut().zip(x) {
            let [s, rest, twice_slope] = half_of_tanh(x);
            let bend = s * rest;
            // Where it is flat, its slope may be beyond the range.
            *d *= if bend == 0.0 { s } else { (x * bend).mul_add(twice_slope, s) };
        }
    }
}

on_every_isa! {
    /// Drops what [`Device::dropout`](crate::device::Device::dropout) says; `first` is the index of the chunk's
    /// first element, a multiple of 4.
    pub(super) fn dropout(key: Key, rate: f32, first: usize, x: &[f32], y: &mut [f32]) {
        let keep = 1.0 / (1.0 - rate);
        // A word w gives the number (w >> 8) / 2^24: below the rate when (w >> 8) is below rate * 2^24, rounded up.
        let bar = (f64::from(rate) * f64::from(1u32 << 24)).ceil() as u32;
        for (block, (y, x)) in y.chunks_mut(4).zip(x.chunks(4)).enumerate() {
            let words = key.block((first / 4 + block) as u32);
            for ((y, &x), word) in y.iter_mut().zip(x).zip(words) {
                *y = if word >> 8 < bar { 0.0 } else { x * keep };
            }
        }
    }
}

on_every_isa! {
    /// `y = a + b`.
    pub(super) fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = a + b;
        }
    }
}

on_every_isa! {
    /// `y += x`.
    pub(super) fn add_to(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

on_every_isa! {
    /// Rounds every number.
    pub(super) fn round(wire: Wire, y: &mut [f32]) {
        wire.round(y);
    }
}

/// Columns that one task of [`column_sums`] adds up.
pub(super) const STRIP: usize = 64;
/// Rows that are summed from zero before they are added to the rows above.
const ROW_BLOCK: usize = 512;

on_every_isa! {
    /// Sums of up to [`STRIP`] columns starting at column `first`.
    fn column_sums(width: usize, first: usize, x: &[f32], sums: &mut [f32]) {
        sums.fill(0.0);
        for (at, block) in x.chunks(ROW_BLOCK * width).enumerate() {
            let mut total = [0.0f32; STRIP];
            for row in block.chunks_exact(width) {
                let row = &row[first..first + sums.len()];
                if let Ok(row) = <&[f32; STRIP]>::try_from(row) {
                    for j in 0..STRIP {
                        total[j] += row[j];
                    }
                } else {
                    for (total, &v) in total.iter_mut().zip(row) {
                        *total += v;
                    }
                }
            }
            for (sum, &block) in sums.iter_mut().zip(&total) {
                *sum = if at == 0 { block } else { *sum + block };
            }
        }
    }
}

/// Buffers for the leaves of [`column_sums_of_leaves`]: enough for 2^14 of them.
const LEAF_BUFFERS: usize = 16;

/// The same as a tree of sums over leaves of so many rows.
pub(super) fn column_sums_of_leaves(
    isa: Have,
    width: usize,
    leaf: Leaf,
    first: usize,
    x: &[f32],
    sums: &mut [f32],
) {
    if x.len() <= leaf.terms * width {
        return column_sums(isa, width, first, x, sums);
    }
    let mut buffers = [[0.0f32; STRIP]; LEAF_BUFFERS];
    let mut merger = Merger::default();
    let add = |buffers: &mut [[f32; STRIP]; LEAF_BUFFERS], left: usize, right: usize| {
        let (before, from) = buffers.split_at_mut(right);
        add_to(isa, &from[0], &mut before[left]);
        round(isa, leaf.wire, &mut before[left]);
    };
    for rows in x.chunks(leaf.terms * width) {
        let buffer = &mut buffers[merger.next_buffer()];
        column_sums(isa, width, first, rows, &mut buffer[..sums.len()]);
        round(isa, leaf.wire, buffer);
        merger.push(|left, right| add(&mut buffers, left, right));
    }
    merger.finish(|left, right| add(&mut buffers, left, right));
    sums.copy_from_slice(&buffers[0][..sums.len()]);
}

on_every_isa! {
    /// `running = (1 - momentum) running + momentum (sums * scale)`.
    pub(super) fn blend(momentum: f32, scale: f32, sums: &[f32], running: &mut [f32]) {
        for (running, &sum) in running.iter_mut().zip(sums) {
            *running = (1.0 - momentum) * *running + momentum * (sum * scale);
        }
    }
}

on_every_isa! {
    /// Whether no element is infinite or NaN.
    pub(super) fn all_finite(x: &[f32]) -> bool {
        // The greatest exponent marks both; bits of magnitude compare as integers.
        let mut most = 0u32;
        for v in x {
            most = most.max(v.to_bits() & 0x7fff_ffff);
        }
        most < 0x7f80_0000
    }
}
