//! Passes through stages of this crate, on a device: batches go there, and each operation of a stage is one of the device's.
//!
//! It does not know the state that it is lent, nor what becomes of a gradient.

use super::making::{Made, MakesPasses, Reads, Writes};
use crate::OwnMemory;
use crate::batch::{BatchView, EvaluationCounts, Inputs, Targets};
use crate::device::{LossSums, Outputs, Rows, reborrow};
use crate::device_feeds::Feeds;
use crate::error::EngineError;
use crate::loss::{Loss, expect_length};
use crate::model::Model;
use crate::passes::{self, Room, Training};
use crate::stage::{Mode, Shape};
use dtrain_types::{MicroBatch, Seed, Step};

/// A model made of stages, and the memory of its passes.
pub(super) struct ByStages<D: OwnMemory> {
    // Memory first: it is freed before its device is gone.
    feeds: Feeds<D>,
    saved: D::Floats,
    scratch: D::Floats,
    outputs: D::Floats,
    /// Their gradient where it cannot take their place.
    beside: Option<D::Floats>,
    model: Model<D>,
    seed: Seed,
    best: Vec<u32>,
}

impl<D: OwnMemory> ByStages<D> {
    /// Takes memory for the passes of `model`. *Errors*: not enough memory.
    pub fn new(device: &D, model: Model<D>, seed: Seed) -> Result<Self, EngineError> {
        let plan = model.plan();
        let rows = model.loss_rows(model.input().rows());
        let outputs = Self::outputs_len(device, &model);
        Ok(Self {
            feeds: Feeds::new(device, &model)?,
            saved: device.floats(plan.saved)?,
            scratch: device.floats(plan.scratch)?,
            outputs: device.floats(outputs)?,
            beside: model.reads_outputs().then(|| device.floats(outputs)).transpose()?,
            best: vec![0; rows.rows],
            model,
            seed,
        })
    }

    /// Elements of the memory for outputs.
    pub fn outputs_len(device: &D, model: &Model<D>) -> usize {
        device.activation_len(model.outputs_len(model.input().rows()))
    }

    /// Forward in evaluation mode; the outputs lie in the memory of passes.
    fn infer(&mut self, reads: Reads<'_, D>, rows: usize, inputs: Inputs<'_>) -> Result<Rows, EngineError> {
        self.model.check_inputs(rows, inputs)?;
        let Reads { device, applied, params, frozen, stats } = reads;
        let x = self.feeds.inputs(device, inputs)?;
        let pass = passes::pass(device, Mode::Evaluate, self.seed, (applied, MicroBatch(0)), rows);
        let mut room = Room {
            params,
            frozen: reborrow::<D>(frozen),
            stats: reborrow::<D>(stats),
            saved: D::take(&mut self.saved),
            scratch: D::take(&mut self.scratch),
            outputs: D::take(&mut self.outputs),
        };
        Ok(passes::forward(&self.model, &pass, &mut room, x, None))
    }
}

impl<D: OwnMemory> MakesPasses<D> for ByStages<D> {
    fn prefetch(
        &mut self,
        device: &D,
        place: (Step, MicroBatch),
        batch: &BatchView<'_>,
    ) -> Result<(), EngineError> {
        self.model.check_batch(batch)?;
        self.feeds.take_ahead(device, place, batch)
    }

    fn train(
        &mut self,
        reads: Reads<'_, D>,
        place: (Step, MicroBatch),
        batch: &BatchView<'_>,
        writes: Writes<'_, D>,
    ) -> Result<D::Sums, EngineError> {
        self.model.check_batch(batch)?;
        let Reads { device, params, frozen, stats, .. } = reads;
        let (x, targets) = self.feeds.batch(device, place, batch)?;
        let pass = passes::pass(device, Mode::Train, self.seed, place, batch.rows);
        let room = Room {
            params,
            frozen: reborrow::<D>(frozen),
            stats: reborrow::<D>(stats),
            saved: D::take(&mut self.saved),
            scratch: D::take(&mut self.scratch),
            outputs: D::take(&mut self.outputs),
        };
        let beside = self.beside.as_mut().map(D::take);
        let to = Training { beside, all: writes.all, scale: writes.scale.unwrap_or(1.0.into()) };
        Ok(passes::train(&self.model, &pass, room, x, targets, to, &mut []))
    }

