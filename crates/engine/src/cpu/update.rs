//! Optimizer updates and the norm of a gradient, over flat slices.
//!
//! No fused multiply-add here: an update is then the plain arithmetic that any other implementation can repeat.
//!
//! This file does not know schedules or which parameters decay.

use super::isa::on_every_isa;
use crate::device::{AdamW, Sgd};

/// Elements of a block of [`sum_of_squares`].
pub(super) const NORM_BLOCK: usize = 4096;

on_every_isa! {
    /// Sum of squares of one block in f64, eight lanes, then the lanes in order.
    pub(super) fn sum_of_squares(scale: f32, g: &[f32]) -> f64 {
        let mut lanes = [0.0f64; 8];
        let (blocks, rest) = g.as_chunks::<8>();
        for block in blocks {
            for i in 0..8 {
                let v = f64::from(block[i] * scale);
                lanes[i] += v * v;
            }
        }
        for (lane, &v) in lanes.iter_mut().zip(rest) {
            let v = f64::from(v * scale);
            *lane += v * v;
        }
        lanes.into_iter().sum()
    }
}

on_every_isa! {
    /// One AdamW update.
    pub(super) fn adamw(o: &AdamW, g: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        let (rest1, rest2) = (1.0 - o.beta1, 1.0 - o.beta2);
        for (((p, m), v), &g) in p.iter_mut().zip(m).zip(v).zip(g) {
            let g = g * o.scale;
            *m = o.beta1 * *m + rest1 * g;
            *v = o.beta2 * *v + rest2 * (g * g);
            let root = v.sqrt() * o.root_correction + o.epsilon;
            *p = *p * o.decay - o.step_size * *m / root;
        }
    }
}

on_every_isa! {
    /// One SGD update with momentum.
    pub(super) fn momentum(o: &Sgd, g: &[f32], p: &mut [f32], m: &mut [f32]) {
        let kept = if o.first { 0.0 } else { o.momentum };
        for ((p, m), &g) in p.iter_mut().zip(m).zip(g) {
            let g = g * o.scale + o.weight_decay * *p;
            // In the first step the old momentum counts for nothing, whatever it holds.
            let old = if o.first { 0.0 } else { kept * *m };
            *m = old + g;
            let d = if o.nesterov { g + o.momentum * *m } else { *m };
            *p -= o.lr * d;
        }
    }
}

on_every_isa! {
    /// One SGD update without momentum.
    pub(super) fn plain(o: &Sgd, g: &[f32], p: &mut [f32]) {
        for (p, &g) in p.iter_mut().zip(g) {
            *p -= o.lr * (g * o.scale + o.weight_decay * *p);
        }
    }
}
