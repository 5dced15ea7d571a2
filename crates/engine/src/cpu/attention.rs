//! Self-attention, one head of one sequence a task.
//!
//! Queries go in blocks of [`QUERIES`], keys up to the block's last position, or all where nothing is masked. Nothing of size `T x T` is kept: the
//! forward pass saves the logarithm of each row's sum of exponentials, from which the backward pass makes the
//! probabilities again.
//!
//! *Order*: a query's output sums over keys in order in blocks of 512. Gradients of keys and values add up one block
//! of queries after another, each in order.
//!
//! *Source*: the forward and backward passes are those of Dao et al., "FlashAttention", 2022, without its blocks of keys.
//!
//! This file does not know the projections around it.

use super::isa::{Have, on_every_isa};
use super::math::{exp, greatest, ln, sum, sum2};
use super::pool::{Cut, Pool, Workspace};
use super::product::{Multiplies, TERMS, Target};
use crate::device::{Attended, AttentionShape, Mask, Strides, Write};

/// Queries of a block.
const QUERIES: usize = 32;

/// One head of one sequence: where its queries, keys and values start, and what separates positions.
struct Head {
    /// In `qkv`.
    start: usize,
    /// In the output.
    out: usize,
    /// From one of queries, keys, values to the next; from one position to the next in the output.
    wide: usize,
}

impl Head {
    fn new(shape: &AttentionShape, task: usize) -> Self {
        let (sequence, head) = (task / shape.heads, task % shape.heads);
        let wide = shape.heads * shape.head;
        Self {
            start: sequence * shape.time * 3 * wide + head * shape.head,
            out: sequence * shape.time * wide + head * shape.head,
            wide,
        }
    }

    /// Queries (0), keys (1) or values (2).
    fn part<'a>(&self, qkv: &'a [f32], which: usize) -> &'a [f32] {
        &qkv[self.start + which * self.wide..]
    }

    /// From one position to the next in `qkv`.
    fn row(&self) -> usize {
        3 * self.wide
    }
}

/// How many keys the queries of a block that begins at `first` are multiplied with, and how many of them query `row` of it sees:
/// `seen[0] + row * seen[1]`.
fn sight(shape: &AttentionShape, first: usize) -> (usize, [usize; 2]) {
    match shape.mask {
        Mask::Causal => (shape.time.min(first + QUERIES), [first + 1, 1]),
        Mask::None => (shape.time, [shape.time, 0]),
    }
}

fn scale(shape: &AttentionShape) -> f32 {
    1.0 / (shape.head as f32).sqrt()
}

/// `y`, and the logarithms of the sums into `saved: [B, heads, T]`.
pub(super) fn forward<M: Multiplies>(
    isa: Have,
    pool: &Pool,
    shape: &AttentionShape,
    qkv: &[f32],
    y: &mut [f32],
    saved: &mut [f32],
) {
    let out = Target { c: y.as_mut_ptr(), row: shape.heads * shape.head, column: 1, write: Write::Set };
    pool.run(
        qkv.len() * shape.time / TERMS,
        shape.batch * shape.heads,
        [Cut::new(saved, shape.time)],
        |task, [saved], workspace| {
            let head = Head::new(shape, task);
            let out = out.shifted(head.out);
            // SAFETY: this head's columns of this sequence's rows belong to this task alone.
            unsafe { one_forward::<M>(isa, shape, &head, qkv, out, saved, workspace) };
        },
    );
}

