//! A replica of a model made of stages, in the host's memory.
//!
//! All its memory is taken when it is made: the state, the arena of activations, the outputs, whose gradient takes their place
//! where it can, and the batches of a group where it takes several micro-batches at once. A step allocates nothing.

use crate::about::{About, BufferLengths};
use crate::batch::{BatchFigures, BatchView, EvaluationCounts, Inputs, Targets};
use crate::device::{LossSums, Newest, Outputs, Rows};
use crate::error::EngineError;
use crate::flat::Flat;
use crate::frozen::Frozen;
use crate::gathering::{BringsParameters, Gathering};
use crate::gradient::{Gradient, MicroBatchGroup};
use crate::host_device::HostDevice;
use crate::host_state::HostState;
use crate::keeping::Keeping;
use crate::layout::Section;
use crate::loss::expect_length;
use crate::model::Model;
use crate::optimizer::Optimizer;
use crate::passes::{self, Room, Training};
use crate::replica::Replica;
use crate::sharding::{HeldState, Sharding};
use crate::shared_update::UpdateRule;
use crate::sharing::Sharing;
use crate::stack::{Side, Stack};
use crate::stage::{Input, Mode, Pass, Shape};
use crate::stages::{Gradients, Parameters, Whole};
use crate::state::State;
use crate::update_info::UpdateInfo;
use dtrain_types::{MicroBatch, Seed, SharedState, Step, Wire};
use std::ops::Range;

/// A model with its state on one device. See the file's comment.
pub struct ModelReplica<D: HostDevice> {
    about: About,
    model: Model<D>,
    seed: Seed,
    state: HostState<D>,
    frozen: Frozen,
    saved: Flat,
    scratch: Flat,
    outputs: Flat,
    /// The gradient of the outputs where it cannot take their place.
    beside: Option<Flat>,
    best: Vec<u32>,
    /// None where micro-batches are taken one at a time.
    stack: Option<Stack>,
    losses: Vec<LossSums>,
}

impl<D: HostDevice> ModelReplica<D> {
    /// Takes memory for `model` and starts it from `seed`.
    ///
    /// *Errors*: options of the optimizer that make no sense.
    pub fn new(device: D, model: Model<D>, optimizer: Optimizer, seed: Seed) -> Result<Self, EngineError> {
        let frozen = model.layout().first_frozen(seed, |_| true);
        let mut replica = Self::begun(device, model, optimizer, seed)?;
        replica.set_frozen(frozen.into())?;
        Ok(replica)
    }

    /// The same, without the parameters that lie apart, until it is [given them](Replica::set_frozen).
    ///
    /// *Errors*: as [`ModelReplica::new`].
    pub fn begun(device: D, model: Model<D>, optimizer: Optimizer, seed: Seed) -> Result<Self, EngineError> {
        let mut replica = Self::blank(device, model, optimizer, seed)?;
        replica.state.begin(replica.model.layout(), seed);
        Ok(replica)
    }

    /// The same, all of whose parameters are zero, and which has none of those that lie apart until it is given them: for whoever only asks for shapes, and does not wait for as many random numbers,
    /// nor use memory that nobody looks at.
    ///
    /// *Errors*: as [`ModelReplica::new`].
    pub fn blank(device: D, model: Model<D>, optimizer: Optimizer, seed: Seed) -> Result<Self, EngineError> {
        let layout = Self::planned(&model, &optimizer).layout;
        let state = HostState::zeros(device, optimizer, &layout, model.update_facts())?;
        Ok(Self::of(model, state, &optimizer, seed))
    }

    fn of(model: Model<D>, state: HostState<D>, optimizer: &Optimizer, seed: Seed) -> Self {
        let about = Self::planned(&model, optimizer);
        let rows = model.loss_rows(model.input().rows() * model.group());
        let (plan, outputs) = (model.plan(), rows.rows * rows.width);
        let stack = (model.group() > 1).then(|| stack(&model));
        let beside = model.reads_outputs().then(|| Flat::zeros(outputs));
        assert!(stack.as_ref().is_none_or(|stack| stack.len() == stack_len(&model)));
        Self {
            about,
            frozen: Frozen::default(),
            saved: Flat::zeros(plan.saved),
            scratch: Flat::zeros(plan.scratch),
            outputs: Flat::zeros(outputs),
            beside,
            best: vec![0; rows.rows],
            stack,
            losses: vec![LossSums::default(); model.group()],
            model,
            seed,
            state,
        }
    }

