//! One step of recurrent cells, and back through it.
//!
//! This file does not know the products around it.

use super::{Floats, FloatsMut, THREADS, Values, ValuesMut, alike, same, size};
use crate::kernels;
use crate::launch::{Argument, KernelLaunch, Queue};
use dtrain_engine::device::{Cell, CellGradients, CellStep, CellsKept, GATES};

/// Outputs of all places. *Panics* unless there are states for each, or none of cells that have none.
fn outputs(step: &CellStep, states: usize) -> usize {
    let out = step.rows * step.time * step.hidden;
    same("states", states, if step.cell == Cell::Lstm { out } else { 0 });
    out
}

/// Sequences, places of one, which of them, and the width of an output.
fn sizes(step: &CellStep) -> [Argument; 4] {
    [step.rows, step.time, step.at, step.hidden].map(|n| size(n).into())
}

/// Blocks with a thread for each element of a place.
fn blocks(step: &CellStep) -> usize {
    let elements = step.rows * step.hidden;
    size(elements);
    elements.div_ceil(THREADS)
}

/// What one place of so many lists moves. *Units*: bytes.
fn moved(step: &CellStep, floats: usize, values: usize, each: usize) -> usize {
    step.rows * step.hidden * (floats * 4 + values * each)
}

/// One step forward: see [`dtrain_engine::device::Device::recurrent_cells`].
pub fn recurrent_cells<'y>(
    queue: &impl Queue,
    step: &CellStep,
    [bias_in, bias_out]: [Floats<'_>; 2],
    mut gates: FloatsMut<'_>,
    mut states: FloatsMut<'_>,
    y: impl Into<ValuesMut<'y>>,
) {
    let (mut y, out) = (y.into(), outputs(step, states.len()));
    for bias in [bias_in, bias_out] {
        same("bias", bias.len(), step.cell.gates() * step.hidden);
    }
    same("gates", gates.len(), GATES * out);
    same("y", y.len(), out);
    if step.rows * step.hidden == 0 {
        return;
    }
    let storage = y.storage();
    let [rows, time, at, hidden] = sizes(step);
    let (bias_in, bias_out, gates, y) =
        (bias_in.into(), bias_out.into(), (&mut gates).into(), (&mut y).into());
    let bytes = storage.bytes();
    queue.launch(&match step.cell {
        Cell::Lstm => {
            let kernel =
                storage.of([&kernels::LSTM_CELLS, &kernels::LSTM_CELLS_BF16, &kernels::LSTM_CELLS_F16]);
            let states = (&mut states).into();
            let arguments = [bias_in, bias_out, gates, states, y, rows, time, at, hidden];
            KernelLaunch::new(kernel, blocks(step), arguments).moves(moved(step, 2 * GATES + 2, 1, bytes))
        }
        Cell::Gru => {
            let kernel = storage.of([&kernels::GRU_CELLS, &kernels::GRU_CELLS_BF16, &kernels::GRU_CELLS_F16]);
            let arguments = [bias_in, bias_out, gates, y, rows, time, at, hidden];
            KernelLaunch::new(kernel, blocks(step), arguments).moves(moved(step, 2 * GATES, 2, bytes))
        }
    });
}

/// Back through it: see [`dtrain_engine::device::Device::recurrent_gradient`].
pub fn recurrent_gradient(
    queue: &impl Queue,
    step: &CellStep,
    kept: CellsKept<Floats<'_>, Values<'_>>,
    gradients: CellGradients<ValuesMut<'_>, FloatsMut<'_>>,
) {
    let CellGradients { mut dy, mut dstates, mut dgates } = gradients;
    let out = outputs(step, kept.states.len());
    same("gates", kept.gates.len(), GATES * out);
    same("y", kept.y.len(), out);
    same("dy", dy.len(), out);
    same("dstates", dstates.len(), step.rows * step.hidden);
    same("dgates", dgates.len(), GATES * out);
    if step.rows * step.hidden == 0 {
        return;
    }
    let storage = alike(kept.y.storage(), &[dy.storage(), dgates.storage()]);
    let [rows, time, at, hidden] = sizes(step);
    let (gates, dgates, bytes) = (kept.gates.into(), (&mut dgates).into(), storage.bytes());
    queue.launch(&match step.cell {
        Cell::Lstm => {
            let kernels =
                [&kernels::LSTM_GRADIENT, &kernels::LSTM_GRADIENT_BF16, &kernels::LSTM_GRADIENT_F16];
            let (states, dy) = (kept.states.into(), dy.read().into());
            let arguments = [gates, states, dy, (&mut dstates).into(), dgates, rows, time, at, hidden];
            let launch = KernelLaunch::new(storage.of(kernels), blocks(step), arguments);
            launch.moves(moved(step, GATES + 4, GATES + 1, bytes))
        }
        Cell::Gru => {
            let kernels = [&kernels::GRU_GRADIENT, &kernels::GRU_GRADIENT_BF16, &kernels::GRU_GRADIENT_F16];
            let arguments = [gates, kept.y.into(), (&mut dy).into(), dgates, rows, time, at, hidden];
            let launch = KernelLaunch::new(storage.of(kernels), blocks(step), arguments);
            launch.moves(moved(step, GATES, GATES + 4, bytes))
        }
    });
}
