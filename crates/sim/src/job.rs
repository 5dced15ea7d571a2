//! The training that is simulated: a tiny model on the real CPU engine, and what a plain single process makes of it.
//!
//! One engine computes for all simulated ranks: it is handed the state of a rank, works on it and gives it back. Ranks that hold shards have a
//! replica each, as the runtime's do. This file does not know ranks, messages or time.

use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_engine::models::{MlpOptions, mlp};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    BatchFigures, BatchView, EvaluationCounts, Inputs, Keeps, Loss, LrSchedule as Rates, Model, ModelReplica,
    Optimizer, Replica, Rule, Section, State, StateShape, Targets, UpdateRule, micro_batch,
};
use dtrain_protocol::{Digest, Every, Schedule, StopFlag};
use dtrain_types::{
    BatchPlan, Key, Merger, MicroBatch, MicroRange, Seed, ShardLevel, Site, Step, StepPlan, Trailer,
};
use std::collections::{BTreeMap, BTreeSet};

const FEATURES: usize = 6;
const HIDDEN: usize = 8;
const CLASSES: usize = 3;
/// Rows of a micro-batch.
const ROWS: u32 = 3;
/// Micro-batches of a full step.
pub const MICRO_BATCHES: u32 = 16;
/// Micro-batches of a validation.
pub const VALIDATION: u32 = 5;
/// Neither a whole number of steps nor of micro-batches: the last step of an epoch is shorter than the others.
const SAMPLES: u64 = 443;
/// The same, and the last step has seven micro-batches: no power of two, so that sums wait for its end.
const ODD_SAMPLES: u64 = 452;
/// How often a checkpoint is due: with every validation, and between two of them. *Units*: steps.
const CHECKPOINT_EVERY: u64 = 5;

/// What is trained, and for how long.
#[derive(Clone, Debug)]
pub struct Job {
    /// Which samples are in which micro-batch.
    pub plan: BatchPlan,
    /// What is due after which step.
    pub schedule: Schedule,
    seed: Seed,
}

impl Job {
    /// A job of so many steps. *Panics* if that is none.
    #[must_use]
    pub fn new(steps: u64) -> Self {
        Self::over(SAMPLES, steps)
    }

    /// The same, some of whose steps have an odd number of micro-batches. *Panics* as [`Job::new`].
    #[must_use]
    pub fn with_odd_steps(steps: u64) -> Self {
        Self::over(ODD_SAMPLES, steps)
    }

    fn over(samples: u64, steps: u64) -> Self {
        assert!(steps > 0, "a run has a step");
        let seed = Seed(7);
        let plan = BatchPlan::new(seed, samples, MICRO_BATCHES * ROWS, ROWS).expect("sizes that fit");
        let schedule = Schedule {
            last: Step(steps),
            steps_per_epoch: plan.steps_per_epoch(),
            checkpoint: Every::Steps(CHECKPOINT_EVERY),
            validation: Every::Epochs(1),
            validation_micro_batches: VALIDATION,
            verify: 1,
        };
        Self { plan, schedule, seed }
    }

    /// The numbers of micro-batches that a step can have.
    #[must_use]
    pub fn counts(&self) -> [u32; 2] {
        [MICRO_BATCHES, self.plan.step(Step(self.plan.steps_per_epoch())).micro_batches]
    }
}

/// The engine, lent to one rank after the other.
pub struct Engine {
    job: Job,
    replica: ModelReplica<Cpu>,
    initial: State,
    inputs: Vec<f32>,
    targets: Vec<u32>,
}

impl Engine {
    /// An engine for `job`.
    #[must_use]
    pub fn new(job: &Job) -> Self {
        let replica = replica(job, Keeps::All);
        let initial = replica.state().clone();
        Self { job: job.clone(), replica, initial, inputs: Vec::new(), targets: Vec::new() }
    }

    /// A replica of its own for a rank that holds shards, at this level.
    #[must_use]
    pub fn replica(&self, level: ShardLevel) -> ModelReplica<Cpu> {
        replica(&self.job, Keeps::Shards(level))
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Elements of a gradient.
    #[must_use]
    pub fn gradient_len(&self) -> usize {
        self.replica.about().gradient_len()
    }

    /// The shape of a state.
    #[must_use]
    pub fn state_shape(&self) -> StateShape {
        self.replica.about().state
    }

    /// By what rule states are updated.
    #[must_use]
    pub fn update_rule(&self) -> UpdateRule<'_, Cpu> {
        self.replica.update_rule()
    }

