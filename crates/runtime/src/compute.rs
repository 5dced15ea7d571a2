//! The training loop: what a rank's compute thread does, step by step.
//!
//! It obeys orders of the rank actor, talks to its peers only through the backend, and tells the actor what it has
//! done. It does not know the supervisor, the control link, or why it is told something.
//!
//! Nothing is allocated inside a step after the first few: roots are cut once per step length, trailers and
//! gradients live in buffers that stay.

mod load;

use crate::batches::Batches;
use crate::broke::{Broke, data, engine, off, panic_text, told_to_leave};
use crate::controls::Controls;
use crate::data_plane::{DataPlane, step_counts, summed_counts};
use crate::figures::{flatten, lend};
use crate::kept_state;
use crate::news::{AfterStep, News, NewsSender};
use crate::passes::Passes;
use crate::profiler::Profiler;
use crate::recipe::ComputeParts;
use crate::saver::Saver;
use crate::sharded_state;
use crate::shards::Shards;
use crate::shared_state;
use dtrain_checkpoint::TensorSpec;
use dtrain_collective::{Assignment, Backend, Op, Sequence};
use dtrain_data::{Loader, LoaderPlan, TargetSpec};
use dtrain_engine::device::LossSums;
use dtrain_engine::{BatchFigures, EngineError, EvaluationCounts, StepOutcome, UpdateInfo};
use dtrain_protocol::{
    Activity, Agenda, Bootstrap, CheckpointId, Failure, Finished, Left, Membership, Pending, ResumePoint,
    StepRecord, StopFlag, Task, ValidationPart,
};
use dtrain_telemetry::profile::Doing;
use dtrain_types::{
    Generation, Incarnation, MemberId, Merger, MicroBatch, NodeId, Rank, Step, StepPlan, Trailer, cut_evenly,
    roots,
};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// What the compute thread may be told to do.
pub enum Order {
    /// Take this backend and meet all peers on it.
    Build {
        /// The data plane of the generation.
        backend: Box<dyn Backend>,
        /// Who takes part.
        membership: Assignment,
        /// The ranks that see the run folder.
        writers: Vec<Rank>,
        /// The members, which say where each rank is.
        members: Membership,
    },
    /// Take this state, or lend it to those who copy it.
    Load {
        /// The generation that starts with it.
        generation: Generation,
        /// Which state, and who has it.
        resume_point: ResumePoint,
    },
    /// Make steps.
    Run {
        /// The first one.
        from_step: Step,
        /// What is due again before it.
        pending: Pending,
    },
    /// Every generation below this one is over: say where the state stands.
    Leave {
        /// The one that is formed.
        generation: Generation,
        /// What this rank made, as rank 0, for all to meet: it is told with the state.
        bootstrap: Option<Bootstrap>,
    },
}

/// The compute thread of one rank.
pub struct Compute {
    parts: ComputeParts,
    controls: Arc<Controls>,
    news: NewsSender,
    saver: Saver,
    specs: Arc<[TensorSpec]>,
    plane: Option<DataPlane>,
    /// The generation in hand; failures are told in its name.
    generation: Generation,
    /// Whether the replica holds a state of the run.
    has_state: bool,
    /// What comes next.
    agenda: Agenda,
    profiler: Profiler,
}

impl Compute {
    /// A compute thread's work, not begun.
    pub fn new(
        parts: ComputeParts,
        life: (MemberId, Incarnation),
        controls: Arc<Controls>,
        news: NewsSender,
    ) -> Self {
        let specs: Arc<[TensorSpec]> = crate::state_files::specs(parts.replica.as_ref()).into();
        let saver =
            Saver::start(parts.run_dir.clone(), Arc::clone(&specs), news.clone(), Arc::clone(&controls));
        let profiler = Profiler::new(parts.profile, parts.run_dir.clone(), life);
        let (plane, generation, agenda) = (None, Generation(0), Agenda::new(parts.schedule));
        Self { parts, controls, news, saver, specs, plane, generation, has_state: false, agenda, profiler }
    }

