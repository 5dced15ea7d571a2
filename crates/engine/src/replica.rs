//! The seam to a rank: one copy of a model with its state, that can compute micro-batches and apply updates.
//!
//! A replica does not know how many others there are, which micro-batches are its own, or how gradients are
//! reduced. Whoever drives it hands it buffers, micro-batches by number and the reduced gradient.

use crate::about::About;
use crate::batch::{Batch, ClassCounts, Figures, Inputs};
use crate::device::LossSums;
use crate::error::EngineError;
use crate::loss_scale::LossScale;
use crate::sharing::Sharing;
use crate::state::State;
use dtrain_types::{DeviceMemory, MicroBatch, SharedState, Step, Wire};
use std::ops::Range;

/// What an update says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateInfo {
    /// The learning rate used.
    pub lr: f64,
    /// Norm of the mean gradient, before clipping; infinite where the step was skipped.
    pub gradient_norm: f64,
    /// What the loss is scaled by from now on, if it is scaled.
    pub loss_scale: Option<LossScale>,
}

impl UpdateInfo {
    /// Whether the gradient of a scaled loss was not finite, so that nothing was changed but the scale.
    #[must_use]
    pub fn skipped(&self) -> bool {
        !self.gradient_norm.is_finite()
    }
}

/// Sees the passes of a replica, where there is something to see (see [`Replica::watch`]).
pub trait Watch: Send {
    /// The loss of a micro-batch and the gradient of its outputs are there; what follows is the backward pass.
    fn backward_begins(&mut self);
}

/// Where a replica lays a gradient: elements that may be lent part by part, and given away as soon as they are final.
pub trait Gradient {
    /// Elements.
    fn elements(&self) -> usize;

    /// A part of it, to write: none of what was settled. *Panics* if there is no such part.
    fn part(&mut self, part: Range<usize>) -> &mut [f32];

    /// Notes that everything from element `from` on is final. It is told so from the end to the start, as the backward pass
    /// goes, and in any number of pieces.
    fn settle(&mut self, from: usize) {
        let _ = from;
    }

    /// Its number, if it is one that the replica keeps ([`Replica::keep`]): nobody asks for parts of it then.
    fn kept(&self) -> Option<usize> {
        None
    }

    /// Additions of kept gradients, the second to the first, that follow when it is whole: they are made part by part, before what
    /// they make final is settled.
    fn merges(&self) -> &[[usize; 2]] {
        &[]
    }
}

/// A gradient that stays in the replica's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its number.
    pub number: usize,
    /// Elements.
    pub elements: usize,
}

impl Gradient for Kept {
    fn elements(&self) -> usize {
        self.elements
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        panic!("elements {part:?} of gradient {} lie in the replica's own memory", self.number)
    }

    fn kept(&self) -> Option<usize> {
        Some(self.number)
    }
}

/// Memory of the caller's own waits for the whole.
impl<T: AsRef<[f32]> + AsMut<[f32]>> Gradient for T {
    fn elements(&self) -> usize {
        self.as_ref().len()
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        &mut self.as_mut()[part]
    }
}

/// How far a micro-batch is that was begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Begun {
    /// To its end.
    Done(Figures),
    /// The device works on it.
    UnderWay,
}

/// One rank's copy of the model.
///
/// Life of a step: for each of its micro-batches [`Replica::micro_batch`] fills a buffer of
/// [`About::gradient_len`] elements and [`Replica::add`] merges finished ones in tree order; after the reduction
/// [`Replica::update`] applies the sum. None of these allocates after the first step.
///
/// A replica whose [`About::group`] is more than 1 takes several micro-batches at once: [`Replica::lay`] for each, then
/// [`Replica::micro_batches`], which fills one buffer with the sum of all. The bits are those of one after the other.
pub trait Replica: Send {
    /// What is fixed for its life.
    fn about(&self) -> &About;

