//! Losses over rows of outputs, with their gradients.
//!
//! Rows are added up in order, in f64, by one thread.
//!
//! This file does not know batches or means: it gives sums and the gradient of the sum.

use super::isa::on_every_isa;
use super::math::{exp, greatest, ln, sum, sum2};
use crate::device::{CrossEntropy, LossSums};

/// The place of the greatest element, the first of equals; 0 if all are NaN.
#[inline(always)]
fn place_of_greatest(x: &[f32]) -> usize {
    let best = greatest(x);
    x.iter().position(|&v| v == best).unwrap_or(0)
}

on_every_isa! {
    /// The place of each row's greatest element.
    pub(super) fn arg_max(width: usize, x: &[f32], best: &mut [u32]) {
        for (best, row) in best.iter_mut().zip(x.chunks_exact(width)) {
            *best = place_of_greatest(row) as u32;
        }
    }
}

on_every_isa! {
    /// Cross entropy as PyTorch defines it with `reduction="sum"`; `d` may be empty.
    ///
    /// With smoothing `s`, class weights `w` and `lse` the logarithm of the sum of exponentials, a row costs
    /// `(1 - s) w[t] (lse - x[t]) + s / C * sum_c w[c] (lse - x[c])`.
    pub(super) fn cross_entropy(
        width: usize,
        options: &CrossEntropy<'_>,
        x: &[f32],
        targets: &[u32],
        d: &mut [f32],
    ) -> LossSums {
        let mut sums = LossSums::default();
        for (row, &target) in targets.iter().enumerate() {
            let x = &x[row * width..][..width];
            let d = if d.is_empty() { &mut [][..] } else { &mut d[row * width..][..width] };
            if options.ignore_index == Some(target) {
                d.fill(0.0);
                continue;
            }
            let target = target as usize;
            assert!(target < width, "target {target} of {width} classes");
            let weight = options.class_weights.get(target).copied().unwrap_or(1.0);
            sums.weight += f64::from(weight);
            sums.counted += 1;
            sums.correct += u64::from(place_of_greatest(x) == target);
            sums.loss += row_of_cross_entropy(options, weight, x, target, d);
        }
        sums
    }
}

/// The loss of one row, and its gradient into `d` unless that is empty.
#[inline(always)]
fn row_of_cross_entropy(
    options: &CrossEntropy<'_>,
    weight: f32,
    x: &[f32],
    target: usize,
    d: &mut [f32],
) -> f64 {
    let top = greatest(x);
    let total = if d.is_empty() {
        sum(x, |v| exp(v - top))
    } else {
        for (d, &v) in d.iter_mut().zip(x) {
            *d = exp(v - top);
        }
        sum(d, |v| v)
    };
    // A NaN or an infinite logit must show in the loss; `ln` asks for a finite number.
    let lse = if total.is_finite() { ln(f64::from(total)) + f64::from(top) } else { f64::NAN };
    let (main, spread) = (1.0 - options.label_smoothing, options.label_smoothing / x.len() as f32);
    let mut loss = f64::from(main * weight) * (lse - f64::from(x[target]));
    // What the gradient of lse is multiplied by: the sum of all that multiplies lse in the loss.
    let mut mass = main * weight;
    if spread > 0.0 {
        let (weights, values) = if options.class_weights.is_empty() {
            (x.len() as f32, sum(x, |v| v))
        } else {
            (sum(options.class_weights, |w| w), sum2(options.class_weights, x, |w, v| w * v))
        };
        loss += f64::from(spread) * (f64::from(weights) * lse - f64::from(values));
        mass += spread * weights;
    }
    if !d.is_empty() {
        let share = mass / total;
        if spread > 0.0 && !options.class_weights.is_empty() {
            for (d, &w) in d.iter_mut().zip(options.class_weights) {
                *d = *d * share - spread * w;
            }
        } else {
            for d in &mut *d {
                *d = *d * share - spread;
            }
        }
        d[target] -= main * weight;
    }
    loss
}

on_every_isa! {
    /// Squared error, averaged over a row and summed over rows; `d` may be empty.
    pub(super) fn squared_error(width: usize, x: &[f32], targets: &[f32], d: &mut [f32]) -> LossSums {
        let mut sums = LossSums::default();
        let share = 2.0 / width as f32;
        for (row, (x, t)) in x.chunks_exact(width).zip(targets.chunks_exact(width)).enumerate() {
            sums.loss += f64::from(sum2(x, t, |x, t| (x - t) * (x - t))) / width as f64;
            sums.weight += 1.0;
            sums.counted += 1;
            if !d.is_empty() {
                for ((d, &x), &t) in d[row * width..][..width].iter_mut().zip(x).zip(t) {
                    *d = share * (x - t);
                }
            }
        }
        sums
    }
}