    /// Obeys until the orders end. What goes wrong is told, and the next order is awaited.
    pub fn obey(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.carry_out(order)));
            self.controls.set_activity(Activity::Idle);
            let generation = self.generation;
            match done {
                Ok(Ok(())) => {}
                Ok(Err(Broke::Off(why))) => {
                    self.plane = None;
                    self.news.tell(News::Broken { generation, why, unreachable: Vec::new() });
                }
                Ok(Err(Broke::Failed(failure))) => self.news.tell(News::Failed(generation, failure)),
                Err(panic) => {
                    self.news.tell(News::Failed(generation, Failure::Panic(panic_text(panic.as_ref()))))
                }
            }
        }
        self.profiler.write();
    }

    fn carry_out(&mut self, order: Order) -> Result<(), Broke> {
        self.controls.set_activity(Activity::Preparing);
        match order {
            Order::Build { backend, membership, writers, members } => {
                self.build(backend, membership, writers)?;
                self.share_out(&members)?;
                self.news.tell(News::Built(self.generation));
                Ok(())
            }
            Order::Load { generation, resume_point } => self.load(generation, &resume_point),
            Order::Run { from_step, pending } => self.train(from_step, pending),
            Order::Leave { generation, bootstrap } => {
                self.plane = None;
                shared_state::close(self.parts.replica.as_mut());
                let applied = self.has_state.then(|| self.parts.replica.applied());
                if let Some(record) = self.agenda.handle_left(applied) {
                    let info = kept_state::settle(self.parts.replica.as_mut()).map_err(engine)?;
                    self.news.step(told(record, &info), AfterStep::Pause);
                }
                self.news.tell(News::Left(Left { generation, applied, bootstrap }));
                Ok(())
            }
        }
    }

    fn build(
        &mut self,
        mut backend: Box<dyn Backend>,
        membership: Assignment,
        writers: Vec<Rank>,
    ) -> Result<(), Broke> {
        self.generation = membership.generation;
        self.news.enter(membership.rank);
        let about = self.parts.replica.about();
        backend.prepare(&summed_counts(about, self.parts.feed.plan()));
        backend.start(Sequence(0), &Op::Barrier).and_then(|()| backend.finish(Sequence(0))).map_err(off)?;
        tracing::debug!(backend = backend.describe(), "reached all peers");
        let (counts, group) = (step_counts(self.parts.feed.plan()), about.group as usize);
        self.plane = Some(DataPlane::new(backend, membership, writers, &counts, self.parts.mode, group));
        Ok(())
    }

    /// Says who holds which shards in this generation, where ranks hold shards.
    ///
    /// *Errors*: of the device.
    fn share_out(&mut self, members: &Membership) -> Result<(), Broke> {
        let parameters = self.parts.replica.about().layout.parameters;
        let nodes: Vec<NodeId> = members.participants.iter().map(|participant| participant.node).collect();
        let redundancy = self.parts.redundancy;
        let redundancy = redundancy.map(|all| all.saturating_sub(members.unmirrored).max(1));
        if let Some(plane) = &mut self.plane {
            let rank = plane.membership.rank;
            let slot = plane.geometry.len;
            plane.shards =
                redundancy.map(|redundancy| Shards::new(rank, &nodes, redundancy, parameters, slot));
            if plane.shards.is_some() {
                sharded_state::prepare(plane, &mut self.parts)?;
            }
        }
        Ok(())
    }

    /// The loop of a generation. `from_step` may lie past the last step: then only what is pending is left to do.
    fn train(&mut self, from_step: Step, pending: Pending) -> Result<(), Broke> {
        let Some(mut plane) = self.plane.take() else {
            return Err(Broke::Off("the data plane is gone".into()));
        };
        // Behind the last copy of a state, which goes through the slots.
        plane.choose_gradients(&mut self.parts);
        let until = Some(self.parts.schedule.last);
        let (range, every) = plane.own_micro_batches();
        let share = LoaderPlan { range, every, from: from_step, until };
        let (feed, workers, group) = (
            self.parts.feed.clone(),
            self.parts.workers,
            self.parts.replica.about().group.min(share.range.len()),
        );
        let loader = Loader::reading_ahead(feed, share, workers, group as usize).map_err(data)?;
        self.profiler.reserve(share.range.len() as usize);
        let holder = kept_state::holder(self.parts.replica.as_mut());
        self.agenda.begin(holder, from_step, pending);
        let batches = Batches::of(loader);
        let mut work = Work { plane, batches, step: None, given: None, told: None, compute: self };
        let made = work.make_steps();
        // However they ended: what was given to the device is part of the state, and the sum of an open step may be what others go on with.
        kept_state::keep_sum(&mut work.plane, work.compute.parts.replica.as_mut());
        work.tell_given(AfterStep::Pause)?;
        made?;
        self.profiler.end();
        Ok(())
    }

    /// What looks at all of a state of which each rank has some shards is a collective: whoever waits in it waits for somebody who does not.
    fn looks_at_all(&mut self) {
        if self.parts.replica.sharding().is_some() {
            self.controls.set_activity(Activity::Reducing);
        }
    }

    /// The last words of a run that is over.
    fn finish(&mut self, plane: &mut DataPlane) -> Result<(), Broke> {
        self.profiler.end();
        // Before the last word, so that whoever hears it finds the part.
        self.profiler.write();
        self.looks_at_all();
        let replica = self.parts.replica.as_mut();
        let device_peak = replica.keeping().map(|keeper| keeper.peak_memory());
        let (digest, state_digest) = kept_state::digests(plane, replica)?;
        let finished = Finished { device_peak, step: replica.applied(), digest, state_digest };
        self.news.tell(News::Finished(self.generation, finished));
        Ok(())
    }
}