    /// A fresh state: step 0.
    #[must_use]
    pub fn initial(&self) -> State {
        self.initial.clone()
    }

    /// Fresh memory for a state.
    #[must_use]
    pub fn blank(&self) -> State {
        State::zeros(self.replica.about().state)
    }

    /// Fills `gradient` with that of one micro-batch; gives its trailer.
    pub fn micro_batch(
        &mut self,
        state: &mut State,
        step: &StepPlan,
        micro: MicroBatch,
        gradient: &mut [f32],
    ) -> Trailer {
        let check = self.read_micro_batch(step, micro);
        self.swap(state);
        let batch = batch(&self.inputs, &self.targets);
        let figures = micro_batch(&mut self.replica, step.step, micro, &batch, gradient);
        self.swap(state);
        figures.expect("a batch that fits").trailer(micro, check)
    }

    /// Applies a reduced gradient; gives the learning rate and the norm.
    pub fn update(
        &mut self,
        state: &mut State,
        step: Step,
        gradient: &[f32],
        trailer: &Trailer,
    ) -> (f64, f64) {
        self.swap(state);
        let info = self.replica.update(step, gradient, trailer.weight, trailer.samples).expect("finite");
        self.swap(state);
        (info.lr, info.gradient_norm)
    }

    /// One validation micro-batch.
    pub fn evaluate(
        &mut self,
        state: &mut State,
        micro: MicroBatch,
        counts: &mut EvaluationCounts,
    ) -> Trailer {
        self.read_validation(micro);
        self.swap(state);
        let batch = batch(&self.inputs, &self.targets);
        let sums = self.replica.evaluate(&batch, counts).expect("a batch that fits");
        let samples = batch.rows as u64;
        self.swap(state);
        BatchFigures { sums, samples }.trailer(micro, 0)
    }

    /// [`Engine::micro_batch`], by a replica with a state of its own.
    pub fn micro_batch_by(
        &mut self,
        replica: &mut dyn Replica,
        step: &StepPlan,
        micro: MicroBatch,
        gradient: &mut [f32],
    ) -> Trailer {
        let (batch, check) = self.batch(step, micro);
        let figures = micro_batch(replica, step.step, micro, &batch, gradient);
        figures.expect("a batch that fits").trailer(micro, check)
    }

    /// [`Engine::evaluate`], by a replica with a state of its own.
    pub fn evaluate_by(
        &mut self,
        replica: &mut dyn Replica,
        micro: MicroBatch,
        counts: &mut EvaluationCounts,
    ) -> Trailer {
        let batch = self.validation_batch(micro);
        let sums = replica.evaluate(&batch, counts).expect("a batch that fits");
        BatchFigures { sums, samples: batch.rows as u64 }.trailer(micro, 0)
    }

    /// The samples of a micro-batch, and the ledger's sum of them.
    pub fn batch(&mut self, step: &StepPlan, micro: MicroBatch) -> (BatchView<'_>, u64) {
        let check = self.read_micro_batch(step, micro);
        (batch(&self.inputs, &self.targets), check)
    }

    /// The samples of a micro-batch of a validation.
    pub fn validation_batch(&mut self, micro: MicroBatch) -> BatchView<'_> {
        self.read_validation(micro);
        batch(&self.inputs, &self.targets)
    }

    fn read_micro_batch(&mut self, step: &StepPlan, micro: MicroBatch) -> u64 {
        let samples: Vec<u64> = self.job.plan.micro_batch_samples(step, micro).collect();
        self.read(&samples);
        samples.iter().fold(0u64, |sum, s| sum.wrapping_add(self.job.plan.check(step, *s)))
    }

    fn read_validation(&mut self, micro: MicroBatch) {
        let rows = (0..u64::from(ROWS)).map(|row| 100_000 + u64::from(micro.0 * ROWS) + row);
        self.read(&rows.collect::<Vec<u64>>());
    }

    fn swap(&mut self, state: &mut State) {
        self.replica.swap_state(state).expect("memory of the host");
    }

    /// The samples of the made-up data set: noise, and a class that follows from it.
    fn read(&mut self, samples: &[u64]) {
        self.inputs.clear();
        self.targets.clear();
        for sample in samples {
            let key = Key::new(self.job.seed, Step(*sample), MicroBatch(0), Site(0x0053_494D));
            let at = self.inputs.len();
            self.inputs.extend((0..FEATURES as u32).map(|i| key.unit_f32(i) * 2.0 - 1.0));
            let x = &self.inputs[at..];
            let class = if x[0] + x[1] > 0.3 {
                0
            } else if x[2] > x[3] {
                1
            } else {
                2
            };
            self.targets.push(class);
        }
    }
}