/// SAFETY: the target's elements, a row for each position, are the caller's.
unsafe fn one_forward<M: Multiplies>(
    isa: Have,
    shape: &AttentionShape,
    head: &Head,
    qkv: &[f32],
    out: Target,
    saved: &mut [f32],
    workspace: &mut Workspace,
) {
    let (time, width) = (shape.time, shape.head);
    let (rows, turned) = (Strides::rows(head.row()), Strides::transposed(head.row()));
    let Workspace { a, b, rest, .. } = workspace;
    let keys_len = M::panels_len(isa, width, time);
    let (keys, values) = b.take(keys_len + M::panels_len(isa, time, width)).split_at_mut(keys_len);
    M::panels(isa, head.part(qkv, 1), turned, 0..width, 0..time, keys);
    M::panels(isa, head.part(qkv, 2), rows, 0..time, 0..width, values);
    let scores = rest.take(QUERIES * time);
    for first in (0..time).step_by(QUERIES) {
        let count = QUERIES.min(time - first);
        let (seen, seen_by) = sight(shape, first);
        let q = &head.part(qkv, 0)[first * head.row()..];
        let at = Target { c: scores.as_mut_ptr(), row: seen, column: 1, write: Write::Set };
        // SAFETY: `scores` has room for a block of queries by all keys.
        unsafe { M::multiply(isa, q, rows, [count, seen, width], keys, width, at, a) };
        let mut factors = [0.0; QUERIES];
        softmax(isa, seen_by, seen, scale(shape), scores, &mut saved[first..first + count], &mut factors);
        let to = out.shifted(first * out.row);
        // SAFETY: rows of the caller.
        unsafe { M::multiply(isa, scores, Strides::rows(seen), [count, width, seen], values, time, to, a) };
        for (row, factor) in factors[..count].iter().enumerate() {
            // SAFETY: a row of the caller, all written above.
            let y = unsafe { std::slice::from_raw_parts_mut(to.c.add(row * to.row), width) };
            y.iter_mut().for_each(|v| *v *= factor);
        }
    }
}

on_every_isa! {
    /// Makes a block of scores into exponentials, zero for keys of the future; `factors` gets what makes each row
    /// sum to 1, `logs` the logarithm of the sum.
    fn softmax(
        seen_by: [usize; 2],
        seen: usize,
        scale: f32,
        scores: &mut [f32],
        logs: &mut [f32],
        factors: &mut [f32],
    ) {
        for (row, (log, factor)) in logs.iter_mut().zip(factors).enumerate() {
            let (past, future) = scores[row * seen..][..seen].split_at_mut(seen_by[0] + row * seen_by[1]);
            let top = greatest(past);
            for v in &mut *past {
                *v = exp((*v - top) * scale);
            }
            future.fill(0.0);
            let total = sum(past, |v| v);
            *factor = 1.0 / total;
            *log = if total.is_finite() { (ln(f64::from(total)) + f64::from(top * scale)) as f32 } else { f32::NAN };
        }
    }
}

/// `dqkv`.
pub(super) fn gradient<M: Multiplies>(
    isa: Have,
    pool: &Pool,
    shape: &AttentionShape,
    inputs: Attended<&[f32]>,
    dqkv: &mut [f32],
) {
    let Attended { qkv, y, saved, dy } = inputs;
    let out =
        Target { c: dqkv.as_mut_ptr(), row: 3 * shape.heads * shape.head, column: 1, write: Write::Set };
    pool.run(qkv.len() * shape.time / TERMS, shape.batch * shape.heads, [], |task, [], workspace| {
        let head = Head::new(shape, task);
        let out = out.shifted(head.start);
        let saved = &saved[task * shape.time..][..shape.time];
        let inputs = Attended { qkv, y: &y[head.out..], saved, dy: &dy[head.out..] };
        // SAFETY: this head's columns of this sequence's rows belong to this task alone.
        unsafe { one_gradient::<M>(isa, shape, &head, inputs, out, workspace) };
    });
}