/// A compute thread that is making steps.
struct Work<'a> {
    plane: DataPlane,
    batches: Batches,
    step: Option<StepInHand>,
    /// The step before it, if the device has it and nobody was told what it came to.
    given: Option<StepInHand>,
    /// When a step was told last whose end nobody waited for.
    told: Option<Instant>,
    compute: &'a mut Compute,
}

/// A step as far as it is made.
#[derive(Clone, Copy)]
struct StepInHand {
    plan: StepPlan,
    begun: Instant,
    /// How long it waited for others.
    waited: Duration,
    /// The reduced one, when it is there.
    trailer: Trailer,
    /// What the update comes to, when that is known.
    info: Option<UpdateInfo>,
}

impl StepInHand {
    /// What is told of it, which nobody worked on before `told`.
    fn record(&self, generation: Generation, told: Option<Instant>) -> StepRecord {
        let took = self.begun.max(told.unwrap_or(self.begun)).elapsed();
        StepRecord {
            generation,
            step: self.plan.step,
            epoch: self.plan.epoch,
            trailer: self.trailer,
            seconds: took.as_secs_f64(),
            busy: took.saturating_sub(self.waited).as_secs_f64(),
            lr: 0.0,
            gradient_norm: 0.0,
        }
    }
}

/// Why there is a step in hand.
const BEGUN: &str = "the parts of a step follow its computation";