/// A replica of the model, which keeps so much.
fn replica(job: &Job, keeps: Keeps) -> ModelReplica<Cpu> {
    // The plain instruction set, so that a seed replays on every CPU.
    let cpu = Cpu::new(CpuOptions { isa: Isa::Scalar, threads: 1 }).expect("every CPU has it");
    // Batch norm, so that the state has running statistics.
    let options = MlpOptions { hidden: vec![HIDDEN], batch_norm: true, ..MlpOptions::default() };
    let chain = mlp(&options, CLASSES).expect("options that make sense");
    let input = Shape::Values { rows: ROWS as usize, dims: vec![FEATURES] };
    let model = Model::new(&cpu, chain, input, Loss::cross_entropy()).expect("a model that fits");
    let optimizer = Optimizer {
        clip_norm: Some(1.0),
        ema: Some(0.9),
        keeps,
        ..Optimizer::new(Rule::adamw(), Rates::constant(0.01))
    };
    ModelReplica::new(cpu, model, optimizer, job.seed).expect("options that make sense")
}

fn batch<'a>(inputs: &'a [f32], targets: &'a [u32]) -> BatchView<'a> {
    BatchView { rows: targets.len(), inputs: Inputs::Values(inputs), targets: Targets::Classes(targets) }
}

/// Counts that are sent up, flat.
#[must_use]
pub fn flatten(counts: &EvaluationCounts) -> Vec<u64> {
    [&counts.true_positive, &counts.false_positive, &counts.false_negative]
        .into_iter()
        .flatten()
        .copied()
        .collect()
}

/// Counts of zero for the job's classes.
#[must_use]
pub fn no_counts() -> EvaluationCounts {
    EvaluationCounts::new(CLASSES)
}

/// All floats of a state, one section after the other.
#[must_use]
pub fn flat(state: &State) -> Vec<f32> {
    Section::ALL.iter().flat_map(|section| state.section(*section).iter().copied()).collect()
}

/// The inverse of [`flat`]. *Panics* if the lengths differ.
pub fn unflatten(floats: &[f32], applied: Step, into: &mut State) {
    let mut from = 0;
    for section in into.sections_mut() {
        section.copy_from_slice(&floats[from..from + section.len()]);
        from += section.len();
    }
    assert_eq!(from, floats.len(), "a state of another model");
    into.applied = applied;
}

/// What one process that nothing happens to makes of a job: the truth that every simulation is judged by.
#[derive(Debug)]
pub struct Oracle {
    /// By step; entry 0 is the initial state.
    states: Vec<Expected>,
    validations: BTreeMap<Step, (Trailer, Vec<u64>)>,
    /// Steps after which a checkpoint is due.
    saves: BTreeSet<Step>,
}

/// What is expected of one step.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The state after it.
    pub state: State,
    /// Digest of all of it.
    pub state_digest: Digest,
    /// Digest of what every rank has of it, where they hold shards.
    pub common_digest: Digest,
    /// The same, where they hold shards of the parameters, too.
    pub bare_digest: Digest,
    /// Digest for people.
    pub digest: Digest,
    /// The reduced gradient, in tree order.
    pub gradient: Vec<f32>,
    /// What the ranks agree on.
    pub trailer: Trailer,
}

impl Expected {
    /// Whether a rank that says this digest has the state: all of it, or all that every rank has.
    #[must_use]
    pub fn is(&self, digest: Digest) -> bool {
        [self.state_digest, self.common_digest, self.bare_digest].contains(&digest)
    }
}

