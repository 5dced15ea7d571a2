//! The seam inside of a replica on a device: what makes its passes, which are stages of this crate or another program.
//!
//! It owns no state and no gradient: it is lent both. It does not know what becomes of a gradient.

use crate::OwnMemory;
use crate::batch::{BatchView, EvaluationCounts, Inputs};
use crate::device::LossSums;
use crate::error::EngineError;
use crate::stages::{Gradients, Parameters};
use dtrain_types::{MicroBatch, Step};

/// What a pass reads.
pub(super) struct Reads<'a, D: OwnMemory> {
    /// The device on which it works.
    pub device: &'a D,
    /// Updates done.
    pub applied: Step,
    /// The parameters, wherever they are.
    pub params: &'a mut dyn Parameters<D>,
    /// Those that lie apart.
    pub frozen: D::Ref<'a>,
    /// All running statistics, with the scale of the loss behind them.
    pub stats: D::Ref<'a>,
}

/// Where a training pass writes.
pub(super) struct Writes<'a, D: OwnMemory> {
    /// Gradients of the parameters, then the sums of the statistics, and zeros where the state has the scale of the loss.
    pub all: &'a mut dyn Gradients<D>,
    /// What the gradient of the loss is multiplied by; none: by nothing.
    pub scale: Option<D::Scalar>,
}

/// An update that is made as a whole, by a program.
pub(super) struct Made<'a, D: OwnMemory> {
    /// The device.
    pub device: &'a D,
    /// Its number, from 1.
    pub step: Step,
    /// What the schedule of the learning rate says.
    pub lr: f64,
    /// What the gradient is multiplied by to become that of the mean, clipped.
    pub scale: f32,
    /// The reduced gradient of all parameters, every element finite.
    pub gradient: D::Ref<'a>,
    /// All parameters.
    pub parameters: D::Mut<'a>,
    /// All that the program's optimizer keeps.
    pub kept: D::Mut<'a>,
}

/// What makes the passes of a replica on a device.
pub(super) trait MakesPasses<D: OwnMemory>: Send {
    /// [`Replica::prefetch`](crate::Replica::prefetch).
    fn prefetch(
        &mut self,
        device: &D,
        place: (Step, MicroBatch),
        batch: &BatchView<'_>,
    ) -> Result<(), EngineError>;

    /// Puts the pass of a micro-batch on the device, which may work for itself from here on.
    fn train(
        &mut self,
        reads: Reads<'_, D>,
        place: (Step, MicroBatch),
        batch: &BatchView<'_>,
        writes: Writes<'_, D>,
    ) -> Result<D::Sums, EngineError>;

    /// [`Replica::evaluate`](crate::Replica::evaluate).
    fn evaluate(
        &mut self,
        reads: Reads<'_, D>,
        batch: &BatchView<'_>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError>;

    /// [`Replica::predict`](crate::Replica::predict).
    fn predict(
        &mut self,
        reads: Reads<'_, D>,
        rows: usize,
        inputs: Inputs<'_>,
        outputs: &mut [f32],
    ) -> Result<(), EngineError>;

    /// Makes an update, where the rule is [`Rule::External`](crate::Rule::External). *Errors*: of the program; the state then holds anything.
    fn update(&mut self, update: Made<'_, D>) -> Result<(), EngineError>;

    /// Makes the greatest training pass there can be, over zeros, to memory that nobody reads.
    fn rehearse(&mut self, reads: Reads<'_, D>, writes: Writes<'_, D>) -> Result<D::Sums, EngineError>;
}