impl Work<'_> {
    /// One task after the other, as long as there are some.
    fn make_steps(&mut self) -> Result<(), Broke> {
        while let Some(task) = self.compute.agenda.next() {
            self.await_turn(task)?;
            self.compute.agenda.take();
            self.carry_out(task)?;
        }
        Ok(())
    }

    fn passes(&mut self) -> Passes<'_> {
        let Self { plane, batches, compute: Compute { parts, controls, profiler, .. }, .. } = self;
        Passes { plane, batches, parts, controls, profiler }
    }

    /// *Blocks* until a task is ready. *Errors*: the generation is to be left before.
    fn await_turn(&mut self, task: Task) -> Result<(), Broke> {
        if !self.compute.agenda.is_ready(&self.compute.controls.signals()) {
            self.tell_given(AfterStep::Pause)?;
        }
        let Compute { controls, profiler, agenda, generation, .. } = &mut *self.compute;
        match task {
            Task::Compute(step) => {
                profiler.end();
                profiler.begin(step, &self.plane.membership);
            }
            Task::AwaitValidation(_) => controls.set_activity(Activity::Reducing),
            Task::Checkpoint(_) => controls.set_activity(Activity::Saving),
            Task::UpdateShare(_) if !agenda.is_ready(&controls.signals()) => {
                controls.set_activity(Activity::Saving);
            }
            _ => {}
        }
        if !controls.wait_until(*generation, |signals| agenda.is_ready(signals)) {
            return Err(told_to_leave());
        }
        match task {
            Task::Compute(_) => profiler.lap(Doing::Held),
            Task::AwaitValidation(_) => profiler.lap(Doing::Validation),
            _ => {}
        }
        Ok(())
    }

    fn carry_out(&mut self, task: Task) -> Result<(), Broke> {
        match task {
            Task::Compute(step) => {
                let plan = self.compute.parts.feed.plan().step(step);
                let (begun, waited, trailer, info) = (Instant::now(), Duration::ZERO, Trailer::EMPTY, None);
                self.step = Some(StepInHand { plan, begun, waited, trailer, info });
                let waited = self.passes().compute(&plan)?;
                self.step.as_mut().expect(BEGUN).waited += waited;
                Ok(())
            }
            Task::Reduce(step) => {
                let plan = self.in_hand().plan;
                let (trailer, waited) = self.passes().reduce(&plan)?;
                let step_in_hand = self.step.as_mut().expect(BEGUN);
                step_in_hand.trailer = trailer;
                step_in_hand.waited += waited;
                let reduced = self.compute.agenda.handle_reduced(&trailer);
                reduced.map_err(|at| Failure::NonFinite { step, micro_batch: Some(at) }.into())
            }
            Task::Update(step) => {
                let trailer = self.in_hand().trailer;
                match self.passes().update(step, &trailer) {
                    Ok(None) => self.is_given(),
                    Ok(Some(info)) => {
                        self.settled(step, Ok(info))?;
                        self.committed();
                        Ok(())
                    }
                    Err(error) => self.settled(step, Err(error)),
                }
            }
            Task::Measure(step) => {
                let (trailer, record) =
                    (self.in_hand().trailer, self.in_hand().record(self.compute.generation, None));
                let Self { plane, compute, .. } = self;
                compute.controls.set_activity(Activity::Reducing);
                compute.agenda.handle_measured(record);
                let replica = compute.parts.replica.as_mut();
                Ok(kept_state::measure(plane, replica, step, &trailer).map_err(engine)?)
            }
            Task::Agree(_) => {
                let waited = sharded_state::agree(&mut self.plane, self.compute.parts.replica.as_mut())?;
                self.step.as_mut().expect(BEGUN).waited += waited;
                Ok(())
            }
            Task::Meet(_) => {
                let waited = shared_state::meet(&mut self.plane)?;
                self.step.as_mut().expect(BEGUN).waited += waited;
                Ok(())
            }
            Task::UpdateShare(step) => {
                let settled = kept_state::settle(self.compute.parts.replica.as_mut());
                self.settled(step, settled)?;
                let replica = self.compute.parts.replica.as_mut();
                kept_state::update_share(&mut self.plane, replica)
            }
            Task::Gather(_) => {
                let waited = sharded_state::gather(&mut self.plane, self.compute.parts.replica.as_mut())?;
                self.step.as_mut().expect(BEGUN).waited += waited;
                Ok(())
            }
            Task::Commit(step) => {
                kept_state::commit(self.compute.parts.replica.as_mut(), step);
                self.committed();
                Ok(())
            }
            Task::Verify(step) => self.verify(step),
            Task::Validate(step) => {
                self.compute.profiler.skip();
                self.compute.controls.set_activity(Activity::Validating);
                self.validate(step)
            }
            Task::AwaitValidation(_) => {
                self.compute.agenda.handle_validated(self.compute.controls.signals().enough);
                Ok(())
            }
            Task::Checkpoint(step) => self.save(step),
            Task::Finish => self.compute.finish(&mut self.plane),
        }
    }

    fn in_hand(&self) -> &StepInHand {
        self.step.as_ref().expect(BEGUN)
    }

    /// Notes what an update comes to.
    fn settled(&mut self, step: Step, settled: Result<UpdateInfo, EngineError>) -> Result<(), Broke> {
        let info = match settled {
            Ok(info) => info,
            Err(EngineError::NonFinite { .. }) => {
                let plan = self.in_hand().plan;
                return Err(self.passes().name_the_fault(&plan).into());
            }
            Err(error) => return Err(engine(error).into()),
        };
        crate::skipped::tell(self.plane.membership.rank, step, &info);
        self.step.as_mut().expect(BEGUN).info = Some(info);
        Ok(())
    }

    /// The step in hand is made.
    fn committed(&mut self) {
        let StepInHand { plan, trailer, info, .. } = *self.in_hand();
        let record = self.in_hand().record(self.compute.generation, None);
        let Compute { profiler, agenda, news, .. } = &mut *self.compute;
        profiler.lap(Doing::Optimizer);
        agenda.handle_committed(plan.step, StopFlag(trailer.stop));
        let info = info.expect("an update is settled before it is made");
        let then = if agenda.goes_on() { AfterStep::Step } else { AfterStep::Pause };
        news.step(told(record, &info), then);
    }

    /// The device has all of the step in hand. Only now the one before it is waited for: the device does not wait for the host.
    fn is_given(&mut self) -> Result<(), Broke> {
        self.compute.profiler.lap(Doing::Optimizer);
        self.tell_given(AfterStep::Step)?;
        let step = *self.in_hand();
        self.given = Some(step);
        self.compute.agenda.handle_committed(step.plan.step, StopFlag(step.trailer.stop));
        // What follows looks at the state, or waits for what is told.
        if self.compute.agenda.goes_on() { Ok(()) } else { self.tell_given(AfterStep::Pause) }
    }

    /// Tells what the step came to that the device has, if it has one.
    ///
    /// *Blocks* until that is known. *Errors*: it is not finite; of the device.
    fn tell_given(&mut self, then: AfterStep) -> Result<(), Broke> {
        let Some(given) = self.given.take() else { return Ok(()) };
        let step = given.plan.step;
        let StepOutcome { sums, non_finite, update, step: of } = self.passes().outcome()?;
        assert_eq!(of, step, "steps are told in their order");
        if let Some(at) = non_finite {
            // The rank has all micro-batches of the step.
            return Err(Failure::NonFinite { step, micro_batch: Some(MicroBatch(at)) }.into());
        }
        let Some(info) = update else { return Err(self.passes().name_the_fault(&given.plan).into()) };
        crate::skipped::tell(self.plane.membership.rank, step, &info);
        let LossSums { loss, weight, counted: predictions, correct } = sums;
        let trailer = Trailer { loss, weight, predictions, correct, ..given.trailer };
        let record = StepInHand { trailer, ..given }.record(self.compute.generation, self.told);
        self.told = Some(Instant::now());
        self.compute.news.step(told(record, &info), then);
        Ok(())
    }

    fn verify(&mut self, step: Step) -> Result<(), Broke> {
        self.compute.looks_at_all();
        let Compute { parts, profiler, news, generation, .. } = &mut *self.compute;
        profiler.skip();
        let digest = kept_state::state_digest(&mut self.plane, parts.replica.as_mut())?;
        news.tell(News::Verified(*generation, step, digest));
        profiler.lap(Doing::Verify);
        Ok(())
    }

    /// Hands this rank's shard of a checkpoint to the saver, if it writes one.
    fn save(&mut self, step: Step) -> Result<(), Broke> {
        let Assignment { generation, rank, .. } = self.plane.membership;
        let id = CheckpointId { generation, step };
        self.compute.looks_at_all();
        let Compute { parts, profiler, agenda, saver, specs, .. } = &mut *self.compute;
        let (plane, replica) = (&mut self.plane, parts.replica.as_mut());
        let tensors = kept_state::tensors(plane, replica, specs);
        let mut draft = tensors.map(|tensors| saver.begin(id, rank, tensors));
        if draft.is_some() || kept_state::gives_to_others(replica) {
            let filled = kept_state::fill(plane, replica, specs, draft.as_mut());
            match (filled.and_then(|()| kept_state::digests(plane, replica)), draft) {
                (Ok(digests), Some(draft)) => {
                    agenda.handle_checkpoint(id);
                    saver.save(draft, digests);
                }
                (result, draft) => {
                    draft.into_iter().for_each(|draft| saver.give_up(draft));
                    result?;
                }
            }
        }
        profiler.lap(Doing::Checkpoint);
        Ok(())
    }

    /// This rank's share of the validation set, summed along its tree.
    fn validate(&mut self, step: Step) -> Result<(), Broke> {
        let parts = &mut self.compute.parts;
        let set = parts.validation.clone().expect("validation is due only where there is a validation set");
        let count = set.plan.micro_batches();
        let ranges = cut_evenly(count, self.plane.membership.world().0);
        let range = ranges[self.plane.membership.rank.index()];
        let spec = set.dataset.spec();
        let classes = spec.classes().map_or(0, |classes| classes as usize);
        let mut counts = EvaluationCounts::new(classes).with_own(&parts.replica.about().own_metrics);
        if matches!(spec.target, TargetSpec::Class { .. }) {
            counts = counts.with_ranking();
        }
        let mut batch = set.plan.batch(set.dataset.as_ref());
        let mut sums = Vec::new();
        let gathers = parts.replica.gathering().is_some();
        for root in roots(range, count) {
            let mut merger = Merger::default();
            let mut pending = vec![Trailer::EMPTY; Merger::buffers(root.len())];
            for m in root.lo..root.hi {
                if self.compute.controls.must_leave(self.compute.generation) {
                    return Err(told_to_leave());
                }
                set.plan.read(set.dataset.as_ref(), MicroBatch(m), &mut batch).map_err(data)?;
                let loss = match gathers {
                    true => {
                        let mut out = self.plane.set_out();
                        let loss =
                            out.pass().evaluate(parts.replica.as_mut(), Some(&lend(&batch)), &mut counts);
                        let loss = loss.map_err(engine)?;
                        out.finish()?;
                        loss
                    }
                    false => parts.replica.evaluate(&lend(&batch), &mut counts).map_err(engine)?,
                };
                let figures = BatchFigures { sums: loss, samples: batch.rows() as u64 };
                pending[merger.next_buffer()] = figures.trailer(MicroBatch(m), 0);
                merger.push(|l, r| pending[l] = pending[l].merge(&pending[r]));
            }
            merger.finish(|l, r| pending[l] = pending[l].merge(&pending[r]));
            sums.push((root, pending[0]));
        }
        // Others may have more, for which they need what this rank holds.
        let most = ranges.iter().map(|range| range.len()).max().unwrap_or(0);
        for _ in range.len()..if gathers { most } else { 0 } {
            let mut out = self.plane.set_out();
            out.pass().evaluate(parts.replica.as_mut(), None, &mut counts).map_err(engine)?;
            out.finish()?;
        }
        let counts = if classes <= MOST_CLASSES { flatten(&counts) } else { Vec::new() };
        let part = ValidationPart { step, parts: sums, counts };
        self.compute.news.tell(News::Validated(self.compute.generation, part));
        Ok(())
    }
}

/// What is told of a step, with what its update came to.
fn told(record: StepRecord, info: &UpdateInfo) -> StepRecord {
    StepRecord { lr: info.lr, gradient_norm: info.gradient_norm, ..record }
}

/// Beyond this many classes F1 is not worth the traffic: counts are left out.
const MOST_CLASSES: usize = 1_024;
