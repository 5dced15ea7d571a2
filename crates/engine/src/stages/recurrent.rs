//! A recurrent layer, LSTM or GRU: `[time, inputs]` to `[time, hidden]`, with PyTorch's names and order of gates.
//!
//! The product of all inputs with their weights is one; then each place is a product of the outputs before it, and the cells. Backward
//! the other way round: place by place the gradients of gates, then those of weights and inputs as one product each.
//!
//! This file does not know the cells' functions.

use crate::describe::Description;
use crate::device::{
    Cell, CellGradients, CellStep, CellsKept, Device, GATES, Product, Rows, Strides, Write, reborrow,
};
use crate::param_layout::{Init, ParamLayout};
use crate::stage::{ArenaPlan, Backward, Forward, GradientUse, Needs, Pass, Shape, Stage};
use std::ops::Range;

/// A layer of recurrent cells. See the file's comment.
#[derive(Clone, Debug)]
pub struct Recurrent {
    cell: Cell,
    hidden: usize,
    layer: usize,
    inputs: usize,
    time: usize,
    layout: ParamLayout,
}

/// Where a run of columns of the gates comes from: rows of the weights for outputs before.
struct Run {
    /// First row of the weights.
    row: usize,
    /// First column of the gates.
    column: usize,
    /// How many.
    len: usize,
}

impl Recurrent {
    /// A layer of these cells with so many outputs, the first of its model.
    #[must_use]
    pub fn new(cell: Cell, hidden: usize) -> Self {
        Self { cell, hidden, layer: 0, inputs: 0, time: 0, layout: ParamLayout::NOTHING }
    }

    /// The number that its names end with.
    #[must_use]
    pub fn layer(mut self, layer: usize) -> Self {
        self.layer = layer;
        self
    }

    /// Columns of the sums that inputs are part of: all of an LSTM's, all but the last of a GRU's.
    fn summed(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// Columns of the sums that outputs before are part of: all of an LSTM's; of a GRU's those of its gates, then the last.
    fn runs(&self) -> impl Iterator<Item = Run> {
        let hidden = self.hidden;
        let (gates, apart) = match self.cell {
            Cell::Lstm => (4, 0),
            Cell::Gru => (2, 1),
        };
        let of_gates = Run { row: 0, column: 0, len: gates * hidden };
        let of_candidate = Run { row: gates * hidden, column: 3 * hidden, len: apart * hidden };
        [of_gates, of_candidate].into_iter().filter(|run| run.len > 0)
    }

    /// Where weights of inputs, weights of outputs before and their biases lie.
    fn places(&self) -> [Range<usize>; 4] {
        let rows = self.summed();
        let mut at = 0;
        [rows * self.inputs, rows * self.hidden, rows, rows].map(|len| {
            at += len;
            at - len..at
        })
    }

    fn step<D: Device>(&self, pass: &Pass<'_, D>, at: usize) -> CellStep {
        CellStep { cell: self.cell, rows: pass.rows, time: self.time, at, hidden: self.hidden }
    }

    /// Elements of gates and states of so many samples.
    fn lengths(&self, rows: usize) -> [usize; 2] {
        let out = rows * self.time * self.hidden;
        [GATES * out, if self.cell == Cell::Lstm { out } else { 0 }]
    }

    /// A product of one place of all samples with weights of `n` columns and `k` rows, added to another: places of a sample have these
    /// widths.
    fn of_place(&self, rows: usize, [from, to]: [usize; 2], (n, k, b): (usize, usize, Strides)) -> Product {
        let a = Strides { row: self.time * from, col: 1 };
        Product { m: rows, n, k, a, b, c_row: self.time * to, write: Write::Add }
    }

    /// The gradient of the weights in `rows` of them: a product of the gradients of gates in a column on with what they are weights of.
    fn of_weights(&self, rows: usize, terms: usize, width: usize) -> Product {
        Product {
            m: rows,
            n: width,
            k: terms,
            a: Strides::transposed(GATES * self.hidden),
            b: Strides::rows(width),
            c_row: width,
            write: Write::Set,
        }
    }
}

impl<D: Device> Stage<D> for Recurrent {
    fn kind(&self) -> &'static str {
        self.cell.name()
    }

