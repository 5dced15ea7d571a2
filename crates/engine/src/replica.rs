//! The seam to a rank: one copy of a model with its state, that can compute micro-batches and apply updates.
//!
//! A replica does not know how many others there are, which micro-batches are its own, or how gradients are
//! reduced. Whoever drives it hands it buffers, micro-batches by number and the reduced gradient.

use crate::UpdateInfo;
use crate::about::About;
use crate::batch::{BatchFigures, BatchView, EvaluationCounts, Inputs};
use crate::device::LossSums;
use crate::error::EngineError;
use crate::frozen::Frozen;
use crate::gathering::Gathering;
use crate::gradient::{Gradient, MicroBatchGroup};
use crate::keeping::Keeping;
use crate::sharding::Sharding;
use crate::sharing::Sharing;
use crate::state::State;
use dtrain_types::{MicroBatch, Step, Wire};

/// One rank's copy of the model.
///
/// Life of a step: for each of its micro-batches, or group of them, [`Replica::compute`] fills a buffer of
/// [`About::gradient_len`] elements and [`Replica::add`] merges finished ones in tree order; after the reduction
/// [`Replica::update`] applies the sum. None of these allocates after the first step.
///
/// What only some replicas can do is a trait of its own: [`Replica::keeping`], [`Replica::sharing`], [`Replica::sharding`].
pub trait Replica: Send {
    /// What is fixed for its life.
    fn about(&self) -> &About;

    /// Copies the batch of a micro-batch of a group that will be computed next. In a group of several every batch but the last is
    /// fetched so. Anywhere else it is only faster: whatever is computed next is as if this had not been called.
    ///
    /// *Errors*: a batch that does not fit the model, or of the device. *Panics* if the group has no such micro-batch.
    fn prefetch(
        &mut self,
        group: &MicroBatchGroup,
        micro_batch: MicroBatch,
        batch: &BatchView<'_>,
    ) -> Result<(), EngineError>;

    /// Computes the losses of a group, the batch of whose last micro-batch this is, and overwrites all of `gradient` with the gradient
    /// of the *sum* of weighted losses and with the row-weighted statistics of each micro-batch: the sum, along the reduction
    /// tree over the group, of what it computes of each alone. `figures` has a place for each.
    ///
    /// *Order*: the bits depend on `(state, seed, step, micro-batches, batches)` alone, and are those of computing each alone, with every
    /// node of the tree rounded as the group says. *Errors*: a batch that does not fit the model; `gradient` then holds anything.
    /// *Panics* if a batch was not fetched, or if one but the last had fewer rows than the model was planned for.
    fn compute(
        &mut self,
        group: &MicroBatchGroup,
        batch: &BatchView<'_>,
        gradient: &mut dyn Gradient,
        figures: &mut [BatchFigures],
    ) -> Result<(), EngineError>;

    /// `into += from`: the addition of the reduction tree, its sum rounded.
    fn add(&self, wire: Wire, from: &[f32], into: &mut [f32]);

    /// Applies the reduced gradient as update number `step`. `weight` is the reduced normaliser, `samples` the rows
    /// of the whole step. Zero weight counts as a zero gradient.
    ///
    /// *Errors*: [`EngineError::NonFinite`], before anything is changed. *Panics* if `step` is not the next one, or if it shares its
    /// state with others.
    fn update(
        &mut self,
        step: Step,
        gradient: &[f32],
        weight: f64,
        samples: u64,
    ) -> Result<UpdateInfo, EngineError>;

    /// The loss by running statistics and without dropout; counts each prediction of a class, and adds up how far values are off.
    ///
    /// *Errors*: a batch that does not fit the model.
    fn evaluate(
        &mut self,
        batch: &BatchView<'_>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError>;

    /// Writes the model's outputs for `rows` rows of inputs, as in [`Replica::evaluate`].
    ///
    /// *Errors*: inputs that do not fit the model, or `outputs` of another length than rows x outputs.
    fn predict(&mut self, rows: usize, inputs: Inputs<'_>, outputs: &mut [f32]) -> Result<(), EngineError>;

    /// Optimizer updates done.
    fn applied(&self) -> Step;

    /// The state: what is copied, saved and digested. It is brought to the host, where it is not there anyway.
    ///
    /// *Blocks* for the device. *Errors*: [`EngineError::Device`].
    fn bring_state(&mut self) -> Result<&State, EngineError>;

    /// Exchanges the state for another of the same shape (see [`About::state`]): a copy or a checkpoint that is
    /// whole and whose digest agrees (S12). `other` then holds the state that was last on the host.
    ///
    /// *Errors*: [`EngineError::Device`]; the replica then has no state. *Panics* if a section has another length.
    fn swap_state(&mut self, other: &mut State) -> Result<(), EngineError>;

    /// Is given the parameters that lie apart ([`Layout::frozen`](crate::Layout::frozen)), in place of those that it has.
    ///
    /// *Errors*: [`EngineError::Device`]. *Panics* if the model has others.
    fn set_frozen(&mut self, frozen: Frozen) -> Result<(), EngineError> {
        assert!(frozen.is_empty(), "all parameters of this model are in its state");
        Ok(())
    }

    /// How it keeps gradients where it computes them, if it does.
    fn keeping(&mut self) -> Option<&mut dyn Keeping>;

    /// What it does with a state that it shares with others, if it was given memory for one. [`Replica::update`] is not
    /// called once such a state was adopted.
    fn sharing(&mut self) -> Option<&mut dyn Sharing>;

    /// What it does with the part of a state that it holds, if it holds no whole one. [`Replica::update`] and [`Replica::swap_state`]
    /// are not called then, and [`Replica::bring_state`] gives a state without the moments.
    fn sharding(&mut self) -> Option<&mut dyn Sharding>;

    /// How its passes come by the parameters that others hold, if it is to hold but its shards of them.
    fn gathering(&mut self) -> Option<&mut dyn Gathering> {
        None
    }
}

/// Computes one micro-batch alone, as a whole.
///
/// *Errors*: as [`Replica::compute`].
pub fn micro_batch(
    replica: &mut dyn Replica,
    step: Step,
    micro_batch: MicroBatch,
    batch: &BatchView<'_>,
    mut gradient: &mut [f32],
) -> Result<BatchFigures, EngineError> {
    let mut figures = [BatchFigures::default()];
    replica.compute(&MicroBatchGroup::of_one(step, micro_batch), batch, &mut gradient, &mut figures)?;
    Ok(figures[0])
}

/// Computes a micro-batch again and tells whether its loss or gradient is not finite: after
/// [`EngineError::NonFinite`], to name the micro-batch at fault.
///
/// *Errors*: as [`Replica::compute`].
pub fn is_at_fault(
    replica: &mut dyn Replica,
    step: Step,
    at: MicroBatch,
    batch: &BatchView<'_>,
    gradient: &mut [f32],
) -> Result<bool, EngineError> {
    let figures = micro_batch(replica, step, at, batch, gradient)?;
    Ok(!figures.sums.loss.is_finite() || !gradient.iter().all(|x| x.is_finite()))
}