    /// Computes the loss and overwrites all of `gradient` with the gradient of the *sum* of weighted losses, and
    /// with the row-weighted statistics of this micro-batch.
    ///
    /// *Order*: the bits depend on `(state, seed, step, micro_batch, batch)` alone. *Errors*: a batch that does not
    /// fit the model; `gradient` then holds anything.
    fn micro_batch(
        &mut self,
        step: Step,
        micro_batch: MicroBatch,
        batch: &Batch<'_>,
        gradient: &mut dyn Gradient,
    ) -> Result<Figures, EngineError>;

    /// [`Replica::micro_batch`] by a device that may work for itself meanwhile: then [`Replica::figures`] says what it came to, and is
    /// asked for before anything else but [`Replica::take_ahead`].
    ///
    /// *Errors*: as [`Replica::micro_batch`].
    fn begin(
        &mut self,
        step: Step,
        micro_batch: MicroBatch,
        batch: &Batch<'_>,
        gradient: &mut dyn Gradient,
    ) -> Result<Begun, EngineError> {
        self.micro_batch(step, micro_batch, batch, gradient).map(Begun::Done)
    }

    /// Takes the batch of the micro-batch that will be begun next while the device works on another one, so that it is there when
    /// it is begun. Whatever else is begun or evaluated next is as if this had not been called.
    ///
    /// *Errors*: a batch that does not fit the model, or of the device.
    fn take_ahead(
        &mut self,
        step: Step,
        micro_batch: MicroBatch,
        batch: &Batch<'_>,
    ) -> Result<(), EngineError> {
        let _ = (step, micro_batch, batch);
        Ok(())
    }

    /// What the micro-batch came to that was begun. *Blocks* for the device.
    ///
    /// *Panics* if none is under way.
    fn figures(&mut self) -> Figures {
        panic!("the figures of a micro-batch, and none is under way")
    }

    /// Tells `watch` of every micro-batch from now on. Not called where the device works on its own while the caller goes
    /// on: the moment would say nothing.
    fn watch(&mut self, watch: Box<dyn Watch>) {
        drop(watch);
    }

    /// Copies the batch of the micro-batch at `place` of the next group.
    ///
    /// *Errors*: a batch that does not fit the model. *Panics* if a group has no such place.
    fn lay(&mut self, place: usize, batch: &Batch<'_>) -> Result<(), EngineError> {
        panic!("a batch of {} rows for place {place} of a group of one", batch.rows);
    }

    /// Computes the group of micro-batches from `first` on whose batches were laid, one for each of `figures`:
    /// overwrites `gradient` with the sum, along the reduction tree over the group, of what
    /// [`Replica::micro_batch`] writes for each, every node of the tree rounded as `wire` says.
    ///
    /// *Order*: the bits are those of computing each alone and rounding it. *Errors*: a gradient of another length. *Panics* if one of
    /// them but the last had fewer rows than the model was planned for.
    fn micro_batches(
        &mut self,
        step: Step,
        first: MicroBatch,
        wire: Wire,
        gradient: &mut dyn Gradient,
        figures: &mut [Figures],
    ) -> Result<(), EngineError> {
        let _ = (gradient, wire);
        panic!("step {step}: {} micro-batches from {first} on in a group of one", figures.len());
    }

    /// `into += from`: the addition of the reduction tree, before its sum is rounded.
    fn add(&self, from: &[f32], into: &mut [f32]);

    /// Rounds a node of the reduction tree: what [`Replica::micro_batch`] wrote, or a sum.
    fn round(&self, wire: Wire, gradient: &mut [f32]) {
        wire.round(gradient);
    }

    /// Takes memory for so many gradients that [`Replica::micro_batch`] may leave there ([`Kept`]), and tells whether it has it.
    /// Not where the memory of the replica is the caller's own: there is nothing to save.
    fn keep(&mut self, gradients: usize) -> bool {
        let _ = gradients;
        false
    }

    /// Keeps its gradients in these slots of an arena from now on, each under its place here, and tells whether it can: they are
    /// memory of its device, as long as a gradient. Whoever reduces them does so behind the work of the device, and what is
    /// left in the first is what [`Replica::update_kept`] takes.
    fn keep_in(&mut self, slots: &[DeviceMemory]) -> bool {
        let _ = slots;
        false
    }

