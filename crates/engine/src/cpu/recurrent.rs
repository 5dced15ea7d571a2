//! The cells of LSTM and GRU, forward and backward, one place of one sequence at a time.
//!
//! The products around them belong to whoever calls. Gates of a sequence lie as `[time, 4, hidden]`.
//!
//! *Source*: Hochreiter and Schmidhuber, "Long short-term memory", 1997, with forget gates; Cho et al., 2014, in the form of cuDNN and
//! PyTorch, where the reset gate stands behind the product.

use super::isa::{Have, on_every_isa};
use super::math::{sigmoid, tanh};
use super::pool::{Cut, Pool};
use crate::device::{Cell, CellGradients, CellStep, CellsKept, GATES, Matrices};

/// One step forward. `gates` holds sums of products and becomes gates.
pub(super) fn forward(
    isa: Have,
    pool: &Pool,
    step: &CellStep,
    biases: [&[f32]; 2],
    [gates, states, y]: [&mut [f32]; 3],
) {
    let CellStep { cell, rows, time, at, hidden } = *step;
    let cuts =
        [Cut::new(gates, time * GATES * hidden), Cut::new(states, time * hidden), Cut::new(y, time * hidden)];
    pool.run(rows * GATES * hidden * 8, rows, cuts, |_, [gates, states, y], _| {
        let gates = &mut gates[at * GATES * hidden..][..GATES * hidden];
        let (y_before, y) = y.split_at_mut(at * hidden);
        let (y_before, y) = (last(y_before, hidden), &mut y[..hidden]);
        match cell {
            Cell::Lstm => {
                let (before, states) = states.split_at_mut(at * hidden);
                lstm(isa, biases, gates, last(before, hidden), &mut states[..hidden], y);
            }
            Cell::Gru => gru(isa, biases, gates, y_before, y),
        }
    });
}

/// The last `width` elements; none where there are none.
fn last(x: &[f32], width: usize) -> &[f32] {
    &x[x.len().saturating_sub(width)..]
}

/// An element of what was before, or 0.
#[inline(always)]
fn or_zero(x: &[f32], i: usize) -> f32 {
    if x.is_empty() { 0.0 } else { x[i] }
}

on_every_isa! {
    fn lstm(biases: [&[f32]; 2], gates: &mut [f32], before: &[f32], states: &mut [f32], y: &mut [f32]) {
        let hidden = y.len();
        for (gate, values) in gates.chunks_exact_mut(hidden).enumerate() {
            let [a, b] = biases.map(|bias| &bias[gate * hidden..][..hidden]);
            for ((v, a), b) in values.iter_mut().zip(a).zip(b) {
                let x = *v + (a + b);
                *v = if gate == 2 { tanh(x) } else { sigmoid(x) };
            }
        }
        let (input, rest) = gates.split_at(hidden);
        let (forget, rest) = rest.split_at(hidden);
        let (candidate, output) = rest.split_at(hidden);
        for i in 0..hidden {
            states[i] = forget[i].mul_add(or_zero(before, i), input[i] * candidate[i]);
            y[i] = output[i] * tanh(states[i]);
        }
    }
}

on_every_isa! {
    fn gru(biases: [&[f32]; 2], gates: &mut [f32], before: &[f32], y: &mut [f32]) {
        let hidden = y.len();
        let (reset, rest) = gates.split_at_mut(hidden);
        let (update, rest) = rest.split_at_mut(hidden);
        let (candidate, inner) = rest.split_at_mut(hidden);
        let [a, b] = biases;
        for i in 0..hidden {
            reset[i] = sigmoid(reset[i] + (a[i] + b[i]));
            update[i] = sigmoid(update[i] + (a[hidden + i] + b[hidden + i]));
            inner[i] += b[2 * hidden + i];
            candidate[i] = tanh(reset[i].mul_add(inner[i], candidate[i] + a[2 * hidden + i]));
            y[i] = update[i].mul_add(or_zero(before, i) - candidate[i], candidate[i]);
        }
    }
}

