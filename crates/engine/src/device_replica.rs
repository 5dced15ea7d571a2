//! A replica of a model made of stages, on a device with memory of its own.
//!
//! Batches go to the device and gradients come back: a rank's peers see gradients on the host, whatever made them. The
//! state stays on the device; the host has a copy of it that is brought up to date when somebody wants to look. All
//! memory is taken when the replica is made.

mod brought;
mod gathering;
mod keeping;
mod sharding;
mod windows;

use crate::OwnMemory;
use crate::about::{About, BufferLengths};
use crate::batch::{BatchFigures, BatchView, EvaluationCounts, Inputs, Targets};
use crate::device::{LossSums, Outputs, Rows};
use crate::device_feeds::Feeds;
use crate::device_shards::DeviceShards;
use crate::error::EngineError;
use crate::flat::Flat;
use crate::gathering::{BringsParameters, Gathering};
use crate::gradient::{Gradient, MicroBatchGroup};
use crate::groups::Runs;
use crate::keeping::{Keeping, Kept};
use crate::layout::Section;
use crate::loss::{Loss, expect_length};
use crate::loss_scale::LossScale;
use crate::model::Model;
use crate::optimizer::{Buffers, Keeps, Optimizer};
use crate::passes::{self, Room, Training};
use crate::replica::Replica;
use crate::settling::{Normaliser, Settling};
use crate::sharding::Sharding;
use crate::sharing::Sharing;
use crate::stage::{Mode, Shape};
use crate::stages::{Gradients, Inside, Parameters, Whole};
use crate::state::State;
use crate::update_info::UpdateInfo;
use crate::windows::Windows;
use brought::{Brought, Zeros};
use dtrain_types::{MicroBatch, Seed, Step, Wire};
use std::collections::VecDeque;
use std::ops::Range;
use windows::{BroughtWindows, Unwanted};

/// Gradients where they are kept: one is computed, and what waits for it is added as soon as it is final.
struct Laid<'a, 'b, D: OwnMemory> {
    device: &'a D,
    kept: &'a mut [D::Floats],
    /// Everything from here on is final.
    open: usize,
    to: Kept<'b>,
}

impl<D: OwnMemory> Gradients<D> for Laid<'_, '_, D> {
    fn part(&mut self, part: Range<usize>) -> D::Mut<'_> {
        let (_, rest) = D::split_mut(D::take(&mut self.kept[self.to.number]), part.start);
        D::split_mut(rest, part.len()).0
    }

    fn settle(&mut self, from: usize) {
        let fresh = from..self.open;
        if fresh.is_empty() {
            return;
        }
        self.open = from;
        for pair in self.to.merges {
            let [into, other] = self.kept.get_disjoint_mut(*pair).expect("two that are kept");
            let mut into = D::take(into);
            self.device.add_to(D::part(D::look(other), fresh.clone()), D::part_mut(&mut into, fresh.clone()));
        }
        if let Some(settled) = &mut self.to.settled {
            settled(from);
        }
    }
}

