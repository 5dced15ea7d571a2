//! A replica on a device with memory of its own: its passes are made of stages, or by another program in this process.
//!
//! Batches go to the device and gradients come back: a rank's peers see gradients on the host, whatever made them. The
//! state stays on the device; the host has a copy of it that is brought up to date when somebody wants to look. All
//! memory is taken when the replica is made, but that of another program's passes.

mod brought;
mod by_muon;
mod by_program;
mod by_stages;
mod gathering;
mod keeping;
mod laid;
mod lent;
mod made_whole;
mod making;
mod sharding;
mod windows;

use crate::OwnMemory;
use crate::about::{About, BufferLengths};
use crate::batch::{BatchFigures, BatchView, EvaluationCounts, Inputs};
use crate::device::{LossSums, reborrow};
use crate::device_shards::DeviceShards;
use crate::error::EngineError;
use crate::external::{self, ExternalTensor};
use crate::flat::Flat;
use crate::frozen::Frozen;
use crate::gathering::{BringsParameters, Gathering};
use crate::gradient::{Gradient, MicroBatchGroup};
use crate::groups::{Grouping, Runs};
use crate::keeping::{Keeping, Kept};
use crate::layout::Section;
use crate::lends_memory::LendsMemory;
use crate::loss::expect_length;
use crate::loss_scale::{LossScale, LossScaling};
use crate::model::Model;
use crate::muon_update::MuonStep;
use crate::optimizer::{Buffers, Keeps, Optimizer, Rule};
use crate::passes;
use crate::program_on_device::ProgramOnDevice;
use crate::replica::Replica;
use crate::settling::{Findings, Normaliser, Settling, UpdateScalars};
use crate::sharding::Sharding;
use crate::sharing::Sharing;
use crate::stages::{Gradients, Inside, Parameters, Whole};
use crate::state::State;
use crate::update_facts::UpdateFacts;
use crate::update_info::UpdateInfo;
use crate::windows::Windows;
use brought::{Brought, Zeros};
use by_muon::ByMuon;
use by_program::ByProgram;
use by_stages::ByStages;
use dtrain_types::{DeviceMemory, MicroBatch, Seed, Step, Wire};
use laid::Laid;
use made_whole::MadeWhole;
use making::{MakesPasses, Reads, Writes};
use std::collections::VecDeque;
use windows::{BroughtWindows, Unwanted};

