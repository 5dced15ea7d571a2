//! A replica whose passes another program makes, such as PyTorch in this process: the program computes losses and gradients, the
//! state and its updates are the engine's.
//!
//! Parameters and running statistics lie in the flat buffers of the state, which the program reads where they are; it writes
//! gradients where the driver of the replica wants them. So whatever holds for a replica of stages holds here too: one state for
//! the ranks of a host, an update in shares, checkpoints, copies, digests.
//!
//! This file does not know the program, what its batches hold, or how it comes by them: the inputs of a batch are passed on.

use crate::about::{About, BufferLengths};
use crate::batch::{BatchFigures, BatchView, EvaluationCounts, Inputs, Targets};
use crate::device::LossSums;
use crate::error::EngineError;
use crate::gradient::{Gradient, MicroBatchGroup};
use crate::groups::Grouping;
use crate::host_device::HostDevice;
use crate::host_state::HostState;
use crate::keeping::Keeping;
use crate::layout::{Layout, Section, StageSlice, Tensor};
use crate::loss::expect_length;
use crate::loss_scale::{LossScale, LossScaling};
use crate::optimizer::{Optimizer, Rule};
use crate::own_metric::{OwnCounts, OwnMetric};
use crate::param_layout::Init;
use crate::replica::Replica;
use crate::sharding::Sharding;
use crate::sharing::Sharing;
use crate::state::State;
use crate::update_facts::UpdateFacts;
use crate::update_info::UpdateInfo;
use crate::whole_update::WholeUpdate;
use dtrain_types::{MicroBatch, SharedState, Step, Wire};

/// A tensor of such a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalTensor {
    /// Its full name, as the program has it.
    pub name: String,
    /// Its shape; empty for a single number.
    pub shape: Vec<usize>,
    /// [`Section::Parameters`], or [`Section::Stats`] for what is no parameter and changes in training, or [`Section::First`] for what the
    /// program's own optimizer keeps.
    pub section: Section,
}

/// What the program reads of a state. It may change none of it.
#[derive(Clone, Copy, Debug)]
pub struct StateView<'a> {
    /// Updates done: while they are the same the numbers are.
    pub applied: Step,
    /// All parameters.
    pub parameters: &'a [f32],
    /// All running statistics, without a loss scale.
    pub stats: &'a [f32],
}

/// One micro-batch, as the program is given it.
#[derive(Clone, Copy, Debug)]
pub struct ExternalBatch<'a> {
    /// The step.
    pub step: Step,
    /// Which micro-batch of it.
    pub micro_batch: MicroBatch,
    /// What the loss is multiplied by before its gradient is taken: a power of two, 1 where the loss is not scaled.
    pub loss_scale: f32,
    /// The samples.
    pub batch: BatchView<'a>,
}