/// Where the gradient of a pass goes.
enum To<'a> {
    /// To one that is kept.
    Kept(Kept<'a>),
    /// To the first of them, as a whole.
    First,
    /// Window by window to the host, each rounded.
    Windows(&'a mut dyn Gradient, Wire),
}

/// The memory of passes.
struct Passes<D: OwnMemory> {
    feeds: Feeds<D>,
    saved: D::Floats,
    scratch: D::Floats,
    outputs: D::Floats,
    /// Their gradient where it cannot take their place.
    beside: Option<D::Floats>,
    /// One, and those that are kept beside it.
    gradients: Vec<D::Floats>,
    /// For the parameters of one stage, where it has but its shards of them.
    stage: D::Floats,
}

/// An update that the device has.
struct Given<D: OwnMemory> {
    step: Step,
    found: D::Pending,
    /// Its normaliser, where the host gave it.
    weight: Option<f64>,
}

/// Updates that may be given before the oldest is told.
const MOST_GIVEN: usize = 2;

/// A model with its state on a device of its own. See the file's comment.
pub struct DeviceReplica<D: OwnMemory> {
    about: About,
    // Memory first: it is freed before its device is gone.
    passes: Passes<D>,
    sections: [D::Floats; Section::COUNT],
    /// What it holds, where it holds no whole state.
    shards: Option<DeviceShards<D>>,
    /// What parameters begin with of which it is to have but its shards, as long as it was not told which.
    first: Option<Seed>,
    /// The host's memory for the sum of gradients that come in windows, between two steps.
    lent: Flat,
    model: Model<D>,
    optimizer: Optimizer,
    seed: Seed,
    runs: Runs,
    /// The host's copy of the state; its `applied` is that of the device.
    host: State,
    /// Whether the host's copy is that of the device.
    is_home: bool,
    /// What the loss is scaled by, if it is: as the device's state says.
    loss_scale: Option<LossScale>,
    best: Vec<u32>,
    /// The micro-batch that the device works on: what its loss comes to, and its rows.
    under_way: Option<(D::Sums, usize)>,
    /// The losses of the step in hand, where they are told later.
    losses: Vec<D::Sums>,
    /// Updates that were given and whose outcome nobody knows, the oldest first.
    given: VecDeque<Given<D>>,
    device: D,
}

impl<D: OwnMemory> DeviceReplica<D> {
    /// Takes memory for `model` on the device and starts it from `seed`.
    ///
    /// *Errors*: options of the optimizer that make no sense, or that the device has no kernels for; not enough memory.
    pub fn new(device: D, model: Model<D>, optimizer: Optimizer, seed: Seed) -> Result<Self, EngineError> {
        let mut replica = Self::blank(device, model, optimizer, seed)?;
        replica.first = optimizer.held_sections()[Section::Parameters as usize].then_some(seed);
        replica.model.layout().initialise(seed, &mut replica.host);
        replica.loss_scale = replica.model.update_facts().loss_scale(replica.host.section(Section::Stats));
        replica.send_state()?;
        Ok(replica)
    }

    /// The same with a state of zeros, to see what memory it takes. *Errors*: as [`DeviceReplica::new`].
    pub fn blank(device: D, model: Model<D>, optimizer: Optimizer, seed: Seed) -> Result<Self, EngineError> {
        optimizer.check()?;
        if !optimizer.rule.in_shares() {
            let reason = "this device has no kernels for an update of whole matrices".into();
            return Err(EngineError::Option { key: "optimizer.kind", reason });
        }
        assert_eq!(model.group(), 1, "a device of its own takes one micro-batch at a time");
        let layout = model.layout();
        let state = optimizer.state(layout);
        let mut host = State::zeros(optimizer.first_state(layout));
        let held = optimizer.held_sections();
        let gathers = held[Section::Parameters as usize];
        if gathers {
            // They are made when it is told which.
            [Section::Parameters, Section::Average].into_iter().for_each(|section| host.empty(section));
        }
        let in_shards = matches!(optimizer.keeps, Keeps::Shards(_));
        let shards = in_shards.then(|| DeviceShards::none(&device)).transpose()?;
        let (input, plan) = (model.input(), model.plan());
        let rows = model.loss_rows(input.rows());
        let windows = optimizer.keeps.in_windows().then(|| model.windows());
        let longest_stage = windows.as_ref().map_or(0, |windows| windows.itinerary().longest());
        let gradient = windows.as_ref().map_or(layout.gradient_len(), Windows::memory);
        let outputs = device.activation_len(model.outputs_len(input.rows()));
        let passes = Passes {
            feeds: Feeds::new(&device, &model)?,
            saved: device.floats(plan.saved)?,
            scratch: device.floats(plan.scratch)?,
            outputs: device.floats(outputs)?,
            beside: model.reads_outputs().then(|| device.floats(outputs)).transpose()?,
            gradients: vec![device.floats(gradient)?],
            stage: device.parameters(if gathers { longest_stage } else { 0 })?,
        };
        // An average of parameters is evaluated as they are.
        let memory = |section| match section {
            Section::Parameters | Section::Average => device.parameters(host.section(section).len()),
            Section::First | Section::Second if in_shards => device.floats(0),
            Section::Stats | Section::First | Section::Second => device.floats(host.section(section).len()),
        };
        let [p, s, first, second, average] = Section::ALL.map(memory);
        let lengths = BufferLengths {
            state,
            copy: match gathers {
                true => device.copy_len(longest_stage),
                false => device.copy_len(state.lengths()[0]) + device.copy_len(state.lengths()[4]),
            },
            gradient,
            activations: plan.saved + outputs,
            scratch: plan.scratch + if model.reads_outputs() { outputs } else { 0 },
        };
        Ok(Self {
            about: About { windows, ..About::of(&model, &lengths) },
            passes,
            sections: [p?, s?, first?, second?, average?],
            shards,
            lent: Flat::default(),
            first: None,
            runs: optimizer.runs(layout),
            best: vec![0; rows.rows],
            is_home: true,
            under_way: None,
            losses: Vec::new(),
            given: VecDeque::with_capacity(MOST_GIVEN),
            loss_scale: model.update_facts().loss_scale(host.section(Section::Stats)),
            host,
            model,
            optimizer,
            seed,
            device,
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

    /// Makes the greatest pass there can be, over zeros, so that every operation has taken the memory that it wants and every
    /// kernel is there. Nothing of the state changes.
    ///
    /// *Blocks* until it is done. *Errors*: of the device; what its operations fail in, they tell by a panic.
    pub fn rehearse(&mut self) -> Result<(), EngineError> {
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
        let place = (Step(0), MicroBatch(0));
        match &self.about.windows {
            None => self.pass(place, &batch, None, To::Kept(Kept::alone(0)))?,
            Some(windows) => {
                let mut unwanted = Unwanted::of(self.about.gradient_len(), windows);
                let mut zeros = Zeros(vec![0.0; windows.itinerary().longest()]);
                let gathers = !self.has_whole(Section::Parameters);
                let brought = gathers.then_some(&mut zeros as &mut dyn BringsParameters);
                self.pass(place, &batch, brought, To::Windows(&mut unwanted, Wire::F32))?;
            }
        }
        self.device.submit();
        self.figures();
        // No run has this one: what the way ahead needs is there, and what came by it is used by nobody.
        self.prefetch(&MicroBatchGroup::of_one(Step(0), MicroBatch(1)), MicroBatch(1), &batch)?;
        self.device.fetch(&self.passes.gradients[0], &mut [0.0])
    }

    /// Whether all of this section lies on the device.
    fn has_whole(&self, section: Section) -> bool {
        !self.optimizer.held_sections()[section as usize]
    }

    /// Makes all first parameters in the host's copy, if they lie nowhere yet: somebody wants them whole.
    fn make_first(&mut self) {
        if let Some(seed) = self.first.take() {
            let layout = self.model.layout();
            self.host = State::zeros(self.optimizer.first_state(layout));
            layout.initialise(seed, &mut self.host);
        }
    }

    fn send_state(&mut self) -> Result<(), EngineError> {
        for section in Section::ALL {
            if self.has_whole(section) {
                self.device.send(self.host.section(section), &mut self.sections[section as usize])?;
            }
        }
        self.loss_scale.map_or(Ok(()), |scale| self.device.set_loss_scale(scale.factor))
    }

    /// Gives the device a pass, whose gradient goes there.
    fn pass(
        &mut self,
        (step, micro_batch): (Step, MicroBatch),
        batch: &BatchView<'_>,
        brought: Option<&mut dyn BringsParameters>,
        to: To<'_>,
    ) -> Result<(), EngineError> {
        self.model.check_batch(batch)?;
        let Self { device, model, seed, passes, sections, about, loss_scale, shards, .. } = self;
        let (x, targets) = passes.feeds.batch(device, (step, micro_batch), batch)?;
        let pass = passes::pass(&*device, Mode::Train, *seed, (step, micro_batch), batch.rows);
        let mut own = Whole::<D>(D::look(&sections[0]));
        let mut brought = brought.map(|by| {
            let held = shards.as_ref().expect("it has but its shards of the parameters");
            Brought::new((&*device, &mut passes.stage), held, Section::Parameters, by)
        });
        let params: &mut dyn Parameters<D> = match &mut brought {
            Some(brought) => brought,
            None => &mut own,
        };
        let room = Room {
            params,
            stats: D::look(&sections[1]),
            saved: D::take(&mut passes.saved),
            scratch: D::take(&mut passes.scratch),
            outputs: D::take(&mut passes.outputs),
        };
        let beside = passes.beside.as_mut().map(D::take);
        let scale = loss_scale.map_or(1.0.into(), |_| device.loss_scale());
        let loss = match to {
            To::Kept(to) => {
                let open = about.gradient_len();
                let mut all = Laid { device, kept: &mut passes.gradients, open, to };
                let to = Training { beside, all: &mut all, scale };
                let loss = passes::train(model, &pass, room, x, targets, to, &mut []);
                all.settle(0);
                loss
            }
            To::First => {
                let all = &mut Inside::<D>(D::take(&mut passes.gradients[0]));
                passes::train(model, &pass, room, x, targets, Training { beside, all, scale }, &mut [])
            }
            To::Windows(to, wire) => {
                let windows = about.windows.as_ref().expect("a gradient in windows");
                let memory = &mut passes.gradients[0];
                let mut all = BroughtWindows::new(&*device, memory, windows, (to, wire));
                let to = Training { beside, all: &mut all, scale };
                let loss = passes::train(model, &pass, room, x, targets, to, &mut []);
                all.finish()?;
                loss
            }
        };
        brought.map_or(Ok(()), Brought::finish)?;
        self.under_way = Some((loss, batch.rows));
        Ok(())
    }

    /// Gives the device an update with gradient 0. Without a weight, that of the losses of the step.
    fn give_update(&mut self, step: Step, weight: Option<f64>, samples: u64) -> Result<(), EngineError> {
        assert_eq!(step, self.host.applied.next(), "updates come in order, each once");
        let Self { device, model, passes, sections, optimizer, runs, losses, .. } = self;
        let facts = model.update_facts();
        let [parameters, mut stats, first, second, average] =
            sections.each_mut().map(|section| D::take(section));
        let stats_len = D::len_mut(&stats);
        let normaliser = weight.map_or(Normaliser::Losses(losses), Normaliser::Known);
        let settling = Settling { facts: &facts, clip_norm: optimizer.clip_norm, samples };
        let gradient = D::look(&passes.gradients[0]);
        let scalars =
            device.settle(&settling, normaliser, gradient, D::part_mut(&mut stats, 0..stats_len))?;
        losses.clear();
        if let Some(scalars) = scalars {
            let (grads, sums) = passes::parts::<D>(&facts, gradient);
            let buffers = Buffers::<D> { parameters, first, second, average };
            optimizer.apply(device, step, scalars.factors, runs, grads, buffers);
            if samples > 0 && facts.stats > 0 {
                let stats = D::part_mut(&mut stats, 0..facts.stats);
                device.blend(facts.momentum, scalars.stats, sums, stats);
            }
        }
        let found = self.device.send_findings()?;
        self.given.push_back(Given { step, found, weight });
        // The next step's batch may take its time.
        self.device.submit();
        (self.host.applied, self.is_home) = (step, false);
        Ok(())
    }

    /// Forward in evaluation mode; the outputs lie in the memory of passes.
    fn infer(
        &mut self,
        rows: usize,
        inputs: Inputs<'_>,
        brought: Option<&mut dyn BringsParameters>,
    ) -> Result<Rows, EngineError> {
        self.model.check_inputs(rows, inputs)?;
        let Self { about, device, model, seed, host, passes, sections, shards, .. } = self;
        let x = passes.feeds.inputs(device, inputs)?;
        let averages = about.state.averages;
        let finished = if averages { Section::Average } else { Section::Parameters };
        let pass = passes::pass(&*device, Mode::Evaluate, *seed, (host.applied, MicroBatch(0)), rows);
        let mut own = Whole::<D>(D::look(&sections[finished as usize]));
        let mut brought = brought.map(|by| {
            let held = shards.as_ref().expect("it has but its shards of the parameters");
            Brought::new((&*device, &mut passes.stage), held, finished, by)
        });
        let params: &mut dyn Parameters<D> = match &mut brought {
            Some(brought) => brought,
            None => &mut own,
        };
        let mut room = Room {
            params,
            stats: D::look(&sections[1]),
            saved: D::take(&mut passes.saved),
            scratch: D::take(&mut passes.scratch),
            outputs: D::take(&mut passes.outputs),
        };
        let rows = passes::forward(model, &pass, &mut room, x, None);
        drop(room);
        brought.map_or(Ok(()), Brought::finish)?;
        Ok(rows)
    }

    /// What the micro-batch came to that the device works on. *Blocks* for the device.
    fn under_way_figures(&mut self) -> BatchFigures {
        let (loss, rows) = self.under_way.take().expect("a micro-batch is under way");
        BatchFigures { sums: self.device.sums(loss), samples: rows as u64 }
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
        let shape = self.infer(batch.rows, batch.inputs, brought)?;
        let Self { device, model, passes, .. } = self;
        let targets = passes.feeds.targets(device, &batch.targets)?;
        let outputs = device.activations(D::look(&passes.outputs), model.outputs_len(batch.rows));
        let sums = device.sums(model.loss.of(&*device, shape, Outputs::Kept(outputs), targets, 1.0.into()));
        match batch.targets {
            Targets::Classes(classes) => {
                let best = &mut self.best[..shape.rows];
                device.arg_max(shape, outputs, best);
                counts.note_all(classes, best, shape.width);
            }
            Targets::Values(targets) => {
                let mut home = vec![0.0; model.outputs_len(batch.rows)];
                device.fetch_activations(&passes.outputs, &mut home)?;
                model.close_ranks(&mut home);
                counts.note_errors(targets, &home[..shape.rows * shape.width]);
            }
            Targets::Mixed(_) => unreachable!("the targets were checked"),
        }
        Ok(sums)
    }
}

impl<D: OwnMemory> Replica for DeviceReplica<D> {
    fn about(&self) -> &About {
        &self.about
    }

    fn prefetch(
        &mut self,
        group: &MicroBatchGroup,
        micro_batch: MicroBatch,
        batch: &BatchView<'_>,
    ) -> Result<(), EngineError> {
        assert_eq!(micro_batch, group.first(), "it takes one micro-batch at a time");
        self.model.check_batch(batch)?;
        self.passes.feeds.take_ahead(&self.device, (group.step, micro_batch), batch)
    }

    fn compute(
        &mut self,
        group: &MicroBatchGroup,
        batch: &BatchView<'_>,
        gradient: &mut dyn Gradient,
        figures: &mut [BatchFigures],
    ) -> Result<(), EngineError> {
        let [figures] = figures else { panic!("{group:?}, of a replica that takes one at a time") };
        expect_length("gradient", self.about.gradient_len(), gradient.elements())?;
        if self.about.windows.is_some() {
            self.pass((group.step, group.first()), batch, None, To::Windows(gradient, group.wire))?;
            *figures = self.figures();
            return Ok(());
        }
        self.pass((group.step, group.first()), batch, None, To::First)?;
        let to = gradient.part(0..self.about.gradient_len());
        self.device.fetch(&self.passes.gradients[0], to)?;
        group.wire.round(to);
        gradient.settle(0);
        self.device.submit();
        *figures = self.figures();
        Ok(())
    }

    fn add(&self, wire: Wire, from: &[f32], into: &mut [f32]) {
        assert_eq!(from.len(), into.len(), "gradients of one model");
        into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
        wire.round(into);
    }

    fn update(
        &mut self,
        step: Step,
        gradient: &[f32],
        weight: f64,
        samples: u64,
    ) -> Result<UpdateInfo, EngineError> {
        assert_eq!(gradient.len(), self.about.gradient_len(), "a reduced gradient has the layout's length");
        self.device.send(gradient, &mut self.passes.gradients[0])?;
        self.update_kept(step, weight, samples)
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
        self.infer(rows, inputs, None)?;
        let apart = self.model.outputs_len(rows);
        if apart == outputs.len() {
            return self.device.fetch_activations(&self.passes.outputs, outputs);
        }
        let mut home = vec![0.0; apart];
        self.device.fetch_activations(&self.passes.outputs, &mut home)?;
        self.model.close_ranks(&mut home);
        outputs.copy_from_slice(&home[..outputs.len()]);
        Ok(())
    }

    fn applied(&self) -> Step {
        self.host.applied
    }

    fn bring_state(&mut self) -> Result<&State, EngineError> {
        assert!(self.given.is_empty(), "an update is told before anybody looks at its state");
        self.make_first();
        if !self.is_home {
            for section in Section::ALL {
                if self.has_whole(section) {
                    let memory = &self.sections[section as usize];
                    self.device.fetch(memory, self.host.section_mut(section))?;
                }
            }
            self.is_home = true;
        }
        Ok(&self.host)
    }

    fn swap_state(&mut self, other: &mut State) -> Result<(), EngineError> {
        assert!(self.given.is_empty(), "an update is told before its state goes");
        self.make_first();
        self.host.assert_alike(other);
        std::mem::swap(&mut self.host, other);
        self.is_home = true;
        self.loss_scale = self.model.update_facts().loss_scale(self.host.section(Section::Stats));
        self.send_state()
    }

    fn keeping(&mut self) -> Option<&mut dyn Keeping> {
        Some(self)
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        // Others cannot read what lies on its device.
        None
    }

    fn sharding(&mut self) -> Option<&mut dyn Sharding> {
        self.shards.is_some().then_some(self as &mut dyn Sharding)
    }

    fn gathering(&mut self) -> Option<&mut dyn Gathering> {
        (!self.has_whole(Section::Parameters)).then_some(self as &mut dyn Gathering)
    }
}

#[cfg(test)]
mod sharding_tests;

#[cfg(test)]
#[path = "device_replica_tests.rs"]
mod tests;
