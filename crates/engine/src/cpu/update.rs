//! Optimizer updates and the norm of a gradient, over flat slices.
//!
//! No fused multiply-add here: an update is then the plain arithmetic that any other implementation can repeat.
//!
//! This file does not know schedules or which parameters decay.

use super::isa::{Have, Isa, on_every_isa};
use super::pool::{CHUNK, Cut, Pool};
use crate::device::{AdamW, Lion, NORM_BLOCK, Sgd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks of a task.
const BLOCKS: usize = 4;
/// Blocks whose sums wait to be added in order.
const WAITING: usize = 256;

/// Sum of the squares of `scale * g` in f64: of each block, then of the blocks in order.
pub(super) fn sum_of_squares(isa: Have, pool: &Pool, scale: f32, g: &[f32]) -> f64 {
    // Bits of an f64 each.
    let waiting = [const { AtomicU64::new(0) }; WAITING];
    let mut sum = 0.0;
    for g in g.chunks(WAITING * NORM_BLOCK) {
        let waiting = &waiting[..g.len().div_ceil(NORM_BLOCK)];
        squares(isa, pool, scale, g, waiting);
        for waiting in waiting {
            sum += f64::from_bits(waiting.load(Ordering::Relaxed));
        }
    }
    sum
}

/// The sum of each block, for whoever adds them up.
pub(super) fn squares(isa: Have, pool: &Pool, scale: f32, g: &[f32], blocks: &[AtomicU64]) {
    pool.run(g.len(), g.len().div_ceil(BLOCKS * NORM_BLOCK), [], |task, [], _| {
        let first = task * BLOCKS;
        let g = &g[first * NORM_BLOCK..];
        let sums = squares_of_task(isa, scale, &g[..g.len().min(BLOCKS * NORM_BLOCK)]);
        for (block, sum) in blocks[first..].iter().zip(sums) {
            block.store(sum.to_bits(), Ordering::Relaxed);
        }
    });
}

/// Sums of squares of up to [`BLOCKS`] blocks, of which only the last may be short.
fn squares_of_task(isa: Have, scale: f32, g: &[f32]) -> [f64; BLOCKS] {
    match (isa.isa(), <&[f32; BLOCKS * NORM_BLOCK]>::try_from(g)) {
        // SAFETY: a `Have` of this set exists only where the CPU was seen to have its features.
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Amx, Ok(whole)) => unsafe { squares_side_by_side(scale, whole) },
        _ => squares_of_blocks(isa, scale, g),
    }
}

/// The same as [`squares_of_blocks`], of blocks side by side: one waits for its sums while the others go on, and the memory of
/// all of them is on its way.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx2")]
fn squares_side_by_side(scale: f32, g: &[f32; BLOCKS * NORM_BLOCK]) -> [f64; BLOCKS] {
    use std::arch::x86_64::*;
    let (blocks, _) = g.as_chunks::<NORM_BLOCK>();
    let scale = _mm256_set1_ps(scale);
    let mut lanes = [_mm512_setzero_pd(); BLOCKS];
    for at in (0..NORM_BLOCK).step_by(8) {
        for (lanes, block) in lanes.iter_mut().zip(blocks) {
            // SAFETY: a block has eight elements there.
            let eight = unsafe { _mm256_loadu_ps(block.as_ptr().add(at)) };
            let v = _mm512_cvtps_pd(_mm256_mul_ps(eight, scale));
            *lanes = _mm512_add_pd(*lanes, _mm512_mul_pd(v, v));
        }
    }
    lanes.map(|lanes| {
        let mut eight = [0.0f64; 8];
        // SAFETY: there are eight places.
        unsafe { _mm512_storeu_pd(eight.as_mut_ptr(), lanes) };
        eight.into_iter().sum()
    })
}

on_every_isa! {
    /// Sums of squares of up to [`BLOCKS`] blocks, of which only the last may be short: eight lanes each, then the lanes in
    /// order.
    // One block after the other: of blocks side by side the compiler makes code that takes twice as long.
    fn squares_of_blocks(scale: f32, g: &[f32]) -> [f64; BLOCKS] {
        let mut sums = [0.0; BLOCKS];
        for (sum, block) in sums.iter_mut().zip(g.chunks(NORM_BLOCK)) {
            let mut lanes = [0.0f64; 8];
            let (eights, rest) = block.as_chunks::<8>();
            eights.iter().for_each(|eight| add_squares(&mut lanes, scale, eight));
            add_squares(&mut lanes, scale, rest);
            *sum = lanes.into_iter().sum();
        }
        sums
    }
}