/// The passes of a model that another program makes.
pub trait ExternalModel: Send {
    /// Computes the losses of some micro-batches that follow one another, and overwrites all of `gradient`: with the gradient of the *sum*
    /// of weighted losses, times the scale, and behind it, for each running statistic, its value after the micro-batch times the rows. Of
    /// two it is the sum of what each gives alone, element by element. `sums` has a place for each.
    ///
    /// *Order*: the bits depend on the arguments alone. *Errors*: [`EngineError::External`]; `gradient` then holds anything.
    fn compute(
        &mut self,
        state: StateView<'_>,
        batches: &[ExternalBatch<'_>],
        gradient: &mut dyn Gradient,
        sums: &mut [LossSums],
    ) -> Result<(), EngineError>;

    /// How many micro-batches it takes at once: 1, or 2, where adding a gradient as it comes up spares a pass over its memory.
    fn at_once(&self) -> u32 {
        1
    }

    /// Makes an update, where the rule is [`Rule::External`].
    ///
    /// *Order*: the bits depend on the arguments alone. *Errors*: [`EngineError::External`]; the state then holds anything.
    fn update(&mut self, update: WholeUpdate<'_>) -> Result<(), EngineError> {
        Err(EngineError::External(format!("update {} is not for this program to make", update.step.0)))
    }

    /// The metrics of its own, beside loss and accuracy.
    fn metrics(&self) -> Vec<OwnMetric> {
        Vec::new()
    }

    /// The loss of samples that are held out, by the parameters that a finished model has. Its own metrics are added to `own`.
    ///
    /// *Errors*: [`EngineError::External`].
    fn evaluate(
        &mut self,
        state: StateView<'_>,
        batch: &BatchView<'_>,
        own: &mut [OwnCounts],
    ) -> Result<LossSums, EngineError>;
}

/// A replica whose passes another program makes. See the file's comment.
pub struct ExternalReplica<D: HostDevice> {
    about: About,
    state: HostState<D>,
    model: Box<dyn ExternalModel>,
    /// The inputs of the micro-batch that is taken together with the next one.
    first: FirstOfTwo,
    /// Running statistics without the loss scale.
    stats: usize,
}

/// Where the tensors of such a model lie, in the order in which they are given: a stage for each parameter, so that what is final
/// may travel.
///
/// *Panics* if a running statistic comes before a parameter.
#[must_use]
pub fn external_layout(tensors: &[ExternalTensor], scaling: Option<LossScaling>) -> Layout {
    let mut layout = Layout::default();
    for ExternalTensor { name, shape, section } in tensors {
        let offset = match section {
            Section::Parameters => layout.parameters,
            Section::First => layout.kept_len(),
            _ => layout.stats,
        };
        let tensor = Tensor::new(name, shape, *section, offset, Init::Constant(0.0));
        if *section == Section::First {
            layout.kept.push(tensor);
            continue;
        }
        let end = tensor.range().end;
        layout.tensors.push(tensor);
        if *section == Section::Parameters {
            assert_eq!(layout.stats, 0, "parameters come before running statistics");
            let (parameters, stats) = (offset..end, 0..0);
            layout.stages.push(StageSlice { name: name.clone(), kind: "tensor", parameters, stats });
            layout.parameters = end;
        } else {
            layout.stats = end;
        }
    }
    if let Some(scaling) = scaling {
        layout.tensors.push(scaling.tensor(layout.stats));
        layout.stats += LossScale::ELEMENTS;
    }
    layout
}

/// Where the tensors of such a model and what is kept for its updates lie, and what an update has to know of it.
///
/// *Errors*: groups of parameters that make no sense.
pub(crate) fn shaped(
    tensors: &[ExternalTensor],
    scaling: Option<LossScaling>,
    (optimizer, grouping): (&Optimizer, &Grouping),
) -> Result<(Layout, UpdateFacts), EngineError> {
    let mut layout = external_layout(tensors, scaling);
    grouping.apply(&mut layout)?;
    optimizer.complete(&mut layout);
    let facts = UpdateFacts::of_program(&layout, scaling);
    Ok((layout, facts))
}

impl<D: HostDevice> ExternalReplica<D> {
    /// A replica of these tensors, all of them zero. `device` makes the updates.
    ///
    /// *Errors*: options of the optimizer or groups of parameters that make no sense.
    pub fn blank(
        device: D,
        model: Box<dyn ExternalModel>,
        tensors: &[ExternalTensor],
        scaling: Option<LossScaling>,
        (optimizer, grouping): (Optimizer, &Grouping),
    ) -> Result<Self, EngineError> {
        let (layout, facts) = shaped(tensors, scaling, (&optimizer, grouping))?;
        let stats = facts.stats;
        let mut state = HostState::zeros(device, optimizer, &layout, facts)?;
        if let Some(scaling) = scaling {
            state.own_mut().section_mut(Section::Stats)[stats] = scaling.start;
        }
        let lengths = BufferLengths {
            frozen: 0,
            copy: 0,
            state: HostState::<D>::shape(&optimizer, &layout),
            gradient: layout.gradient_len(),
            activations: 0,
            scratch: HostState::<D>::scratch(&optimizer, &layout),
        };
        let mut about = About::of_program(layout, &lengths, model.metrics());
        about.group = model.at_once();
        Ok(Self { about, state, model, first: FirstOfTwo::default(), stats })
    }

    /// Has it take one micro-batch at a time: where each gradient is rounded for itself.
    pub fn take_one_at_a_time(&mut self) {
        self.about.group = 1;
    }

    /// Gives it its first parameters and running statistics. *Panics* if they have another length.
    pub fn begin_with(&mut self, parameters: &[f32], stats: &[f32]) {
        let own = self.state.own_mut();
        own.section_mut(Section::Parameters).copy_from_slice(parameters);
        own.section_mut(Section::Stats)[..stats.len()].copy_from_slice(stats);
        own.begin_average();
        assert_eq!(stats.len(), self.stats, "running statistics of another model");
    }

    /// Whether its updates may be made in shares, each by another rank of the host: not those that are made as a whole.
    #[must_use]
    pub fn may_share(&self) -> bool {
        self.state.rule().in_shares()
    }

    /// Is given memory for a shared state: [`HostState::share`].
    pub fn share(&mut self, memory: Box<dyn SharedState>) {
        self.state.share(memory);
    }

    fn view(state: &State, stats: usize) -> StateView<'_> {
        StateView {
            applied: state.applied,
            parameters: state.section(Section::Parameters),
            stats: &state.section(Section::Stats)[..stats],
        }
    }
}

impl<D: HostDevice> Replica for ExternalReplica<D> {
    fn about(&self) -> &About {
        &self.about
    }

    /// The program reads ahead for itself: what is noted is what belongs to the first of two.
    fn prefetch(
        &mut self,
        group: &MicroBatchGroup,
        _: MicroBatch,
        batch: &BatchView<'_>,
    ) -> Result<(), EngineError> {
        if group.micro_batches.len() > 1 {
            self.first.lay(batch);
        }
        Ok(())
    }