    fn evaluate(
        &mut self,
        reads: Reads<'_, D>,
        batch: &BatchView<'_>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        let device = reads.device;
        self.model.check_inputs(batch.rows, batch.inputs)?;
        self.model.loss.check_targets(self.model.loss_rows(batch.rows), &batch.targets)?;
        let shape = self.infer(reads, batch.rows, batch.inputs)?;
        let Self { model, feeds, outputs: memory, best, .. } = self;
        let targets = feeds.targets(device, &batch.targets)?;
        let outputs = device.activations(D::look(memory), model.outputs_len(batch.rows));
        let sums = device.sums(model.loss.of(device, shape, Outputs::Kept(outputs), targets, 1.0.into()));
        let home = || {
            let mut home = vec![0.0; model.outputs_len(batch.rows)];
            device.fetch_activations(memory, &mut home)?;
            model.close_ranks(&mut home);
            home.truncate(shape.rows * shape.width);
            Ok::<_, EngineError>(home)
        };
        match batch.targets {
            Targets::Classes(classes) => {
                let best = &mut best[..shape.rows];
                device.arg_max(shape, outputs, best);
                counts.note_all(classes, best, shape.width);
                if let Some(ranking) = &mut counts.ranking {
                    ranking.note(classes, &home()?);
                }
            }
            Targets::Values(targets) => counts.note_errors(targets, &home()?),
            Targets::Mixed(_) => unreachable!("the targets were checked"),
        }
        Ok(sums)
    }

    fn predict(
        &mut self,
        reads: Reads<'_, D>,
        rows: usize,
        inputs: Inputs<'_>,
        outputs: &mut [f32],
    ) -> Result<(), EngineError> {
        let device = reads.device;
        let shape = self.model.loss_rows(rows);
        expect_length("outputs", shape.rows * shape.width, outputs.len())?;
        self.infer(reads, rows, inputs)?;
        let apart = self.model.outputs_len(rows);
        if apart == outputs.len() {
            return device.fetch_activations(&self.outputs, outputs);
        }
        let mut home = vec![0.0; apart];
        device.fetch_activations(&self.outputs, &mut home)?;
        self.model.close_ranks(&mut home);
        outputs.copy_from_slice(&home[..outputs.len()]);
        Ok(())
    }

    fn update(&mut self, update: Made<'_, D>) -> Result<(), EngineError> {
        panic!("update {:?} is not for stages to make", update.step)
    }

    fn rehearse(&mut self, reads: Reads<'_, D>, writes: Writes<'_, D>) -> Result<D::Sums, EngineError> {
        let device = reads.device;
        let input = self.model.input();
        let (rows, len) = (input.rows(), input.rows() * input.per_row());
        let shape = self.model.loss_rows(rows);
        let words = shape.rows * self.model.class_words();
        let longest = len.max(words).max(shape.rows * shape.width);
        let (values, ids) = (vec![0.0; longest], vec![0; longest]);
        let inputs = match input {
            Shape::Values { .. } => Inputs::Values(&values[..len]),
            Shape::Tokens { .. } => Inputs::Tokens(&ids[..len]),
        };
        let targets = match self.model.loss {
            Loss::MeanSquaredError => Targets::Values(&values[..shape.rows * shape.width]),
            Loss::CrossEntropy { .. } => self.model.class_targets(&ids[..words]),
        };
        let batch = BatchView { rows, inputs, targets };
        let sums = self.train(reads, (Step(0), MicroBatch(0)), &batch, writes)?;
        // No run has this one: what the way ahead needs is there, and what came by it is used by nobody.
        self.prefetch(device, (Step(0), MicroBatch(1)), &batch)?;
        Ok(sums)
    }
}