    fn describe(&self) -> Description {
        let Self { cell, inputs, hidden, layer, .. } = *self;
        Description::Recurrent { cell, inputs, hidden, layer }
    }

    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn needs(&self) -> Needs {
        Needs { output: true, gradient: GradientUse::Spoils, view: false }
    }

    fn plan(&mut self, device: &D, input: &Shape, space: &mut ArenaPlan) -> Result<Shape, String> {
        let dims = input.dims()?;
        let [time, inputs] = *dims else {
            return Err(format!("it takes [time, inputs], its input is {dims:?}"));
        };
        if self.hidden == 0 {
            return Err("it needs at least 1 output".into());
        }
        (self.time, self.inputs) = (time, inputs);
        let (rows, hidden, layer) = (self.summed(), self.hidden, self.layer);
        let init = Init::Uniform(1.0 / (hidden as f32).sqrt());
        self.layout = ParamLayout::NOTHING
            .with(&format!("weight_ih_l{layer}"), &[rows, inputs], init)
            .with(&format!("weight_hh_l{layer}"), &[rows, hidden], init)
            .with(&format!("bias_ih_l{layer}"), &[rows], init)
            .with(&format!("bias_hh_l{layer}"), &[rows], init);
        let [gates, states] = self.lengths(input.rows());
        space.saved += gates + states;
        let out = input.rows() * time * hidden;
        space.scratch += device.activation_len(gates)
            + device.activation_len(out)
            + input.rows() * hidden
            + GATES * hidden;
        Ok(Shape::values(input.rows(), &[time, hidden]))
    }

    fn forward(&self, pass: &Pass<'_, D>, io: Forward<'_, D>) {
        let Forward { params, x, mut y, saved, .. } = io;
        let Self { hidden, time, inputs, .. } = *self;
        let (device, rows) = (pass.device, pass.rows);
        let [gates_len, states_len] = self.lengths(rows);
        let (mut gates, rest) = D::split_mut(saved, gates_len);
        let (mut states, _) = D::split_mut(rest, states_len);
        let [of_inputs, of_outputs, bias_in, bias_out] = self.places();
        let weights = D::part(params, of_outputs);
        let wide = GATES * hidden;
        let all = Product {
            m: rows * time,
            n: self.summed(),
            k: inputs,
            a: Strides::rows(inputs),
            b: Strides::transposed(inputs),
            c_row: wide,
            write: Write::Set,
        };
        if self.summed() < wide {
            // What no input is part of begins at 0.
            device.fill(D::part_mut(&mut gates, 0..gates_len), 0.0);
        }
        device.product(&all, x.values(), D::part(params, of_inputs), D::part_mut(&mut gates, 0..gates_len));
        let y_len = rows * time * hidden;
        for at in 0..time {
            for Run { row, column, len } in self.runs().filter(|_| at > 0) {
                let shape = self.of_place(rows, [hidden, wide], (len, hidden, Strides::transposed(hidden)));
                let before = D::part(D::read(&y), (at - 1) * hidden..y_len);
                let weights = D::part(weights, row * hidden..(row + len) * hidden);
                let sums = D::part_mut(&mut gates, at * wide + column..gates_len);
                device.product(&shape, before, weights, sums);
            }
            device.recurrent_cells(
                &self.step(pass, at),
                [D::part(params, bias_in.clone()), D::part(params, bias_out.clone())],
                D::part_mut(&mut gates, 0..gates_len),
                D::part_mut(&mut states, 0..states_len),
                D::part_mut(&mut y, 0..y_len),
            );
        }
    }

