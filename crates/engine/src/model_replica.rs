//! A replica of a model made of stages, in the host's memory.
//!
//! All its memory is taken when it is made: the state, the arena of activations, and two buffers at the loss. A
//! step allocates nothing.

use crate::batch::{Batch, ClassCounts, Figures, Inputs, Targets};
use crate::device::{HostDevice, LossSums, Rows};
use crate::error::EngineError;
use crate::flat::Flat;
use crate::layout::{Layout, Section};
use crate::loss::expect_length;
use crate::model::Model;
use crate::optimizer::{Buffers, Optimizer};
use crate::replica::{MemoryTable, Replica, UpdateInfo};
use crate::stage::{Backward, Forward, Input, Mode, Pass, Shape, Stage};
use crate::stages::BatchNorm;
use crate::state::{State, StateShape};
use dtrain_types::{Bytes, MicroBatch, Seed, Step};
use std::ops::Range;

/// A model with its state on one device. See the file's comment.
pub struct ModelReplica<D: HostDevice> {
    device: D,
    model: Model<D>,
    optimizer: Optimizer,
    seed: Seed,
    state: State,
    runs: Vec<(Range<usize>, bool)>,
    saved: Flat,
    scratch: Flat,
    outputs: Flat,
    gradient: Flat,
    best: Vec<u32>,
}

