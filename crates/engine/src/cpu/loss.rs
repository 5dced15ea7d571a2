//! Losses over rows of outputs, with their gradients.
//!
//! Rows are added up in order, in f64, by one thread.
//!
//! This file does not know batches or means: it gives sums and the gradient of the sum.

use super::isa::on_every_isa;
use super::math::{exp, greatest, ln, sum, sum2};
use super::same;
use crate::device::{CrossEntropy, LossSums, Outputs, Rows};
use std::ops::Range;

/// Outputs in the host's memory.
type InHost<'a> = Outputs<&'a [f32], &'a mut [f32]>;

impl Outputs<&[f32], &mut [f32]> {
    /// What they are, until something takes their place.
    #[inline(always)]
    pub(super) fn read(&self) -> &[f32] {
        match self {
            Self::Kept(x) => x,
            Self::Replaced(x) => x,
        }
    }

    /// Some of them, for a while.
    #[inline(always)]
    fn part(&mut self, part: Range<usize>) -> InHost<'_> {
        match self {
            Self::Kept(x) => Outputs::Kept(&x[part]),
            Self::Replaced(x) => Outputs::Replaced(&mut x[part]),
        }
    }
}

/// Asserts that logits and class weights are those of the shape.
#[track_caller]
pub(super) fn assert_fits(shape: Rows, options: &CrossEntropy<'_>, logits: &InHost<'_>) {
    same("logits", logits.read().len(), shape.rows * shape.width);
    let weights = options.class_weights.len();
    assert!(weights == 0 || weights == shape.width, "{weights} weights for {} classes", shape.width);
}

/// The first place of `best`, the greatest element; 0 if all are NaN.
#[inline(always)]
fn first_place(x: &[f32], best: f32) -> usize {
    x.iter().position(|&v| v == best).unwrap_or(0)
}

on_every_isa! {
    /// The place of each row's greatest element.
    pub(super) fn arg_max(width: usize, x: &[f32], best: &mut [u32]) {
        for (best, row) in best.iter_mut().zip(x.chunks_exact(width)) {
            *best = first_place(row, greatest(row)) as u32;
        }
    }
}

on_every_isa! {
    /// Cross entropy as PyTorch defines it with `reduction="sum"`.
    ///
    /// With smoothing `s`, class weights `w` and `lse` the logarithm of the sum of exponentials, a row costs
    /// `(1 - s) w[t] (lse - x[t]) + s / C * sum_c w[c] (lse - x[c])`.
    pub(super) fn cross_entropy(
        width: usize,
        options: &CrossEntropy<'_>,
        x: Outputs<&[f32], &mut [f32]>,
        targets: &[u32],
    ) -> LossSums {
        let (mut x, mut sums) = (x, LossSums::default());
        for (row, &target) in targets.iter().enumerate() {
            let x = x.part(row * width..(row + 1) * width);
            if options.ignore_index == Some(target) {
                if let Outputs::Replaced(d) = x {
                    d.fill(0.0);
                }
                continue;
            }
            let target = target as usize;
            assert!(target < width, "target {target} of {width} classes");
            let weight = options.class_weights.get(target).copied().unwrap_or(1.0);
            let (loss, best) = row_of_cross_entropy(options, [(target, weight)], x);
            sums.loss += loss;
            sums.weight += f64::from(weight);
            sums.counted += 1;
            sums.correct += u64::from(best == target);
        }
        sums
    }
}