    fn backward(&self, pass: &Pass<'_, D>, io: Backward<'_, D>) {
        let Backward { params, x, y, saved, mut dy, dx, grads, scratch, .. } = io;
        let Self { hidden, time, inputs, .. } = *self;
        let (device, rows) = (pass.device, pass.rows);
        let [gates_len, states_len] = self.lengths(rows);
        let (wide, out) = (GATES * hidden, rows * time * hidden);
        let saved = D::read(&saved);
        let gates = D::part(saved, 0..gates_len);
        let states = D::part(saved, gates_len..gates_len + states_len);
        let (mut dgates, rest) = D::split_mut(scratch, device.activation_len(gates_len));
        let mut dgates = device.activations_mut(&mut dgates, gates_len);
        let (mut before, rest) = D::split_mut(rest, device.activation_len(out));
        let mut before = device.activations_mut(&mut before, out);
        let (mut dstates, mut sums) = D::split_mut(rest, rows * hidden);
        let [of_inputs, of_outputs, bias_in, _] = self.places();
        let weights = D::part(params, of_outputs);
        device.fill(D::part_mut(&mut dstates, 0..rows * hidden), 0.0);
        for at in (0..time).rev() {
            let kept = CellsKept {
                gates: reborrow::<D>(gates),
                states: reborrow::<D>(states),
                y: D::part(y, 0..out),
            };
            let gradients = CellGradients {
                dy: D::part_mut(&mut dy, 0..out),
                dstates: D::part_mut(&mut dstates, 0..rows * hidden),
                dgates: D::part_mut(&mut dgates, 0..gates_len),
            };
            device.recurrent_gradient(&self.step(pass, at), kept, gradients);
            for Run { row, column, len } in self.runs().filter(|_| at > 0) {
                let shape = self.of_place(rows, [wide, hidden], (hidden, len, Strides::rows(hidden)));
                let from = D::part(D::read(&dgates), at * wide + column..gates_len);
                let weights = D::part(weights, row * hidden..(row + len) * hidden);
                device.product(&shape, from, weights, D::part_mut(&mut dy, (at - 1) * hidden..out));
            }
        }
        // The outputs one place later, in front of which there is nothing.
        device.fill(D::part_mut(&mut before, 0..out), 0.0);
        let shape = Rows { rows, width: (time - 1) * hidden };
        let later = D::part_mut(&mut before, hidden..out);
        device.copy_rows(shape, [time * hidden; 2], D::part(y, 0..out), later);
        let (terms, dgates) = (rows * time, D::read(&dgates));
        let (mut d_inputs, rest) = D::split_mut(grads, of_inputs.len());
        let (mut d_outputs, rest) = D::split_mut(rest, self.summed() * hidden);
        let (mut d_bias_in, mut d_bias_out) = D::split_mut(rest, bias_in.len());
        let shape = self.of_weights(self.summed(), terms, inputs);
        let all = of_inputs.len();
        device.product(&shape, dgates, x.values(), D::part_mut(&mut d_inputs, 0..all));
        device.column_sums(
            Rows { rows: terms, width: wide },
            D::part(dgates, 0..gates_len),
            D::part_mut(&mut sums, 0..wide),
        );
        let all = self.summed();
        device.copy(D::part(D::read(&sums), 0..all), D::part_mut(&mut d_bias_in, 0..all));
        for Run { row, column, len } in self.runs() {
            let shape = self.of_weights(len, terms, hidden);
            let from = D::part(dgates, column..gates_len);
            let to = D::part_mut(&mut d_outputs, row * hidden..(row + len) * hidden);
            device.product(&shape, from, D::read(&before), to);
            let sums = D::part(D::read(&sums), column..column + len);
            device.copy(sums, D::part_mut(&mut d_bias_out, row..row + len));
        }
        let Some(dx) = dx else { return };
        let shape = Product {
            m: terms,
            n: inputs,
            k: self.summed(),
            a: Strides::rows(wide),
            b: Strides::rows(inputs),
            c_row: inputs,
            write: Write::Set,
        };
        device.product(&shape, dgates, D::part(params, of_inputs), dx);
    }
}