/// Adds the squares of up to eight elements, each to its lane.
#[inline(always)]
fn add_squares(lanes: &mut [f64; 8], scale: f32, g: &[f32]) {
    for (lane, &g) in lanes.iter_mut().zip(g) {
        let v = f64::from(g * scale);
        *lane += v * v;
    }
}

/// One AdamW update of parameters, first and second moments, on all threads.
pub(super) fn adamw(isa: Have, pool: &Pool, o: &AdamW, g: &[f32], state: [&mut [f32]; 3]) {
    pool.run(
        g.len(),
        g.len().div_ceil(CHUNK),
        state.map(|all| Cut::new(all, CHUNK)),
        |task, [p, m, v], _| {
            adamw_of_part(isa, o, &g[task * CHUNK..][..p.len()], p, m, v);
        },
    );
}

on_every_isa! {
    fn adamw_of_part(o: &AdamW, g: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        for (((p, m), v), &g) in p.iter_mut().zip(m).zip(v).zip(g) {
            [*p, *m, *v] = adamw_of_one(o, g, [*p, *m, *v]);
        }
    }
}

/// The same of a state that is read in one place and written to another.
pub(super) fn adamw_to(isa: Have, pool: &Pool, o: &AdamW, g: &[f32], from: [&[f32]; 3], to: [&mut [f32]; 3]) {
    pool.run(g.len(), g.len().div_ceil(CHUNK), to.map(|all| Cut::new(all, CHUNK)), |task, [p, m, v], _| {
        let [old_p, old_m, old_v] = from.map(|all| &all[task * CHUNK..][..p.len()]);
        adamw_of_part_to(isa, o, &g[task * CHUNK..][..p.len()], old_p, old_m, old_v, p, m, v);
    });
}

on_every_isa! {
    fn adamw_of_part_to(
        o: &AdamW,
        g: &[f32],
        old_p: &[f32],
        old_m: &[f32],
        old_v: &[f32],
        p: &mut [f32],
        m: &mut [f32],
        v: &mut [f32],
    ) {
        let old = old_p.iter().zip(old_m).zip(old_v).zip(g);
        for (((p, m), v), (((old_p, old_m), old_v), &g)) in p.iter_mut().zip(m).zip(v).zip(old) {
            [*p, *m, *v] = adamw_of_one(o, g, [*old_p, *old_m, *old_v]);
        }
    }
}

/// A parameter and its moments after an update.
#[inline(always)]
fn adamw_of_one(o: &AdamW, g: f32, [p, m, v]: [f32; 3]) -> [f32; 3] {
    let g = g * o.scale;
    let m = o.beta1 * m + (1.0 - o.beta1) * g;
    let v = o.beta2 * v + (1.0 - o.beta2) * (g * g);
    let root = v.sqrt() * o.root_correction + o.epsilon;
    [p * o.decay - o.step_size * m / root, m, v]
}

/// One Lion update of parameters and momentum, on all threads.
pub(super) fn lion(isa: Have, pool: &Pool, o: &Lion, g: &[f32], state: [&mut [f32]; 2]) {
    pool.run(g.len(), g.len().div_ceil(CHUNK), state.map(|all| Cut::new(all, CHUNK)), |task, [p, m], _| {
        lion_of_part(isa, o, &g[task * CHUNK..][..p.len()], p, m);
    });
}

on_every_isa! {
    fn lion_of_part(o: &Lion, g: &[f32], p: &mut [f32], m: &mut [f32]) {
        for ((p, m), &g) in p.iter_mut().zip(m).zip(g) {
            let g = g * o.scale;
            let way = o.beta1 * *m + (1.0 - o.beta1) * g;
            let up = if way > 0.0 { o.lr } else { 0.0 };
            let step = if way < 0.0 { -o.lr } else { up };
            *m = o.beta2 * *m + (1.0 - o.beta2) * g;
            *p = *p * o.decay - step;
        }
    }
}

/// One SGD update of parameters and momentum, on all threads.
pub(super) fn momentum(isa: Have, pool: &Pool, o: &Sgd, g: &[f32], state: [&mut [f32]; 2]) {
    pool.run(g.len(), g.len().div_ceil(CHUNK), state.map(|all| Cut::new(all, CHUNK)), |task, [p, m], _| {
        momentum_of_part(isa, o, &g[task * CHUNK..][..p.len()], p, m);
    });
}

on_every_isa! {
    fn momentum_of_part(o: &Sgd, g: &[f32], p: &mut [f32], m: &mut [f32]) {
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