    fn compute(
        &mut self,
        group: &MicroBatchGroup,
        batch: &BatchView<'_>,
        gradient: &mut dyn Gradient,
        figures: &mut [BatchFigures],
    ) -> Result<(), EngineError> {
        expect_length("gradient", self.about.gradient_len(), gradient.elements())?;
        let (count, range) = (figures.len(), group.micro_batches);
        assert!((1..=2).contains(&count) && count == range.len() as usize, "{group:?}, and {count} figures");
        let Self { about, state, model, first, stats } = self;
        let loss_scale = state.loss_scale().map_or(1.0, |scale| scale.factor);
        let end = about.layout.parameters + *stats;
        let len = gradient.elements();
        // The sums of ranks have nothing to say of the loss scale.
        gradient.part(end..len).fill(0.0);
        let given =
            |m, batch| ExternalBatch { step: group.step, micro_batch: MicroBatch(m), loss_scale, batch };
        let both = [given(range.lo, first.view()), given(range.hi - 1, *batch)];
        let (batches, mut sums) = (&both[2 - count..], [LossSums::default(); 2]);
        let (view, sums) = (Self::view(state.state(), *stats), &mut sums[2 - count..]);
        match group.wire {
            Wire::F32 => model.compute(view, batches, gradient, sums)?,
            wire => {
                assert_eq!(count, 1, "each gradient is rounded for itself");
                let mut rounded = Rounded { open: len, device: state.device(), wire, gradient };
                model.compute(view, batches, &mut rounded, sums)?;
                rounded.settle(0);
            }
        }
        for ((figures, sums), given) in figures.iter_mut().zip(sums).zip(batches) {
            *figures = BatchFigures { sums: *sums, samples: given.batch.rows as u64 };
        }
        Ok(())
    }

    fn add(&self, wire: Wire, from: &[f32], into: &mut [f32]) {
        self.state.add(wire, from, into);
    }

    fn update(
        &mut self,
        step: Step,
        gradient: &[f32],
        weight: f64,
        samples: u64,
    ) -> Result<UpdateInfo, EngineError> {
        let Self { state, model, .. } = self;
        match state.rule() {
            Rule::External => {
                state.update_by(step, gradient, weight, samples, &mut |update| model.update(update))
            }
            _ => state.update(step, gradient, weight, samples),
        }
    }

    fn evaluate(
        &mut self,
        batch: &BatchView<'_>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        let state = self.state.state();
        let view = StateView { parameters: state.averaged(), ..Self::view(state, self.stats) };
        self.model.evaluate(view, batch, &mut counts.own)
    }

    fn predict(&mut self, _: usize, _: Inputs<'_>, _: &mut [f32]) -> Result<(), EngineError> {
        Err(EngineError::External("its program predicts".into()))
    }

    fn applied(&self) -> Step {
        self.state.state().applied
    }

    fn bring_state(&mut self) -> Result<&State, EngineError> {
        Ok(self.state.state())
    }

    fn swap_state(&mut self, other: &mut State) -> Result<(), EngineError> {
        self.state.swap(other);
        Ok(())
    }

    fn keeping(&mut self) -> Option<&mut dyn Keeping> {
        None
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        self.state.sharing()
    }

    fn sharding(&mut self) -> Option<&mut dyn Sharding> {
        self.state.sharding()
    }
}

/// The inputs of the first of two micro-batches: its loader wants them back before the second one is there. One kind is empty.
#[derive(Debug, Default)]
struct FirstOfTwo {
    rows: usize,
    values: Vec<f32>,
    tokens: Vec<u32>,
}

impl FirstOfTwo {
    fn lay(&mut self, batch: &BatchView<'_>) {
        self.rows = batch.rows;
        self.values.clear();
        self.tokens.clear();
        match batch.inputs {
            Inputs::Values(values) => self.values.extend_from_slice(values),
            Inputs::Tokens(tokens) => self.tokens.extend_from_slice(tokens),
        }
    }

    fn view(&self) -> BatchView<'_> {
        let inputs = match self.tokens.is_empty() {
            true => Inputs::Values(&self.values),
            false => Inputs::Tokens(&self.tokens),
        };
        BatchView { rows: self.rows, inputs, targets: Targets::Values(&[]) }
    }
}

/// A gradient each part of which is rounded when it is final.
struct Rounded<'a, D> {
    gradient: &'a mut dyn Gradient,
    device: &'a D,
    wire: Wire,
    /// Where the part begins that is settled.
    open: usize,
}

impl<D: HostDevice> Gradient for Rounded<'_, D> {
    fn elements(&self) -> usize {
        self.gradient.elements()
    }

    fn part(&mut self, part: std::ops::Range<usize>) -> &mut [f32] {
        self.gradient.part(part)
    }

    fn settle(&mut self, from: usize) {
        if from < self.open {
            self.device.round(self.wire, self.gradient.part(from..self.open));
            self.open = from;
        }
        self.gradient.settle(from);
    }

    fn backward_begins(&mut self) {
        self.gradient.backward_begins();
    }
}

#[cfg(test)]
#[path = "external_tests.rs"]
mod tests;