impl<D: HostDevice> ModelReplica<D> {
    /// Takes memory for `model` and starts it from `seed`.
    ///
    /// *Errors*: options of the optimizer that make no sense.
    pub fn new(device: D, model: Model<D>, optimizer: Optimizer, seed: Seed) -> Result<Self, EngineError> {
        optimizer.check()?;
        let layout = model.layout();
        let shape = StateShape {
            parameters: layout.parameters,
            stats: layout.stats,
            moments: optimizer.rule.moments(),
        };
        let mut state = State::zeros(shape);
        layout.initialise(seed, &mut state);
        let rows = model.loss_rows(model.input().rows());
        let (plan, outputs) = (model.plan(), rows.rows * rows.width);
        Ok(Self {
            runs: optimizer.runs(layout),
            saved: Flat::zeros(plan.saved),
            scratch: Flat::zeros(plan.scratch),
            outputs: Flat::zeros(outputs),
            gradient: Flat::zeros(outputs),
            best: vec![0; rows.rows],
            device,
            model,
            optimizer,
            seed,
            state,
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model<D> {
        &self.model
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Checks the number of rows and the inputs, and gives them as a stage's input.
    fn input<'a>(&self, rows: usize, inputs: Inputs<'a>) -> Result<Input<'a, D>, EngineError> {
        let planned = self.model.input().rows();
        if rows == 0 || rows > planned {
            return Err(EngineError::Rows { rows, planned });
        }
        let length = rows * self.model.input().per_row();
        match (self.model.input(), inputs) {
            (Shape::Values { .. }, Inputs::Values(values)) => {
                expect_length("inputs", length, values.len())?;
                Ok(Input::Values(values))
            }
            (Shape::Tokens { .. }, Inputs::Tokens(tokens)) => {
                expect_length("inputs", length, tokens.len())?;
                let vocabulary = self.model.vocabulary().unwrap_or(usize::MAX);
                match tokens.iter().position(|token| *token as usize >= vocabulary) {
                    Some(place) => Err(EngineError::Token { token: tokens[place], place, vocabulary }),
                    None => Ok(Input::Ids(tokens)),
                }
            }
            (Shape::Values { .. }, Inputs::Tokens(_)) => {
                Err(EngineError::Kind { expected: "values as inputs", got: "token ids" })
            }
            (Shape::Tokens { .. }, Inputs::Values(_)) => {
                Err(EngineError::Kind { expected: "token ids as inputs", got: "values" })
            }
        }
    }

    /// Forward in evaluation mode; the outputs lie in `self.outputs`.
    fn infer(&mut self, rows: usize, inputs: Inputs<'_>) -> Result<Rows, EngineError> {
        let x = self.input(rows, inputs)?;
        let shape = self.model.loss_rows(rows);
        let Self { device, model, seed, state, saved, scratch, outputs, .. } = self;
        let (step, micro_batch) = (state.applied, MicroBatch(0));
        let pass = Pass { device: &*device, mode: Mode::Evaluate, seed: *seed, step, micro_batch, rows };
        let (params, stats) = (state.section(Section::Parameters), state.section(Section::Stats));
        let y = &mut outputs[..shape.rows * shape.width];
        model
            .chain
            .forward(&pass, Forward { params, stats, stat_sums: None, x: x.shorter(), y, saved, scratch });
        Ok(shape)
    }
}

impl<D: HostDevice> Replica for ModelReplica<D> {
    fn layout(&self) -> &Layout {
        self.model.layout()
    }

    fn min_rows(&self) -> usize {
        self.model.plan().min_rows.max(1)
    }

    fn outputs(&self) -> usize {
        self.model.loss_rows(1).width
    }

    fn micro_batch(
        &mut self,
        step: Step,
        micro_batch: MicroBatch,
        batch: &Batch<'_>,
        gradient: &mut [f32],
    ) -> Result<Figures, EngineError> {
        let rows = batch.rows;
        let x = self.input(rows, batch.inputs)?;
        if rows < self.min_rows() {
            return Err(EngineError::SingleValue { needed: self.min_rows(), rows });
        }
        let shape = self.model.loss_rows(rows);
        self.model.loss.check_targets(shape, &batch.targets)?;
        expect_length("gradient", self.gradient_len(), gradient.len())?;
        let (grads, sums) = gradient.split_at_mut(self.model.layout().parameters);
        let length = shape.rows * shape.width;
        let Self { device, model, seed, state, saved, scratch, outputs, gradient: d, .. } = self;
        let pass = Pass { device: &*device, mode: Mode::Train, seed: *seed, step, micro_batch, rows };
        let (params, stats) = (state.section(Section::Parameters), state.section(Section::Stats));
        let (y, d) = (&mut outputs[..length], &mut d[..length]);
        let stat_sums = Some(sums);
        model.chain.forward(&pass, Forward { params, stats, stat_sums, x: x.shorter(), y, saved, scratch });
        let y = &outputs[..length];
        let sums = model.loss.of(device, shape, y, &batch.targets, Some(&mut *d));
        let x = x.shorter();
        model.chain.backward(&pass, Backward { params, x, y, saved, dy: d, dx: None, grads, scratch });
        Ok(Figures { sums, samples: rows as u64 })
    }

    fn add(&self, from: &[f32], into: &mut [f32]) {
        self.device.add_to(from, into);
    }

    fn update(
        &mut self,
        step: Step,
        gradient: &[f32],
        weight: f64,
        samples: u64,
    ) -> Result<UpdateInfo, EngineError> {
        assert_eq!(step, self.state.applied.next(), "updates come in order, each once");
        assert_eq!(gradient.len(), self.gradient_len(), "a reduced gradient has the layout's length");
        let (grads, sums) = gradient.split_at(self.model.layout().parameters);
        let mean = if weight == 0.0 { 0.0 } else { (1.0 / weight) as f32 };
        // Settled before anything is touched: one read of the gradient that also gives its norm.
        let norm = self.device.sum_of_squares(grads, mean).sqrt();
        if !norm.is_finite() || !self.device.all_finite(sums) {
            return Err(EngineError::NonFinite { step });
        }
        let scale = self.optimizer.scale(weight, norm);
        let [parameters, stats, first, second] = self.state.sections_mut();
        let to = Buffers::<D> { parameters, first, second };
        self.optimizer.apply(&self.device, step, scale, &self.runs, grads, to);
        if samples > 0 && !stats.is_empty() {
            self.device.blend(BatchNorm::MOMENTUM, (1.0 / samples as f64) as f32, sums, stats);
        }
        self.state.applied = step;
        Ok(UpdateInfo { lr: self.optimizer.schedule.lr(step), gradient_norm: norm })
    }

    fn evaluate(&mut self, batch: &Batch<'_>, counts: &mut ClassCounts) -> Result<LossSums, EngineError> {
        self.input(batch.rows, batch.inputs)?;
        self.model.loss.check_targets(self.model.loss_rows(batch.rows), &batch.targets)?;
        let shape = self.infer(batch.rows, batch.inputs)?;
        let outputs = &self.outputs[..shape.rows * shape.width];
        let sums = self.model.loss.of(&self.device, shape, outputs, &batch.targets, None);
        if let Targets::Classes(classes) = batch.targets {
            let best = &mut self.best[..shape.rows];
            self.device.arg_max(shape, outputs, best);
            let known = classes.iter().zip(best).filter(|(target, _)| (**target as usize) < shape.width);
            known.for_each(|(target, best)| counts.note(*target, *best));
        }
        Ok(sums)
    }

    fn predict(&mut self, rows: usize, inputs: Inputs<'_>, outputs: &mut [f32]) -> Result<(), EngineError> {
        let shape = self.model.loss_rows(rows);
        expect_length("outputs", shape.rows * shape.width, outputs.len())?;
        self.infer(rows, inputs)?;
        outputs.copy_from_slice(&self.outputs[..outputs.len()]);
        Ok(())
    }

    fn is_finite(&self, gradient: &[f32]) -> bool {
        self.device.all_finite(gradient)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn swap_state(&mut self, other: &mut State) {
        for section in Section::ALL {
            let (ours, theirs) = (self.state.section(section).len(), other.section(section).len());
            assert_eq!(ours, theirs, "section {} of another model", section.name());
        }
        std::mem::swap(&mut self.state, other);
    }

    fn memory(&self) -> MemoryTable {
        let bytes = |elements: usize| Bytes(elements as u64 * 4);
        let section = |section| bytes(self.state.section(section).len());
        let Bytes(first) = section(Section::First);
        let Bytes(second) = section(Section::Second);
        MemoryTable {
            rows: vec![
                ("parameters", section(Section::Parameters)),
                ("running statistics", section(Section::Stats)),
                ("optimizer state", Bytes(first + second)),
                ("one gradient buffer", bytes(self.gradient_len())),
                ("activations", bytes(self.saved.len() + self.outputs.len())),
                ("scratch", bytes(self.scratch.len() + self.gradient.len())),
            ],
        }
    }
}
