//! The batches of passes in the memory of a device: that of this pass, and that of the next one, which may come while the device
//! works on this one.
//!
//! A batch that came ahead is known by its step and micro-batch, which say what is in it. This file does not know what a pass does
//! with a batch.

use crate::batch::{BatchView, Inputs, Targets};
use crate::error::EngineError;
use crate::loss::Loss;
use crate::model::Model;
use crate::own_memory::OwnMemory;
use crate::stage::{Input, Shape};
use dtrain_types::{MicroBatch, Step};

/// One side of a batch on the host.
enum List<'a> {
    Values(&'a [f32]),
    Ids(&'a [u32]),
}

impl<'a> From<Inputs<'a>> for List<'a> {
    fn from(inputs: Inputs<'a>) -> Self {
        match inputs {
            Inputs::Values(values) => Self::Values(values),
            Inputs::Tokens(tokens) => Self::Ids(tokens),
        }
    }
}

impl<'a> From<&Targets<'a>> for List<'a> {
    fn from(targets: &Targets<'a>) -> Self {
        match *targets {
            Targets::Values(values) => Self::Values(values),
            Targets::Classes(words) | Targets::Mixed(words) => Self::Ids(words),
        }
    }
}

/// Memory for one side of a batch, as long as the longest.
enum Feed<D: OwnMemory> {
    /// Values that go into the model.
    Activations(D::Floats),
    /// Values that its outputs are compared with.
    Values(D::Floats),
    Ids(D::Words),
}

/// Which way a list takes to the device.
#[derive(Clone, Copy)]
enum Way {
    /// Behind the work given so far.
    Behind,
    /// Beside it.
    Ahead,
}

impl<D: OwnMemory> Feed<D> {
    /// *Panics* if it is for lists of the other kind: batches are checked before.
    fn send(&mut self, device: &D, list: &List<'_>, way: Way) -> Result<(), EngineError> {
        match (self, list, way) {
            (Self::Activations(to), List::Values(from), Way::Behind) => device.send_activations(from, to),
            (Self::Activations(to), List::Values(from), Way::Ahead) => {
                device.send_activations_ahead(from, to)
            }
            (Self::Values(to), List::Values(from), Way::Behind) => device.send(from, to),
            (Self::Values(to), List::Values(from), Way::Ahead) => device.send_ahead(from, to),
            (Self::Ids(to), List::Ids(from), Way::Behind) => device.send_ids(from, to),
            (Self::Ids(to), List::Ids(from), Way::Ahead) => device.send_ids_ahead(from, to),
            (Self::Activations(_) | Self::Values(_), List::Ids(ids), _) => {
                panic!("{} ids where values go", ids.len())
            }
            (Self::Ids(_), List::Values(values), _) => panic!("{} values where ids go", values.len()),
        }
    }

    /// What was sent: as much as the list has.
    fn input(&self, device: &D, list: &List<'_>) -> Input<'_, D> {
        match (self, list) {
            (Self::Activations(memory), List::Values(list)) => {
                Input::Values(device.activations(D::look(memory), list.len()))
            }
            (Self::Values(memory), List::Values(list)) => {
                Input::Values(D::part(D::look(memory), 0..list.len()))
            }
            (Self::Ids(memory), List::Ids(list)) => Input::Ids(D::ids_part(D::ids(memory), 0..list.len())),
            _ => unreachable!("it was sent"),
        }
    }
}

/// Memory for a batch.
struct Sides<D: OwnMemory> {
    inputs: Feed<D>,
    targets: Feed<D>,
}

impl<D: OwnMemory> Sides<D> {
    fn new(device: &D, model: &Model<D>) -> Result<Self, EngineError> {
        let (input, rows) = (model.input(), model.loss_rows(model.input().rows()));
        let len = input.rows() * input.per_row();
        Ok(Self {
            inputs: match input {
                Shape::Values { .. } => Feed::Activations(device.floats(device.activation_len(len))?),
                Shape::Tokens { .. } => Feed::Ids(device.words(len)?),
            },
            targets: match model.loss {
                Loss::MeanSquaredError => Feed::Values(device.floats(rows.rows * rows.width)?),
                Loss::CrossEntropy { .. } => Feed::Ids(device.words(rows.rows * model.class_words())?),
            },
        })
    }

    fn send(&mut self, device: &D, batch: &BatchView<'_>, way: Way) -> Result<(), EngineError> {
        self.inputs.send(device, &batch.inputs.into(), way)?;
        self.targets.send(device, &List::from(&batch.targets), way)
    }
}

/// Memory for two batches.
pub(crate) struct Feeds<D: OwnMemory> {
    now: Sides<D>,
    next: Sides<D>,
    /// What lies, or is on its way, in `next`.
    ahead: Option<(Step, MicroBatch)>,
}

impl<D: OwnMemory> Feeds<D> {
    /// *Errors*: there is not so much memory.
    pub(crate) fn new(device: &D, model: &Model<D>) -> Result<Self, EngineError> {
        Ok(Self { now: Sides::new(device, model)?, next: Sides::new(device, model)?, ahead: None })
    }

    /// Inputs and targets for the pass of a micro-batch: those that came ahead, or sent now.
    pub(crate) fn batch<'a>(
        &'a mut self,
        device: &D,
        micro_batch: (Step, MicroBatch),
        batch: &BatchView<'_>,
    ) -> Result<(Input<'a, D>, Input<'a, D>), EngineError> {
        // In any case: what comes ahead during this pass must not overtake the passes before it.
        device.join_ahead()?;
        if self.ahead.take() == Some(micro_batch) {
            std::mem::swap(&mut self.now, &mut self.next);
        } else {
            self.now.send(device, batch, Way::Behind)?;
        }
        let Sides { inputs, targets } = &self.now;
        let of = (List::from(batch.inputs), List::from(&batch.targets));
        Ok((inputs.input(device, &of.0), targets.input(device, &of.1)))
    }

    /// Sends the batch of the next micro-batch while the device works on this one.
    pub(crate) fn take_ahead(
        &mut self,
        device: &D,
        micro_batch: (Step, MicroBatch),
        batch: &BatchView<'_>,
    ) -> Result<(), EngineError> {
        self.ahead = None;
        self.next.send(device, batch, Way::Ahead)?;
        self.ahead = Some(micro_batch);
        Ok(())
    }

    /// Inputs alone, sent now.
    pub(crate) fn inputs(&mut self, device: &D, inputs: Inputs<'_>) -> Result<Input<'_, D>, EngineError> {
        let list = inputs.into();
        self.now.inputs.send(device, &list, Way::Behind)?;
        Ok(self.now.inputs.input(device, &list))
    }

    /// Targets alone, sent now.
    pub(crate) fn targets(&mut self, device: &D, targets: &Targets<'_>) -> Result<Input<'_, D>, EngineError> {
        let list = List::from(targets);
        self.now.targets.send(device, &list, Way::Behind)?;
        Ok(self.now.targets.input(device, &list))
    }
}