    /// What a replica of this model will say of itself, and where its memory will go, without taking any.
    #[must_use]
    pub fn planned(model: &Model<D>, optimizer: &Optimizer) -> About {
        let mut layout = model.layout().clone();
        optimizer.complete(&mut layout);
        let state = HostState::<D>::shape(optimizer, &layout);
        let rows = model.loss_rows(model.input().rows() * model.group());
        let (plan, outputs) = (model.plan(), rows.rows * rows.width);
        let lengths = BufferLengths {
            frozen: layout.frozen_len(),
            copy: 0,
            state,
            gradient: layout.gradient_len(),
            activations: plan.saved + outputs + if model.group() > 1 { stack_len(model) } else { 0 },
            scratch: plan.scratch
                + if model.reads_outputs() { outputs } else { 0 }
                + HostState::<D>::scratch(optimizer, &layout),
        };
        let windows = optimizer.keeps.in_windows().then(|| model.windows());
        About { layout, windows, ..About::of(model, &lengths) }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model<D> {
        &self.model
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &D {
        self.state.device()
    }

    /// Its parameters that lie apart.
    #[must_use]
    pub fn frozen(&self) -> &Frozen {
        &self.frozen
    }

    /// The rule that its updates follow.
    #[must_use]
    pub fn update_rule(&self) -> UpdateRule<'_, D> {
        self.state.update_rule()
    }

    /// Its state, which the host has anyway.
    #[must_use]
    pub fn state(&self) -> &State {
        self.state.state()
    }

    /// Is given memory in which it can share its state with other replicas of this host. It goes on with the state that it
    /// has until it is told otherwise ([`Replica::sharing`]). *Panics* if the memory has another shape.
    pub fn share(&mut self, memory: Box<dyn SharedState>) {
        self.state.share(memory);
    }

    /// The outputs behind the newest tokens of texts, a row each, of a model that was made [for it](Model::decoding). Which texts they go on with was said by the tokens of the
    /// passes before, in the same order: a pass with none before it begins new ones.
    ///
    /// *Order*: the bits are those of a model of all places that [predicts](Replica::predict) the whole texts, in whatever passes they came. *Errors*: more tokens than a pass
    /// takes, an unknown one. *Panics*: tokens that are no whole number of texts, more texts or places than there is room for, another model.
    pub fn decode(&mut self, newest: Newest, tokens: &[u32]) -> Result<&[f32], EngineError> {
        let room = self.model.plan().kv_cache.expect("a model that keeps keys and values");
        let texts = tokens.len().checked_div(newest.count).unwrap_or(0);
        assert_eq!(texts * newest.count, tokens.len(), "{newest:?} of each text");
        assert!(texts <= room.texts && newest.seen + newest.count <= room.places, "{newest:?} in {room:?}");
        let shape = self.infer(tokens.len(), Inputs::Tokens(tokens), Some(newest), None)?;
        Ok(&self.outputs[..shape.rows * shape.width])
    }

    /// Forward in evaluation mode; the outputs lie in `self.outputs`.
    fn infer(
        &mut self,
        rows: usize,
        inputs: Inputs<'_>,
        newest: Option<Newest>,
        brought: Option<&mut dyn BringsParameters>,
    ) -> Result<Rows, EngineError> {
        self.model.check_inputs(rows, inputs)?;
        let averages = self.about.state.averages;
        let Self { model, seed, state: held, frozen, saved, scratch, outputs, .. } = self;
        let (device, state) = (held.device(), held.state());
        let place = (state.applied, MicroBatch(0));
        let pass = Pass { newest, ..passes::pass(device, Mode::Evaluate, *seed, place, rows) };
        let section = if averages { Section::Average } else { Section::Parameters };
        let mut own = Whole::<D>(state.averaged());
        let mut brought = brought.map(|by| Brought { held: held.held(), section, by });
        let params = parameters::<D>(&mut own, &mut brought);
        let mut room = room::<D>((params, frozen), state, saved, scratch, outputs);
        Ok(passes::forward(model, &pass, &mut room, lend(inputs), None))
    }

    /// [`Replica::compute`], by parameters that are brought, if somebody brings them.
    fn compute_by(
        &mut self,
        group: &MicroBatchGroup,
        batch: &BatchView<'_>,
        brought: Option<&mut dyn BringsParameters>,
        gradient: &mut dyn Gradient,
        figures: &mut [BatchFigures],
    ) -> Result<(), EngineError> {
        self.model.check_batch(batch)?;
        expect_length("gradient", self.about.gradient_len(), gradient.elements())?;
        assert_eq!(figures.len(), group.micro_batches.len() as usize, "figures of each micro-batch");
        let Self { model, seed, state: held, frozen, saved, scratch, outputs, beside, stack, losses, .. } =
            self;
        let (device, scale, state) = (held.device(), held.loss_scale(), held.state());
        let alone = [batch.rows];
        // Stages round where they add up several.
        let (batch, rows, [among, after]) = match figures.len() {
            1 => (*batch, &alone[..], [Wire::F32, group.wire]),
            count => {
                let stack = stack.as_mut().expect("a group of several is one that it takes");
                stack.lay(count - 1, batch);
                (
                    stack.batch(count, |words| model.class_targets(words)),
                    stack.rows(),
                    [group.wire, Wire::F32],
                )
            }
        };
        let place = (group.step, group.first());
        let mut pass = passes::pass(device, Mode::Train, *seed, place, batch.rows);
        (pass.each, pass.wire) = (rows[0], among);
        let mut own = Whole::<D>(state.section(Section::Parameters));
        let section = Section::Parameters;
        let mut brought = brought.map(|by| Brought { held: held.held(), section, by });
        let params = parameters::<D>(&mut own, &mut brought);
        let room = room::<D>((params, frozen), state, saved, scratch, outputs);
        let (x, targets) = (lend(batch.inputs), lend_targets(&batch.targets));
        let all = &mut InHost { open: gradient.elements(), gradient, device, wire: after };
        let to = Training::<D> {
            beside: beside.as_deref_mut(),
            all,
            scale: scale.map_or(1.0, |scale| scale.factor),
        };
        let losses = &mut losses[..figures.len()];
        let (last, others) = losses.split_last_mut().expect("a group has a micro-batch");
        *last = device.sums(passes::train(model, &pass, room, x, targets, to, others));
        for ((figures, sums), rows) in figures.iter_mut().zip(losses).zip(rows) {
            *figures = BatchFigures { sums: *sums, samples: *rows as u64 };
        }
        Ok(())
    }

    /// [`Replica::evaluate`], by parameters that are brought, if somebody brings them.
    fn evaluate_by(
        &mut self,
        batch: &BatchView<'_>,
        brought: Option<&mut dyn BringsParameters>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        self.model.check_inputs(batch.rows, batch.inputs)?;
        self.model.loss.check_targets(self.model.loss_rows(batch.rows), &batch.targets)?;
        let shape = self.infer(batch.rows, batch.inputs, None, brought)?;
        let outputs = &self.outputs[..shape.rows * shape.width];
        let kept = Outputs::Kept(outputs);
        let device = self.state.device();
        let sums = self.model.loss.of(device, shape, kept, lend_targets(&batch.targets), 1.0);
        let sums = device.sums(sums);
        match batch.targets {
            Targets::Classes(classes) => {
                let best = &mut self.best[..shape.rows];
                device.arg_max(shape, outputs, best);
                counts.note_all(classes, best, shape.width);
                if let Some(ranking) = &mut counts.ranking {
                    ranking.note(classes, outputs);
                }
            }
            Targets::Values(targets) => counts.note_errors(targets, outputs),
            Targets::Mixed(_) => unreachable!("the targets were checked"),
        }
        Ok(sums)
    }
}

/// Parameters of which the replica has some, and somebody brings all that a stage needs.
struct Brought<'a> {
    held: &'a HeldState,
    section: Section,
    by: &'a mut dyn BringsParameters,
}