/// One step backward.
pub(super) fn gradient(
    isa: Have,
    pool: &Pool,
    step: &CellStep,
    kept: CellsKept<&[f32]>,
    gradients: CellGradients<&mut [f32]>,
) {
    let CellStep { cell, rows, time, at, hidden } = *step;
    let CellGradients { dy, dstates, dgates } = gradients;
    let (wide, narrow) = (time * GATES * hidden, time * hidden);
    let cuts = [Cut::new(dy, narrow), Cut::new(dstates, hidden), Cut::new(dgates, wide)];
    pool.run(rows * GATES * hidden * 8, rows, cuts, |row, [dy, dstates, dgates], _| {
        let gates = &kept.gates[row * wide + at * GATES * hidden..][..GATES * hidden];
        let dgates = &mut dgates[at * GATES * hidden..][..GATES * hidden];
        let (before, dy) = dy.split_at_mut(at * hidden);
        let skipped = before.len().saturating_sub(hidden);
        let (d_before, dy) = (&mut before[skipped..], &dy[..hidden]);
        match cell {
            Cell::Lstm => {
                let states = &kept.states[row * narrow..][..(at + 1) * hidden];
                let (before, states) = states.split_at(at * hidden);
                lstm_gradient(isa, gates, [last(before, hidden), states], dy, dstates, dgates);
            }
            Cell::Gru => {
                let before = last(&kept.y[row * narrow..][..at * hidden], hidden);
                gru_gradient(isa, gates, before, dy, d_before, dgates);
            }
        }
    });
}

on_every_isa! {
    fn lstm_gradient(gates: &[f32], states: [&[f32]; 2], dy: &[f32], dstates: &mut [f32], dgates: &mut [f32]) {
        let hidden = dy.len();
        let [before, states] = states;
        let (input, rest) = gates.split_at(hidden);
        let (forget, rest) = rest.split_at(hidden);
        let (candidate, output) = rest.split_at(hidden);
        let (d_input, rest) = dgates.split_at_mut(hidden);
        let (d_forget, rest) = rest.split_at_mut(hidden);
        let (d_candidate, d_output) = rest.split_at_mut(hidden);
        for i in 0..hidden {
            let squashed = tanh(states[i]);
            let through = dy[i] * output[i];
            let d = (through * squashed).mul_add(-squashed, through) + dstates[i];
            d_output[i] = dy[i] * squashed * (output[i] * (1.0 - output[i]));
            d_input[i] = d * candidate[i] * (input[i] * (1.0 - input[i]));
            d_forget[i] = d * or_zero(before, i) * (forget[i] * (1.0 - forget[i]));
            d_candidate[i] = d * input[i] * (1.0 - candidate[i] * candidate[i]);
            dstates[i] = d * forget[i];
        }
    }
}

on_every_isa! {
    fn gru_gradient(gates: &[f32], before: &[f32], dy: &[f32], d_before: &mut [f32], dgates: &mut [f32]) {
        let hidden = dy.len();
        let (reset, rest) = gates.split_at(hidden);
        let (update, rest) = rest.split_at(hidden);
        let (candidate, inner) = rest.split_at(hidden);
        let (d_reset, rest) = dgates.split_at_mut(hidden);
        let (d_update, rest) = rest.split_at_mut(hidden);
        let (d_candidate, d_inner) = rest.split_at_mut(hidden);
        for i in 0..hidden {
            let d = dy[i] * (1.0 - update[i]) * (1.0 - candidate[i] * candidate[i]);
            d_candidate[i] = d;
            d_inner[i] = d * reset[i];
            d_reset[i] = d * inner[i] * (reset[i] * (1.0 - reset[i]));
            d_update[i] = dy[i] * (or_zero(before, i) - candidate[i]) * (update[i] * (1.0 - update[i]));
        }
        for ((d, dy), update) in d_before.iter_mut().zip(dy).zip(update) {
            *d = dy.mul_add(*update, *d);
        }
    }
}

on_every_isa! {
    /// `y[c, r] = x[r, c]` of each matrix, in blocks that stay in the cache.
    pub(super) fn transpose(shape: Matrices, x: &[f32], y: &mut [f32]) {
        const BLOCK: usize = 16;
        let Matrices { rows, columns, .. } = shape;
        for (x, y) in x.chunks_exact(rows * columns).zip(y.chunks_exact_mut(rows * columns)) {
            for first_row in (0..rows).step_by(BLOCK) {
                for first in (0..columns).step_by(BLOCK) {
                    for column in first..columns.min(first + BLOCK) {
                        for row in first_row..rows.min(first_row + BLOCK) {
                            y[column * rows + row] = x[row * columns + column];
                        }
                    }
                }
            }
        }
    }
}