/// SAFETY: the target's elements, three runs for each position, are the caller's.
unsafe fn one_gradient<M: Multiplies>(
    isa: Have,
    shape: &AttentionShape,
    head: &Head,
    inputs: Attended<&[f32]>,
    out: Target,
    workspace: &mut Workspace,
) {
    let Attended { qkv, y, saved, dy } = inputs;
    let (time, width) = (shape.time, shape.head);
    let (rows, turned) = (Strides::rows(head.row()), Strides::transposed(head.row()));
    let (out_rows, scale) = (Strides::rows(head.wide), scale(shape));
    let Workspace { a, b, rest, .. } = workspace;
    let (across, along) = (M::panels_len(isa, width, time), M::panels_len(isa, time, width));
    let block = M::panels_len(isa, QUERIES, width);
    let b = b.take(2 * across + along + block);
    let (keys_turned, b) = b.split_at_mut(across);
    let (values_turned, b) = b.split_at_mut(across);
    let (keys, panel) = b.split_at_mut(along);
    M::panels(isa, head.part(qkv, 1), turned, 0..width, 0..time, keys_turned);
    M::panels(isa, head.part(qkv, 2), turned, 0..width, 0..time, values_turned);
    M::panels(isa, head.part(qkv, 1), rows, 0..time, 0..width, keys);
    let (p, ds) = rest.take(2 * QUERIES * time).split_at_mut(QUERIES * time);
    let [dq, dk, dv] = [0, 1, 2].map(|which| out.shifted(which * head.wide));
    for first in (0..time).step_by(QUERIES) {
        let count = QUERIES.min(time - first);
        let (seen, seen_by) = sight(shape, first);
        let q = &head.part(qkv, 0)[first * head.row()..];
        let (y, dy) = (&y[first * head.wide..], &dy[first * head.wide..]);
        let block_of = |c: &mut [f32]| Target { c: c.as_mut_ptr(), row: seen, column: 1, write: Write::Set };
        // SAFETY: `p` and `ds` have room for a block of queries by all keys.
        unsafe {
            M::multiply(isa, q, rows, [count, seen, width], keys_turned, width, block_of(p), a);
            M::multiply(isa, dy, out_rows, [count, seen, width], values_turned, width, block_of(ds), a);
        }
        softmax_gradient(
            isa,
            seen_by,
            [seen, width, head.wide],
            scale,
            &saved[first..first + count],
            y,
            dy,
            p,
            ds,
        );
        let to = dq.shifted(first * dq.row);
        // SAFETY: the queries' rows of the caller.
        unsafe { M::multiply(isa, ds, Strides::rows(seen), [count, width, seen], keys, time, to, a) };
        // Keys of this block are met for the first time, earlier ones add up.
        for (source, source_rows, weights, to) in [(dy, out_rows, &*p, dv), (q, rows, &*ds, dk)] {
            M::panels(isa, source, source_rows, 0..count, 0..width, panel);
            let met = if first == 0 || shape.mask == Mask::Causal { first } else { seen };
            for (start, end, write) in [(0, met, Write::Add), (met, seen, Write::Set)] {
                let to = Target { write, ..to.shifted(start * to.row) };
                let sizes = [end - start, width, count];
                // SAFETY: the keys' rows of the caller; those that are added to were set by an earlier block.
                unsafe {
                    M::multiply(isa, &weights[start..], Strides::transposed(seen), sizes, panel, count, to, a)
                };
            }
        }
    }
}

on_every_isa! {
    /// Makes scores into probabilities `p`, and the gradient of probabilities into that of scores, `ds`.
    fn softmax_gradient(
        seen_by: [usize; 2],
        sizes: [usize; 3],
        scale: f32,
        logs: &[f32],
        y: &[f32],
        dy: &[f32],
        p: &mut [f32],
        ds: &mut [f32],
    ) {
        let [seen, width, row_of_y] = sizes;
        for (row, &log) in logs.iter().enumerate() {
            let whole = sum2(&y[row * row_of_y..][..width], &dy[row * row_of_y..][..width], |y, dy| y * dy);
            let (past, future) = p[row * seen..][..seen].split_at_mut(seen_by[0] + row * seen_by[1]);
            let (d_past, d_future) = ds[row * seen..][..seen].split_at_mut(seen_by[0] + row * seen_by[1]);
            for (p, d) in past.iter_mut().zip(d_past) {
                *p = exp(p.mul_add(scale, -log));
                *d = *p * (*d - whole) * scale;
            }
            future.fill(0.0);
            d_future.fill(0.0);
        }
    }
}