impl<D: HostDevice> Parameters<D> for Brought<'_> {
    fn part(&mut self, part: Range<usize>) -> &[f32] {
        if part.is_empty() {
            return &[];
        }
        self.by.bring(self.section, part, &mut |elements, to| {
            to.copy_from_slice(self.held.part(self.section, elements));
        })
    }
}

/// The parameters of a pass: those that are brought, if they are, or its own.
fn parameters<'a, D: HostDevice>(
    own: &'a mut Whole<'_, D>,
    brought: &'a mut Option<Brought<'_>>,
) -> &'a mut dyn Parameters<D> {
    match brought {
        Some(brought) => brought,
        None => own,
    }
}

/// A gradient that the caller holds, each part rounded when it is final.
struct InHost<'a, D> {
    gradient: &'a mut dyn Gradient,
    device: &'a D,
    wire: Wire,
    /// Where the part begins that is settled.
    open: usize,
}

impl<D: HostDevice> Gradients<D> for InHost<'_, D> {
    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        self.gradient.part(part)
    }

    fn settle(&mut self, from: usize) {
        if self.wire != Wire::F32 {
            self.device.round(self.wire, self.gradient.part(from..self.open));
        }
        self.open = from;
        self.gradient.settle(from);
    }

    fn backward_begins(&mut self) {
        self.gradient.backward_begins();
    }
}

/// Elements of the batches of a group.
fn stack_len<D: HostDevice>(model: &Model<D>) -> usize {
    let (rows, input, per_sample) = (model.group() * model.input().rows(), model.input(), model.loss_rows(1));
    let targets =
        per_sample.rows * if model.loss.takes_classes() { model.class_words() } else { per_sample.width };
    rows * (input.per_row() + targets)
}