on_every_isa! {
    /// The same of rows with two targets: each a class, the other class, and the share of the first, as the bits of an f32.
    pub(super) fn mixed_cross_entropy(
        width: usize,
        options: &CrossEntropy<'_>,
        x: Outputs<&[f32], &mut [f32]>,
        targets: &[[u32; 3]],
    ) -> LossSums {
        let (mut x, mut sums) = (x, LossSums::default());
        for (row, &[own, other, share]) in targets.iter().enumerate() {
            let share = f32::from_bits(share);
            let of = |target: u32, share: f32| {
                let target = target as usize;
                assert!(target < width, "target {target} of {width} classes");
                (target, share * options.class_weights.get(target).copied().unwrap_or(1.0))
            };
            let aims = [of(own, share), of(other, 1.0 - share)];
            let (loss, best) = row_of_cross_entropy(options, aims, x.part(row * width..(row + 1) * width));
            sums.loss += loss;
            sums.weight += f64::from(aims[0].1) + f64::from(aims[1].1);
            sums.counted += 1;
            sums.correct += u64::from(best == aims[usize::from(share < 0.5)].0);
        }
        sums
    }
}

/// The loss of one row, which aims at each of these classes with a weight, and the place of its greatest element.
#[inline(always)]
fn row_of_cross_entropy<const AIMS: usize>(
    options: &CrossEntropy<'_>,
    aims: [(usize, f32); AIMS],
    mut x: InHost<'_>,
) -> (f64, usize) {
    let (main, spread) = (1.0 - options.label_smoothing, options.label_smoothing / x.read().len() as f32);
    // All that is read of the outputs, before exponentials take their place.
    let (top, goals) = (greatest(x.read()), aims.map(|(target, _)| x.read()[target]));
    let best = first_place(x.read(), top);
    let (weights, values) = match options.class_weights {
        _ if spread <= 0.0 => (0.0, 0.0),
        [] => (x.read().len() as f32, sum(x.read(), |v| v)),
        weights => (sum(weights, |w| w), sum2(weights, x.read(), |w, v| w * v)),
    };
    let total = match &mut x {
        Outputs::Kept(x) => sum(x, |v| exp(v - top)),
        Outputs::Replaced(d) => {
            for d in d.iter_mut() {
                *d = exp(*d - top);
            }
            sum(d, |v| v)
        }
    };
    // A NaN or an infinite logit must show in the loss; `ln` asks for a finite number.
    let lse = if total.is_finite() { ln(f64::from(total)) + f64::from(top) } else { f64::NAN };
    // What the gradient of lse is multiplied by: the sum of all that multiplies lse in the loss.
    let (mut loss, mut mass) = (0.0, 0.0);
    for ((_, weight), goal) in aims.into_iter().zip(goals) {
        loss += f64::from(main * weight) * (lse - f64::from(goal));
        mass += main * weight;
    }
    if spread > 0.0 {
        loss += f64::from(spread) * (f64::from(weights) * lse - f64::from(values));
        mass += spread * weights;
    }
    if let Outputs::Replaced(d) = x {
        // A power of two: the bits are those of scaling the result.
        let scale = options.scale;
        let (share, spread, main) = (mass / total * scale, spread * scale, main * scale);
        if spread > 0.0 && !options.class_weights.is_empty() {
            for (d, &w) in d.iter_mut().zip(options.class_weights) {
                *d = *d * share - spread * w;
            }
        } else {
            for d in &mut *d {
                *d = *d * share - spread;
            }
        }
        for (target, weight) in aims {
            d[target] -= main * weight;
        }
    }
    (loss, best)
}

on_every_isa! {
    /// Squared error, averaged over a row and summed over rows.
    pub(super) fn squared_error(
        width: usize,
        scale: f32,
        x: Outputs<&[f32], &mut [f32]>,
        targets: &[f32],
    ) -> LossSums {
        let (mut x, mut sums) = (x, LossSums::default());
        let share = 2.0 / width as f32 * scale;
        for (row, t) in targets.chunks_exact(width).enumerate() {
            let x = x.part(row * width..(row + 1) * width);
            sums.loss += f64::from(sum2(x.read(), t, |x, t| (x - t) * (x - t))) / width as f64;
            sums.weight += 1.0;
            sums.counted += 1;
            if let Outputs::Replaced(d) = x {
                for (d, &t) in d.iter_mut().zip(t) {
                    *d = share * (*d - t);
                }
            }
        }
        sums
    }
}