/// Where the gradient of a pass goes.
enum To<'a> {
    /// To one that is kept.
    Kept(Kept<'a>),
    /// To the first of them, as a whole.
    First,
    /// Window by window: to memory of the device that is lent, or to the host's, each rounded.
    Windows(&'a mut dyn Gradient, Wire),
}

/// What a device finds of a step.
enum Found<D: OwnMemory> {
    /// It is on its way.
    Pending(D::Pending),
    /// The host had to know.
    Known(Findings),
}

/// An update that the device has.
struct Given<D: OwnMemory> {
    step: Step,
    found: Found<D>,
    /// Its normaliser, where the host gave it.
    weight: Option<f64>,
}

/// Updates that may be given before the oldest is told.
const MOST_GIVEN: usize = 2;

/// A model with its state on a device of its own. See the file's comment.
pub struct DeviceReplica<D: OwnMemory> {
    about: About,
    // Memory first: it is freed before its device is gone.
    passes: Box<dyn MakesPasses<D>>,
    /// One, and those that are kept beside it.
    gradients: Vec<D::Floats>,
    /// For the parameters of one stage, where it has but its shards of them.
    stage: D::Floats,
    sections: [D::Floats; Section::COUNT],
    /// Parameters that stay as they are, apart.
    frozen: D::Floats,
    /// What it holds, where it holds no whole state.
    shards: Option<DeviceShards<D>>,
    /// What parameters begin with of which it is to have but its shards, as long as it was not told which.
    first: Option<Seed>,
    /// The host's memory for the sum of gradients that come in windows, between two steps.
    lent: Flat,
    /// The same of its device, where windows come there.
    lent_there: Option<(DeviceMemory, usize)>,
    facts: UpdateFacts,
    optimizer: Optimizer,
    runs: Runs,
    /// How Muon updates it, if it does.
    muon: Option<ByMuon<D>>,
    /// The host's copy of the state; its `applied` is that of the device.
    host: State,
    /// Whether the host's copy is that of the device.
    is_home: bool,
    /// What the loss is scaled by, if it is: as the device's state says.
    loss_scale: Option<LossScale>,
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
    /// *Errors*: options of the optimizer that make no sense, or do not fit the model; not enough memory.
    pub fn new(device: D, model: Model<D>, optimizer: Optimizer, seed: Seed) -> Result<Self, EngineError> {
        let frozen = model.layout().first_frozen(seed, |_| true);
        let mut replica = Self::begun(device, model, optimizer, seed)?;
        replica.set_frozen(frozen.into())?;
        Ok(replica)
    }

    /// The same, without the parameters that lie apart, until it is [given them](Replica::set_frozen).
    ///
    /// *Errors*: as [`DeviceReplica::new`].
    pub fn begun(device: D, model: Model<D>, optimizer: Optimizer, seed: Seed) -> Result<Self, EngineError> {
        let mut replica = Self::blank(device, model, optimizer, seed)?;
        replica.first = optimizer.held_sections()[Section::Parameters as usize].then_some(seed);
        replica.about.layout.initialise(seed, &mut replica.host);
        replica.take_up()?;
        Ok(replica)
    }

    /// The same with a state of zeros, and none of the parameters that lie apart until it is given them: to see what memory it takes. *Errors*: as [`DeviceReplica::new`].
    pub fn blank(device: D, model: Model<D>, optimizer: Optimizer, seed: Seed) -> Result<Self, EngineError> {
        optimizer.check()?;
        assert_eq!(model.group(), 1, "a device of its own takes one micro-batch at a time");
        let (plan, facts) = (model.plan(), model.update_facts());
        let windows = optimizer.keeps.in_windows().then(|| model.windows());
        let gathers = optimizer.held_sections()[Section::Parameters as usize];
        let longest_stage = windows.as_ref().map_or(0, |windows| windows.itinerary().longest());
        let mut layout = model.layout().clone();
        optimizer.complete(&mut layout);
        let state = optimizer.state(&layout);
        let outputs = ByStages::outputs_len(&device, &model);
        let lengths = BufferLengths {
            state,
            copy: match gathers {
                true => device.copy_len(longest_stage),
                false => device.copy_len(state.lengths()[0]) + device.copy_len(state.lengths()[4]),
            } + device.copy_len(layout.frozen_len()),
            frozen: layout.frozen_len(),
            gradient: windows.as_ref().map_or(model.layout().gradient_len(), Windows::memory),
            activations: plan.saved + outputs,
            scratch: plan.scratch + if model.reads_outputs() { outputs } else { 0 },
        };
        let about = About { layout, windows, ..About::of(&model, &lengths) };
        let passes = Box::new(ByStages::new(&device, model, seed)?);
        Self::around(device, passes, about, facts, optimizer)
    }

    /// A replica around these passes, with a state of zeros.
    fn around(
        device: D,
        passes: Box<dyn MakesPasses<D>>,
        about: About,
        facts: UpdateFacts,
        optimizer: Optimizer,
    ) -> Result<Self, EngineError> {
        let layout = &about.layout;
        let mut host = State::zeros(optimizer.first_state(layout));
        let gathers = optimizer.held_sections()[Section::Parameters as usize];
        if gathers {
            // They are made when it is told which.
            [Section::Parameters, Section::Average].into_iter().for_each(|section| host.empty(section));
        }
        let in_shards = matches!(optimizer.keeps, Keeps::Shards(_));
        let shards = in_shards.then(|| DeviceShards::none(&device)).transpose()?;
        let longest_stage = about.windows.as_ref().map_or(0, |windows| windows.itinerary().longest());
        let gradient = about.windows.as_ref().map_or(layout.gradient_len(), Windows::memory);
        let gradients = vec![device.floats(gradient)?];
        let stage = device.parameters(if gathers { longest_stage } else { 0 })?;
        // An average of parameters is evaluated as they are.
        let memory = |section| match section {
            Section::Parameters | Section::Average => device.parameters(host.section(section).len()),
            Section::First | Section::Second if in_shards => device.floats(0),
            Section::Stats | Section::First | Section::Second | Section::Frozen => {
                device.floats(host.section(section).len())
            }
        };
        let [p, s, first, second, average] = Section::ALL.map(memory);
        let frozen = device.parameters(layout.frozen_len())?;
        let muon = ByMuon::of(&device, &optimizer, layout)?;
        Ok(Self {
            passes,
            gradients,
            stage,
            sections: [p?, s?, first?, second?, average?],
            frozen,
            shards,
            lent: Flat::default(),
            lent_there: None,
            first: None,
            runs: optimizer.runs(layout),
            muon,
            is_home: true,
            under_way: None,
            losses: Vec::new(),
            given: VecDeque::with_capacity(MOST_GIVEN),
            loss_scale: facts.loss_scale(host.section(Section::Stats)),
            host,
            facts,
            optimizer,
            device,
            about,
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Makes the greatest pass there can be, over zeros, so that every operation has taken the memory that it wants and every
    /// kernel is there. Nothing of the state changes.
    ///
    /// *Blocks* until it is done. *Errors*: of the device; what its operations fail in, they tell by a panic. *Panics* if another program makes
    /// the passes.
    pub fn rehearse(&mut self) -> Result<(), EngineError> {
        let make = |passes: &mut dyn MakesPasses<D>, reads: Reads<'_, D>, writes: Writes<'_, D>| {
            Ok((passes.rehearse(reads, writes)?, 0))
        };
        match &self.about.windows {
            None => self.pass(make, None, To::Kept(Kept::alone(0)))?,
            Some(windows) => {
                let mut unwanted = Unwanted::of(self.about.gradient_len(), windows);
                let mut zeros = Zeros(vec![0.0; windows.itinerary().longest()]);
                let gathers = !self.has_whole(Section::Parameters);
                let brought = gathers.then_some(&mut zeros as &mut dyn BringsParameters);
                self.pass(make, brought, To::Windows(&mut unwanted, Wire::F32))?;
            }
        }
        self.device.submit();
        self.under_way_figures();
        if let Some(muon) = &mut self.muon {
            muon.rehearse(&self.device);
        }
        self.device.fetch(&self.gradients[0], &mut [0.0])
    }

    /// Whether all of this section lies on the device.
    fn has_whole(&self, section: Section) -> bool {
        !self.optimizer.held_sections()[section as usize]
    }

    /// Makes all first parameters in the host's copy, if they lie nowhere yet: somebody wants them whole.
    fn make_first(&mut self) {
        if let Some(seed) = self.first.take() {
            let layout = &self.about.layout;
            self.host = State::zeros(self.optimizer.first_state(layout));
            layout.initialise(seed, &mut self.host);
        }
    }

    /// Turns to the state that the host has.
    fn take_up(&mut self) -> Result<(), EngineError> {
        self.loss_scale = self.facts.loss_scale(self.host.section(Section::Stats));
        self.send_state()
    }

    fn send_state(&mut self) -> Result<(), EngineError> {
        for section in Section::ALL {
            if self.has_whole(section) {
                self.device.send(self.host.section(section), &mut self.sections[section as usize])?;
            }
        }
        self.loss_scale.map_or(Ok(()), |scale| self.device.set_loss_scale(scale.factor))
    }

    /// Gives the device the pass of a micro-batch, whose gradient goes there.
    fn train(
        &mut self,
        place: (Step, MicroBatch),
        batch: &BatchView<'_>,
        brought: Option<&mut dyn BringsParameters>,
        to: To<'_>,
    ) -> Result<(), EngineError> {
        let make = |passes: &mut dyn MakesPasses<D>, reads: Reads<'_, D>, writes: Writes<'_, D>| {
            Ok((passes.train(reads, place, batch, writes)?, batch.rows))
        };
        self.pass(make, brought, to)
    }

    /// Gives the device a pass, whose gradient goes there: what it comes to, and its rows, is under way.
    fn pass(
        &mut self,
        make: impl FnOnce(
            &mut dyn MakesPasses<D>,
            Reads<'_, D>,
            Writes<'_, D>,
        ) -> Result<(D::Sums, usize), EngineError>,
        brought: Option<&mut dyn BringsParameters>,
        to: To<'_>,
    ) -> Result<(), EngineError> {
        let Self {
            device, passes, gradients, stage, sections, frozen, about, loss_scale, shards, host, ..
        } = self;
        let (passes, stats) = (&mut **passes, D::look(&sections[1]));
        let mut own = Whole::<D>(D::look(&sections[0]));
        let mut brought = brought.map(|by| {
            let held = shards.as_ref().expect("it has but its shards of the parameters");
            Brought::new((&*device, stage), held, Section::Parameters, by)
        });
        let params: &mut dyn Parameters<D> = match &mut brought {
            Some(brought) => brought,
            None => &mut own,
        };
        let reads = Reads { device, applied: host.applied, params, frozen: D::look(frozen), stats };
        let scale = loss_scale.map(|_| device.loss_scale());
        let made = match to {
            To::Kept(to) => {
                let open = about.gradient_len();
                let mut all = Laid::new(&*device, gradients, open, to);
                let made = make(passes, reads, Writes { all: &mut all, scale })?;
                all.settle(0);
                made
            }
            To::First => {
                let all = &mut Inside::<D>(D::take(&mut gradients[0]));
                make(passes, reads, Writes { all, scale })?
            }
            To::Windows(to, wire) => {
                let windows = about.windows.as_ref().expect("a gradient in windows");
                let mut all = BroughtWindows::new(&*device, &mut gradients[0], windows, (to, wire));
                let made = make(passes, reads, Writes { all: &mut all, scale })?;
                all.finish()?;
                made
            }
        };
        brought.map_or(Ok(()), Brought::finish)?;
        self.under_way = Some(made);
        Ok(())
    }

    /// Gives the device an update with gradient 0. Without a weight, that of the losses of the step.
    fn give_update(&mut self, step: Step, weight: Option<f64>, samples: u64) -> Result<(), EngineError> {
        assert_eq!(step, self.host.applied.next(), "updates come in order, each once");
        let Self {
            device,
            facts,
            passes: by,
            gradients,
            sections,
            optimizer,
            runs,
            muon,
            losses,
            loss_scale,
            ..
        } = self;
        let facts = &*facts;
        let [mut parameters, mut stats, mut first, second, mut average] =
            sections.each_mut().map(|section| D::take(section));
        let stats_len = D::len_mut(&stats);
        let normaliser = weight.map_or(Normaliser::Losses(losses), Normaliser::Known);
        let settling = Settling { facts, clip_norm: optimizer.clip_norm, samples };
        let gradient = D::look(&gradients[0]);
        let scalars =
            device.settle(&settling, normaliser, gradient, D::part_mut(&mut stats, 0..stats_len))?;
        losses.clear();
        let mut known = None;
        if let Some(scalars) = scalars {
            let (grads, sums) = passes::parts::<D>(facts, gradient);
            if optimizer.rule == Rule::External {
                let of = MadeWhole { device: &*device, facts, optimizer, by: &mut **by };
                let buffers = [&mut parameters, &mut first, &mut average];
                known = Some(of.update(step, (weight, *loss_scale), grads, buffers)?);
            } else if let Some(muon) = muon {
                let (UpdateScalars { factors, .. }, kept) = (scalars, D::len_mut(&first));
                let update = MuonStep {
                    number: optimizer.updates_before + step.0,
                    lr: optimizer.schedule.lr(step),
                    scale: factors.gradient,
                    gradient: reborrow::<D>(grads),
                    parameters: D::part_mut(&mut parameters, 0..facts.parameters),
                    kept: D::part_mut(&mut first, 0..kept),
                };
                muon.make(device, update);
                if let Some(share) = optimizer.averages(step) {
                    device.blend(share, factors.parameters, D::read(&parameters), average);
                }
            } else {
                let buffers = Buffers::<D> { parameters, first, second, average };
                optimizer.apply(device, step, scalars.factors, runs, grads, buffers);
            }
            if samples > 0 && facts.stats > 0 {
                let stats = D::part_mut(&mut stats, 0..facts.stats);
                device.blend(facts.momentum, scalars.stats, sums, stats);
            }
        }
        let found = match known {
            Some(found) => Found::Known(found),
            None => Found::Pending(self.device.send_findings()?),
        };
        self.given.push_back(Given { step, found, weight });
        // The next step's batch may take its time.
        self.device.submit();
        (self.host.applied, self.is_home) = (step, false);
        Ok(())
    }

    /// What the micro-batch came to that the device works on. *Blocks* for the device.
    fn under_way_figures(&mut self) -> BatchFigures {
        let (loss, rows) = self.under_way.take().expect("a micro-batch is under way");
        BatchFigures { sums: self.device.sums(loss), samples: rows as u64 }
    }

    /// Has its passes read what a finished model has: the average, where there is one. Parameters are brought, if somebody brings them.
    fn look<R>(
        &mut self,
        brought: Option<&mut dyn BringsParameters>,
        by: impl FnOnce(&mut dyn MakesPasses<D>, Reads<'_, D>) -> Result<R, EngineError>,
    ) -> Result<R, EngineError> {
        let Self { about, device, host, passes, stage, sections, frozen, shards, .. } = self;
        let finished = if about.state.averages { Section::Average } else { Section::Parameters };
        let mut own = Whole::<D>(D::look(&sections[finished as usize]));
        let mut brought = brought.map(|by| {
            let held = shards.as_ref().expect("it has but its shards of the parameters");
            Brought::new((&*device, stage), held, finished, by)
        });
        let params: &mut dyn Parameters<D> = match &mut brought {
            Some(brought) => brought,
            None => &mut own,
        };
        let (frozen, stats) = (D::look(frozen), D::look(&sections[1]));
        let reads = Reads { device, applied: host.applied, params, frozen, stats };
        let seen = by(&mut **passes, reads);
        brought.map_or(Ok(()), Brought::finish)?;
        seen
    }
}

impl<D: LendsMemory> DeviceReplica<D> {
    /// A replica whose passes `program` makes, of these tensors, all of them zero.
    ///
    /// *Errors*: as [`DeviceReplica::new`]; groups of parameters that make no sense. *Panics* if it is to keep its state in windows.
    pub fn of_program(
        device: D,
        program: Box<dyn ProgramOnDevice>,
        tensors: &[ExternalTensor],
        scaling: Option<LossScaling>,
        (optimizer, grouping): (Optimizer, &Grouping),
    ) -> Result<Self, EngineError> {
        optimizer.check()?;
        assert!(!optimizer.keeps.in_windows(), "a program's gradients come as a whole");
        let (layout, facts) = external::shaped(tensors, scaling, (&optimizer, grouping))?;
        let lengths = BufferLengths {
            state: optimizer.state(&layout),
            frozen: 0,
            copy: 0,
            gradient: layout.gradient_len(),
            activations: 0,
            scratch: 0,
        };
        let about = About::of_program(layout, &lengths, program.metrics());
        let mut replica =
            Self::around(device, Box::new(ByProgram::new(program, facts)), about, facts, optimizer)?;
        if let Some(scaling) = scaling {
            replica.host.section_mut(Section::Stats)[facts.stats] = scaling.start;
        }
        Ok(replica)
    }

    /// Gives it its first parameters and running statistics. *Errors*: of the device. *Panics* if they have another length.
    pub fn begin_with(&mut self, parameters: &[f32], stats: &[f32]) -> Result<(), EngineError> {
        assert_eq!(stats.len(), self.facts.stats, "running statistics of another model");
        self.host.section_mut(Section::Parameters).copy_from_slice(parameters);
        self.host.section_mut(Section::Stats)[..stats.len()].copy_from_slice(stats);
        self.host.begin_average();
        self.take_up()
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
        self.passes.prefetch(&self.device, (group.step, micro_batch), batch)
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
            self.train((group.step, group.first()), batch, None, To::Windows(gradient, group.wire))?;
            *figures = self.figures();
            return Ok(());
        }
        self.train((group.step, group.first()), batch, None, To::First)?;
        let to = gradient.part(0..self.about.gradient_len());
        self.device.fetch(&self.gradients[0], to)?;
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
        self.device.send(gradient, &mut self.gradients[0])?;
        self.update_kept(step, weight, samples)
    }

    fn evaluate(
        &mut self,
        batch: &BatchView<'_>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        self.look(None, |passes, reads| passes.evaluate(reads, batch, counts))
    }

    fn predict(&mut self, rows: usize, inputs: Inputs<'_>, outputs: &mut [f32]) -> Result<(), EngineError> {
        self.look(None, |passes, reads| passes.predict(reads, rows, inputs, outputs))
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
        self.take_up()
    }

    fn set_frozen(&mut self, frozen: Frozen) -> Result<(), EngineError> {
        assert_eq!(frozen.len(), self.about.layout.frozen_len(), "parameters of another model");
        self.device.send(&frozen, &mut self.frozen)
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
mod on_cpu;
#[cfg(test)]
mod tests;
