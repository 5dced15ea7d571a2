//! Self-attention of the newest tokens of texts, by keys and values that are kept of those before; one head of one text a task.
//!
//! Keys lie turned, so that the scores of a query go over neighbouring places, and values place by place.
//!
//! *Order*: that of `attention.rs`, to the bit: each score and each output is a chain of fused multiply-adds, of blocks of at most [`K_BLOCK`] terms, and the sum of
//! the exponentials is that of a row there.
//!
//! This file does not know the projections around it.

use super::isa::{Have, on_every_isa};
use super::math::{exp, greatest, sum};
use super::pool::{Cut, Pool};
use super::product::tile::K_BLOCK;
use super::product::{TERMS, Target};
use crate::device::{AttentionShape, Newest, Write};

/// Elements that a head of a text has in the cache.
fn of_head(shape: &AttentionShape) -> usize {
    2 * shape.time * shape.head
}

/// Elements of the cache.
pub(super) fn cache_len(shape: &AttentionShape) -> usize {
    shape.batch * shape.heads * of_head(shape)
}

/// `y: [texts, newest, heads * head]` of `qkv: [texts, newest, 3 * heads * head]`.
pub(super) fn forward(
    isa: Have,
    pool: &Pool,
    (shape, newest): (&AttentionShape, Newest),
    qkv: &[f32],
    cache: &mut [f32],
    y: &mut [f32],
) {
    let AttentionShape { batch, heads, head: width, time: places, .. } = *shape;
    let (Newest { seen, count }, wide) = (newest, heads * width);
    let out = Target { c: y.as_mut_ptr(), row: wide, column: 1, write: Write::Set };
    let work = batch * heads * count * (seen + count) * width * 2 / TERMS;
    pool.run(work, batch * heads, [Cut::new(cache, of_head(shape))], |task, [cache], workspace| {
        let (text, head) = (task / heads, task % heads);
        let (keys, values) = cache.split_at_mut(places * width);
        let scores = workspace.rest.take(seen + count);
        for place in seen..seen + count {
            let row = text * count + place - seen;
            let part = |which: usize| &qkv[row * 3 * wide + which * wide + head * width..][..width];
            for (kept, key) in keys[place..].iter_mut().step_by(places).zip(part(1)) {
                *kept = *key;
            }
            values[place * width..][..width].copy_from_slice(part(2));
            let to = out.shifted(row * wide + head * width);
            // SAFETY: this head's columns of this row belong to this task alone.
            let y = unsafe { std::slice::from_raw_parts_mut(to.c, width) };
            one(isa, places, part(0), keys, values, &mut scores[..=place], y);
        }
    });
}

on_every_isa! {
    /// The output of one query, by the places that have a score.
    fn one(places: usize, query: &[f32], keys: &[f32], values: &[f32], scores: &mut [f32], y: &mut [f32]) {
        let (seen, width) = (scores.len(), query.len());
        let scale = 1.0 / (width as f32).sqrt();
        // Blocks of a chain that are behind the first are summed apart. No head that is known has more than one.
        let mut apart = [0.0; CHUNK];
        for from in (0..seen).step_by(CHUNK) {
            let scores = &mut scores[from..seen.min(from + CHUNK)];
            for block in (0..width).step_by(K_BLOCK) {
                let sums = if block == 0 { &mut *scores } else { &mut apart[..scores.len()] };
                sums.fill(0.0);
                for at in block..width.min(block + K_BLOCK) {
                    let keys = &keys[at * places + from..][..sums.len()];
                    for (sum, key) in sums.iter_mut().zip(keys) {
                        *sum = query[at].mul_add(*key, *sum);
                    }
                }
                if block > 0 {
                    scores.iter_mut().zip(&apart).for_each(|(score, sum)| *score += sum);
                }
            }
        }
        let top = greatest(scores);
        for score in &mut *scores {
            *score = exp((*score - top) * scale);
        }
        let factor = 1.0 / sum(scores, |score| score);
        for from in (0..width).step_by(CHUNK) {
            let y = &mut y[from..width.min(from + CHUNK)];
            for (block, scores) in scores.chunks(K_BLOCK).enumerate() {
                let sums = if block == 0 { &mut *y } else { &mut apart[..y.len()] };
                sums.fill(0.0);
                let values = values[block * K_BLOCK * width..].chunks_exact(width);
                for (score, values) in scores.iter().zip(values) {
                    for (sum, value) in sums.iter_mut().zip(&values[from..]) {
                        *sum = score.mul_add(*value, *sum);
                    }
                }
                if block > 0 {
                    y.iter_mut().zip(&apart).for_each(|(y, sum)| *y += sum);
                }
            }
            y.iter_mut().for_each(|y| *y *= factor);
        }
    }
}

/// Sums that are worked on at once.
const CHUNK: usize = 256;
