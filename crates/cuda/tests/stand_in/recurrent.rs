//! Checks of recurrent cells: the CPU's bits.

use super::stored::both;
use super::{Buffer, Extent, Kind, StandIn, cpu, numbers};
use dtrain_cuda::operations;
use dtrain_cuda::{Values, ValuesMut};
use dtrain_engine::device::{Cell, CellGradients, CellStep, CellsKept, Device, GATES};

/// The first place, one between and the last; fewer elements than a block has threads, and more.
fn steps(cell: Cell, extent: Extent) -> Vec<CellStep> {
    let all = [(1, 1, 0, 1), (3, 5, 0, 19), (2, 4, 3, 150), (5, 3, 1, 67)];
    let step = |&(rows, time, at, hidden): &_| CellStep { cell, rows, time, at, hidden };
    extent.of(1, &all).iter().map(step).collect()
}

/// Elements of outputs and of states.
fn lengths(step: &CellStep) -> [usize; 2] {
    let out = step.rows * step.time * step.hidden;
    [out, if step.cell == Cell::Lstm { out } else { 0 }]
}

/// Sums that no function is flat at, and some that are far out.
fn sums(site: u32, len: usize) -> Vec<f32> {
    let far = |i: usize, v: f32| if i % 37 == 5 { v * 60.0 } else { v * 2.0 };
    numbers(site, len).into_iter().enumerate().map(|(i, v)| far(i, v)).collect()
}

fn cells(q: &StandIn, extent: Extent, cell: Cell) {
    for step in steps(cell, extent) {
        let ([out, states], biases) = (lengths(&step), cell.gates() * step.hidden);
        let biases = [numbers(4, biases), numbers(5, biases)];
        let biases_ = biases.each_ref().map(|bias| Buffer::of(q, "bias", bias));
        let (mut gates, mut kept, mut y) = (sums(1, GATES * out), numbers(2, states), numbers(3, out));
        let [gates_, kept_, y_] =
            [("gates", &gates), ("states", &kept), ("y", &y)].map(|(name, x)| Buffer::of(q, name, x));
        let lent = biases_.each_ref().map(Buffer::read);
        operations::recurrent_cells(q, &step, lent, gates_.write(), kept_.write(), y_.write());
        cpu().recurrent_cells(&step, biases.each_ref().map(|b| &b[..]), &mut gates, &mut kept, &mut y);
        gates_.has_bits(&format!("gates of {step:?}"), &gates);
        kept_.has_bits(&format!("states of {step:?}"), &kept);
        y_.has_bits(&format!("outputs of {step:?}"), &y);
    }
}

fn gradient(q: &StandIn, extent: Extent, cell: Cell) {
    for step in steps(cell, extent) {
        let [out, states] = lengths(&step);
        let (gates, kept, y) = (numbers(1, GATES * out), sums(2, states), numbers(3, out));
        let (mut dy, mut dgates) = (numbers(4, out), numbers(6, GATES * out));
        let mut dstates = numbers(5, step.rows * step.hidden);
        let [gates_, kept_, y_] =
            [("gates", &gates), ("states", &kept), ("y", &y)].map(|(name, x)| Buffer::of(q, name, x));
        let [dy_, dstates_, dgates_] =
            [("dy", &dy), ("dstates", &dstates), ("dgates", &dgates)].map(|(name, x)| Buffer::of(q, name, x));
        operations::recurrent_gradient(
            q,
            &step,
            CellsKept { gates: gates_.read(), states: kept_.read(), y: y_.read().into() },
            CellGradients {
                dy: dy_.write().into(),
                dstates: dstates_.write(),
                dgates: dgates_.write().into(),
            },
        );
        cpu().recurrent_gradient(
            &step,
            CellsKept { gates: &gates[..], states: &kept, y: &y[..] },
            CellGradients { dy: &mut dy[..], dstates: &mut dstates[..], dgates: &mut dgates },
        );
        dgates_.has_bits(&format!("gradients of gates of {step:?}"), &dgates);
        dstates_.has_bits(&format!("those of states of {step:?}"), &dstates);
        dy_.has_bits(&format!("those of outputs of {step:?}"), &dy);
    }
}

/// Outputs and gradients in halves are those of f32, rounded; gates and states are f32 and have the same bits.
pub fn of_halves<K: Kind>(q: &StandIn, extent: Extent) {
    for step in [Cell::Lstm, Cell::Gru].into_iter().flat_map(|cell| steps(cell, extent)) {
        let ([out, states], biases) = (lengths(&step), step.cell.gates() * step.hidden);
        let biases = [4, 5].map(|site| Buffer::of(q, "bias", &numbers(site, biases)));
        let floats = |name: &'static str, site: u32, len: usize| Buffer::of(q, name, &sums(site, len));
        both::<K, 0, 1>(q, "recurrent cells", [], [out], |[], [y]: [ValuesMut<'_>; 1]| {
            let (gates, kept) = (floats("gates", 21, GATES * out), floats("states", 22, states));
            let lent = biases.each_ref().map(Buffer::read);
            operations::recurrent_cells(q, &step, lent, gates.write(), kept.write(), y);
            vec![gates.now(), kept.now()]
        });
        both::<K, 1, 2>(
            q,
            "their gradient",
            [out],
            [out, GATES * out],
            |[y]: [Values<'_>; 1], [dy, dgates]| {
                let (gates, kept) = (floats("gates", 23, GATES * out), floats("states", 22, states));
                let dstates = floats("dstates", 24, step.rows * step.hidden);
                let kept = CellsKept { gates: gates.read(), states: kept.read(), y };
                let gradients = CellGradients { dy, dstates: dstates.write(), dgates };
                operations::recurrent_gradient(q, &step, kept, gradients);
                vec![dstates.now()]
            },
        );
    }
}

pub fn lstm_cells(q: &StandIn, extent: Extent) {
    cells(q, extent, Cell::Lstm);
}

pub fn gru_cells(q: &StandIn, extent: Extent) {
    cells(q, extent, Cell::Gru);
}

pub fn lstm_gradient(q: &StandIn, extent: Extent) {
    gradient(q, extent, Cell::Lstm);
}

pub fn gru_gradient(q: &StandIn, extent: Extent) {
    gradient(q, extent, Cell::Gru);
}