    /// `into += from`, of two gradients that are kept: the same addition as [`Replica::add`].
    ///
    /// *Panics* if there are no such gradients, as all that follow.
    fn add_kept(&mut self, from: usize, into: usize) {
        panic!("gradients {from} and {into} of a replica that keeps none");
    }

    /// Copies a gradient that is kept. *Blocks* until it is there. *Errors*: of the device.
    fn bring(&mut self, kept: usize, to: &mut [f32]) -> Result<(), EngineError> {
        panic!("gradient {kept} of {} elements, of a replica that keeps none", to.len());
    }

    /// [`Replica::update`] with gradient 0 of those that are kept.
    fn update_kept(&mut self, step: Step, weight: f64, samples: u64) -> Result<UpdateInfo, EngineError> {
        panic!("step {step} of {samples} samples with weight {weight}, of a replica that keeps no gradient");
    }

    /// Applies the reduced gradient as update number `step`. `weight` is the reduced normaliser, `samples` the rows
    /// of the whole step. Zero weight counts as a zero gradient.
    ///
    /// *Errors*: [`EngineError::NonFinite`], before anything is changed. *Panics* if `step` is not the next one.
    fn update(
        &mut self,
        step: Step,
        gradient: &[f32],
        weight: f64,
        samples: u64,
    ) -> Result<UpdateInfo, EngineError>;

    /// The loss by running statistics and without dropout; counts each prediction, where targets are classes.
    ///
    /// *Errors*: a batch that does not fit the model.
    fn evaluate(&mut self, batch: &Batch<'_>, counts: &mut ClassCounts) -> Result<LossSums, EngineError>;

    /// Writes the model's outputs for `rows` rows of inputs, as in [`Replica::evaluate`].
    ///
    /// *Errors*: inputs that do not fit the model, or `outputs` of another length than rows x outputs.
    fn predict(&mut self, rows: usize, inputs: Inputs<'_>, outputs: &mut [f32]) -> Result<(), EngineError>;

    /// Whether every element of a gradient is finite.
    fn is_finite(&self, gradient: &[f32]) -> bool;

    /// Computes a micro-batch again and tells whether its loss or gradient is not finite: after
    /// [`EngineError::NonFinite`], to name the micro-batch at fault.
    ///
    /// *Errors*: as [`Replica::micro_batch`].
    fn is_at_fault(
        &mut self,
        step: Step,
        micro_batch: MicroBatch,
        batch: &Batch<'_>,
        gradient: &mut [f32],
    ) -> Result<bool, EngineError> {
        let figures = self.micro_batch(step, micro_batch, batch, &mut &mut *gradient)?;
        Ok(!figures.sums.loss.is_finite() || !self.is_finite(gradient))
    }

    /// Optimizer updates done.
    fn applied(&self) -> Step {
        self.state().applied
    }

    /// Brings the state to the host, where it is not there anyway: what [`Replica::state`] then shows.
    ///
    /// *Blocks* for the device. *Errors*: [`EngineError::Device`].
    fn bring_state(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// The state: what is copied, saved and digested.
    ///
    /// *Panics* if the device has changed it since [`Replica::bring_state`].
    fn state(&self) -> &State;

    /// Exchanges the state for another of the same shape (see [`About::state`]): a copy or a checkpoint that is
    /// whole and whose digest agrees (S12). `other` then holds the state that was last on the host.
    ///
    /// *Errors*: [`EngineError::Device`]; the replica then has no state. *Panics* if a section has another length.
    fn swap_state(&mut self, other: &mut State) -> Result<(), EngineError>;

    /// Is given memory in which it can have its state in common with other replicas of this host. It goes on with the state that it
    /// has until it is told otherwise ([`Replica::sharing`]). *Panics* if the memory has another shape.
    fn share(&mut self, memory: Box<dyn SharedState>) {
        drop(memory);
    }

    /// What it does with a state that it has in common with others, if it was given memory and can use it. [`Replica::update`] is not
    /// called once such a state was adopted.
    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        None
    }
}