impl Oracle {
    /// Trains alone.
    #[must_use]
    pub fn new(engine: &mut Engine) -> Self {
        let mut state = engine.initial();
        let job = engine.job().clone();
        let mut states = vec![expected(&state, Vec::new(), Trailer::EMPTY)];
        let (mut validations, mut saves) = (BTreeMap::new(), BTreeSet::new());
        for step in (1..=job.schedule.last.0).map(Step) {
            let plan = job.plan.step(step);
            let whole = MicroRange { lo: 0, hi: plan.micro_batches };
            let (gradient, trailer) = sum(engine, &mut state, &plan, whole);
            engine.update(&mut state, step, &gradient, &trailer);
            states.push(expected(&state, gradient, trailer));
            let due = job.schedule.after(step, StopFlag::default());
            if due.checkpoint {
                saves.insert(step);
            }
            if due.validate {
                let mut counts = no_counts();
                let mut leaves = Vec::new();
                let mut merger = Merger::default();
                leaves.resize(Merger::buffers(VALIDATION), Trailer::EMPTY);
                for m in 0..VALIDATION {
                    leaves[merger.next_buffer()] = engine.evaluate(&mut state, MicroBatch(m), &mut counts);
                    merger.push(|l, r| leaves[l] = leaves[l].merge(&leaves[r]));
                }
                merger.finish(|l, r| leaves[l] = leaves[l].merge(&leaves[r]));
                validations.insert(step, (leaves[0], flatten(&counts)));
            }
        }
        Self { states, validations, saves }
    }

    /// What is expected of `step`; none beyond the last.
    #[must_use]
    pub fn at(&self, step: Step) -> Option<&Expected> {
        self.states.get(usize::try_from(step.0).ok()?)
    }

    /// The last step that is validated; 0 is none.
    #[must_use]
    pub fn last_validated(&self) -> Step {
        self.validated_by(Step(u64::MAX))
    }

    /// The newest step up to this one that is validated; 0 is none.
    #[must_use]
    pub fn validated_by(&self, step: Step) -> Step {
        self.validations.range(..=step).next_back().map_or(Step(0), |(at, _)| *at)
    }

    /// Whether a checkpoint is due after a step in every run.
    #[must_use]
    pub fn saves(&self, step: Step) -> bool {
        self.saves.contains(&step)
    }

    /// The result of the validation after a step.
    #[must_use]
    pub fn validation(&self, step: Step) -> Option<&(Trailer, Vec<u64>)> {
        self.validations.get(&step)
    }
}

/// What every rank has of a state, where nobody has more than shards of the parameters.
fn bare(state: &State) -> State {
    let stats = state.section(Section::Stats);
    let mut bare = State::zeros(StateShape { stats: stats.len(), ..StateShape::default() });
    bare.section_mut(Section::Stats).copy_from_slice(stats);
    bare.applied = state.applied;
    bare
}

fn expected(state: &State, gradient: Vec<f32>, trailer: Trailer) -> Expected {
    Expected {
        state: state.clone(),
        state_digest: Digest(state.state_digest()),
        common_digest: Digest(state.common_digest()),
        bare_digest: Digest(bare(state).common_digest()),
        digest: Digest(state.digest()),
        gradient,
        trailer,
    }
}

/// The plain sum of a range of micro-batches by recursion, written apart from the code that is tested.
fn sum(engine: &mut Engine, state: &mut State, plan: &StepPlan, range: MicroRange) -> (Vec<f32>, Trailer) {
    if range.len() == 1 {
        let mut gradient = vec![0.0; engine.gradient_len()];
        let trailer = engine.micro_batch(state, plan, MicroBatch(range.lo), &mut gradient);
        return (gradient, trailer);
    }
    let middle = range.lo + range.len().next_power_of_two() / 2;
    let (mut left, a) = sum(engine, state, plan, MicroRange { hi: middle, ..range });
    let (right, b) = sum(engine, state, plan, MicroRange { lo: middle, ..range });
    left.iter_mut().zip(&right).for_each(|(l, r)| *l += r);
    (left, a.merge(&b))
}