/// Room for the batches of a group.
fn stack<D: HostDevice>(model: &Model<D>) -> Stack {
    let (group, input) = (model.group(), model.input());
    let rows = group * input.rows();
    let per_sample = model.loss_rows(1);
    let inputs = match input {
        Shape::Values { .. } => Side::values(rows, input.per_row()),
        Shape::Tokens { .. } => Side::ids(rows, input.per_row()),
    };
    let targets = match model.loss.takes_classes() {
        true => Side::ids(rows, per_sample.rows * model.class_words()),
        false => Side::values(rows, per_sample.rows * per_sample.width),
    };
    Stack::new(group, input.rows(), inputs, targets)
}

fn room<'a, D: HostDevice>(
    (params, frozen): (&'a mut dyn Parameters<D>, &'a Frozen),
    state: &'a State,
    saved: &'a mut Flat,
    scratch: &'a mut Flat,
    outputs: &'a mut Flat,
) -> Room<'a, D> {
    Room { params, frozen, stats: state.section(Section::Stats), saved, scratch, outputs }
}

fn lend<D: HostDevice>(inputs: Inputs<'_>) -> Input<'_, D> {
    match inputs {
        Inputs::Values(values) => Input::Values(values),
        Inputs::Tokens(tokens) => Input::Ids(tokens),
    }
}

fn lend_targets<'a, D: HostDevice>(targets: &Targets<'a>) -> Input<'a, D> {
    match *targets {
        Targets::Values(values) => Input::Values(values),
        Targets::Classes(words) | Targets::Mixed(words) => Input::Ids(words),
    }
}

impl<D: HostDevice> Replica for ModelReplica<D> {
    fn about(&self) -> &About {
        &self.about
    }

    fn prefetch(
        &mut self,
        group: &MicroBatchGroup,
        micro_batch: MicroBatch,
        batch: &BatchView<'_>,
    ) -> Result<(), EngineError> {
        self.model.check_batch(batch)?;
        let range = group.micro_batches;
        assert!((range.lo..range.hi).contains(&micro_batch.0), "micro-batch {micro_batch} of {group:?}");
        // One alone is read where its loader has it.
        if let Some(stack) = self.stack.as_mut().filter(|_| range.len() > 1) {
            stack.lay((micro_batch.0 - range.lo) as usize, batch);
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
        self.compute_by(group, batch, None, gradient, figures)
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
        self.state.update(step, gradient, weight, samples)
    }

    fn evaluate(
        &mut self,
        batch: &BatchView<'_>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        self.evaluate_by(batch, None, counts)
    }

    fn predict(&mut self, rows: usize, inputs: Inputs<'_>, outputs: &mut [f32]) -> Result<(), EngineError> {
        let shape = self.model.loss_rows(rows);
        expect_length("outputs", shape.rows * shape.width, outputs.len())?;
        self.infer(rows, inputs, None, None)?;
        outputs.copy_from_slice(&self.outputs[..outputs.len()]);
        Ok(())
    }

    fn applied(&self) -> Step {
        self.state().applied
    }

    fn bring_state(&mut self) -> Result<&State, EngineError> {
        Ok(self.state.bring())
    }

    fn swap_state(&mut self, other: &mut State) -> Result<(), EngineError> {
        self.state.swap(other);
        Ok(())
    }

    fn set_frozen(&mut self, frozen: Frozen) -> Result<(), EngineError> {
        assert_eq!(frozen.len(), self.about.layout.frozen_len(), "parameters of another model");
        self.frozen = frozen;
        Ok(())
    }

    fn keeping(&mut self) -> Option<&mut dyn Keeping> {
        // Its memory is the caller's own: there is nothing to save.
        None
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        self.state.sharing()
    }

    fn sharding(&mut self) -> Option<&mut dyn Sharding> {
        self.state.sharding()
    }

    fn gathering(&mut self) -> Option<&mut dyn Gathering> {
        self.state.sharding().is_some_and(|state| state.holds(Section::Parameters)).then_some(self)
    }
}

impl<D: HostDevice> Gathering for ModelReplica<D> {
    fn compute_with(
        &mut self,
        group: &MicroBatchGroup,
        batch: &BatchView<'_>,
        parameters: &mut dyn BringsParameters,
        gradient: &mut dyn Gradient,
        figures: &mut [BatchFigures],
    ) -> Result<(), EngineError> {
        self.compute_by(group, batch, Some(parameters), gradient, figures)
    }

    fn evaluate_with(
        &mut self,
        batch: &BatchView<'_>,
        parameters: &mut dyn BringsParameters,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        self.evaluate_by(batch, Some(parameters), counts)
    }
}
