//! The training loop: what a rank's compute thread does, step by step.
//!
//! It obeys orders of the rank actor, talks to its peers only through the backend, and tells the actor what it has
//! done. It does not know the supervisor, the control link, or why it is told something.
//!
//! Nothing is allocated inside a step after the first few: roots are cut once per step length, trailers and
//! gradients live in buffers that stay.

use crate::broke::{Broke, data, engine, off, panic_text, told_to_leave};
use crate::common_state;
use crate::controls::Controls;
use crate::copy_state::{Roles, copy_state};
use crate::data_plane::{DataPlane, Sums, step_counts};
use crate::figures::{flatten, lend, sum_of_trailers};
use crate::gradient_slot::{DeviceSlot, GradientSlot, Offers};
use crate::news::{News, NewsDesk};
use crate::profiler::Profiler;
use crate::recipe::ComputeParts;
use crate::saver::{Saver, Slice};
use dtrain_checkpoint::TensorSpec;
use dtrain_collective::{Backend, Membership, Op, Sequence};
use dtrain_data::{Loader, LoanedBatch, Share};
use dtrain_engine::{Begun, ClassCounts, EngineError, Figures, Kept, UpdateInfo};
use dtrain_protocol::{
    Activity, Bootstrap, CheckpointId, Digest, Due, Failure, Finished, Left, Owed, Source, StartFrom,
    StepRecord, StopFlag, Truth, ValidationPart,
};
use dtrain_telemetry::profile::Doing;
use dtrain_types::{
    Epoch, Generation, Incarnation, MemberId, Merger, MicroBatch, MicroRange, Rank, Step, StepPlan, Trailer,
    Wire, WorldSize, cut_evenly, roots,
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
        membership: Membership,
        /// The ranks that see the run folder.
        writers: Vec<Rank>,
    },
    /// Take this state, or lend it to those who copy it.
    Load {
        /// The generation that starts with it.
        generation: Generation,
        /// Which state, and who has it.
        truth: Truth,
    },
    /// Make steps.
    Run {
        /// The first one.
        from_step: Step,
        /// What is due again before it.
        owed: Owed,
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
    desk: NewsDesk,
    saver: Saver,
    specs: Arc<[TensorSpec]>,
    plane: Option<DataPlane>,
    /// The generation in hand; failures are told in its name.
    generation: Generation,
    /// Whether the replica holds a state of the run.
    has_state: bool,
    /// Of a step whose update is made with others, and may be decided by them when this rank is told to leave. What the update comes
    /// to is not in it yet.
    undecided: Option<StepRecord>,
    profiler: Profiler,
}

impl Compute {
    /// A compute thread's work, not begun.
    pub fn new(
        mut parts: ComputeParts,
        life: (MemberId, Incarnation),
        controls: Arc<Controls>,
        desk: NewsDesk,
    ) -> Self {
        let specs: Arc<[TensorSpec]> = crate::state_files::specs(parts.replica.as_ref()).into();
        let saver =
            Saver::start(parts.run_dir.clone(), Arc::clone(&specs), desk.clone(), Arc::clone(&controls));
        let profiler = Profiler::new(parts.profile, parts.run_dir.clone(), life);
        if let Some(watch) = profiler.watch() {
            parts.replica.watch(watch);
        }
        let (plane, generation) = (None, Generation(0));
        Self {
            parts,
            controls,
            desk,
            saver,
            specs,
            plane,
            generation,
            has_state: false,
            undecided: None,
            profiler,
        }
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
                    self.desk.tell(News::Broken { generation, why, unreachable: Vec::new() });
                }
                Ok(Err(Broke::Failed(failure))) => self.desk.tell(News::Failed(generation, failure)),
                Err(panic) => {
                    self.desk.tell(News::Failed(generation, Failure::Panic(panic_text(panic.as_ref()))))
                }
            }
        }
        self.profiler.write();
    }

    fn carry_out(&mut self, order: Order) -> Result<(), Broke> {
        self.controls.set_activity(Activity::Preparing);
        match order {
            Order::Build { backend, membership, writers } => self.build(backend, membership, writers),
            Order::Load { generation, truth } => self.load(generation, &truth),
            Order::Run { from_step, owed } => self.train(from_step, owed),
            Order::Leave { generation, bootstrap } => {
                self.plane = None;
                common_state::close(self.parts.replica.as_mut());
                let applied = self.has_state.then(|| self.parts.replica.applied());
                if let Some(record) = self.undecided.take().filter(|record| Some(record.step) == applied) {
                    let info = common_state::settle(self.parts.replica.as_mut()).map_err(engine)?;
                    self.desk.step(told(record, &info), true);
                }
                self.desk.tell(News::Left(Left { generation, applied, bootstrap }));
                Ok(())
            }
        }
    }

    fn build(
        &mut self,
        mut backend: Box<dyn Backend>,
        membership: Membership,
        writers: Vec<Rank>,
    ) -> Result<(), Broke> {
        self.generation = membership.generation;
        self.desk.enter(membership.rank);
        let counts = step_counts(self.parts.feed.plan());
        backend.prepare(&counts);
        backend.start(Sequence(0), &Op::Barrier).and_then(|()| backend.finish(Sequence(0))).map_err(off)?;
        tracing::debug!(backend = backend.describe(), "reached all peers");
        let group = self.parts.replica.group() as usize;
        self.plane = Some(DataPlane::new(backend, membership, writers, &counts, self.parts.mode, group));
        self.desk.tell(News::Built(self.generation));
        Ok(())
    }

    fn load(&mut self, generation: Generation, truth: &Truth) -> Result<(), Broke> {
        let Some(plane) = &mut self.plane else { return Err(Broke::Off("the data plane is gone".into())) };
        let replica = self.parts.replica.as_mut();
        replica.bring_state().map_err(engine)?;
        let (rank, world) = (plane.membership.rank, plane.membership.world());
        let sources = match &truth.source {
            Source::Start(StartFrom::Fresh) => None,
            Source::Start(StartFrom::Checkpoint(id)) => {
                if plane.writers.contains(&rank) {
                    crate::state_files::load(&self.parts.run_dir, *id, &self.specs, replica)
                        .map_err(Failure::Setup)?;
                }
                Some(&plane.writers)
            }
            Source::Ranks(sources) => Some(sources),
        };
        let in_common = replica.sharing().is_some();
        if let Some(sources) = sources.filter(|sources| !sources.is_empty() && !in_common) {
            let roles = Roles::new(sources, world, rank);
            copy_state(plane.backend.as_mut(), &mut plane.sequence, replica, truth.step, &roles)
                .map_err(off)?;
        }
        if in_common {
            common_state::meet(plane, replica, truth)?;
        }
        self.has_state = true;
        let state = replica.state();
        let (applied, state_digest) = (state.applied, Digest(state.state_digest()));
        self.desk.tell(News::Loaded { generation, applied, state_digest });
        Ok(())
    }

    /// The loop of a generation. `from_step` may lie past the last step: then only what is owed is left to do.
    fn train(&mut self, from_step: Step, owed: Owed) -> Result<(), Broke> {
        let Some(mut plane) = self.plane.take() else {
            return Err(Broke::Off("the data plane is gone".into()));
        };
        // Behind the last copy of a state, which goes through the slots.
        plane.settle_sums(&mut self.parts);
        let (schedule, generation) = (self.parts.schedule, self.generation);
        let share = Share { range: plane.membership.range(), from: from_step, until: Some(schedule.last) };
        let (feed, workers, group) =
            (self.parts.feed.clone(), self.parts.workers, self.parts.replica.group().min(share.range.len()));
        let mut loader = Loader::reading_ahead(feed, share, workers, group as usize).map_err(data)?;
        self.profiler.reserve(share.range.len() as usize);
        let mut work = Work { plane, loader: &mut loader, ahead: None, compute: self };
        let Owed { validate, checkpoint, ends } = owed;
        work.after(Step(from_step.0.saturating_sub(1)), Due { verify: false, validate, checkpoint, ends })?;
        let mut ended = ends;
        let mut step = from_step;
        while !ended && step <= schedule.last {
            work.compute.profiler.begin(step, &work.plane.membership);
            work.compute.controls.wait_while_paused(generation);
            work.compute.profiler.lap(Doing::Held);
            let record = work.step(step)?;
            let stop = StopFlag(record.trailer.stop);
            let due = schedule.after(step, stop);
            let urgent = due.ends || due.checkpoint || due.validate.is_some() || stop != StopFlag::default();
            work.compute.desk.step(record, urgent);
            work.after(step, due)?;
            work.compute.profiler.end();
            ended = due.ends;
            if !ended && stop.has(StopFlag::REFORM) {
                // All ranks stand here: the next word is the order to leave this generation.
                return Ok(());
            }
            step = step.next();
        }
        self.saver.wait();
        // Before the last word, so that whoever hears it finds the part.
        self.profiler.write();
        self.parts.replica.bring_state().map_err(engine)?;
        let state = self.parts.replica.state();
        let finished = Finished {
            step: state.applied,
            digest: Digest(state.digest()),
            state_digest: Digest(state.state_digest()),
        };
        self.desk.tell(News::Finished(generation, finished));
        Ok(())
    }
}

/// Where the gradient of a pass goes.
#[derive(Clone, Copy)]
enum Place {
    /// A slot of the arena.
    Slot(usize),
    /// Where the replica keeps it, under this number.
    Kept(usize),
}

/// A compute thread that is making steps.
struct Work<'a> {
    plane: DataPlane,
    loader: &'a mut Loader,
    /// The next batch, if the replica has taken it ahead.
    ahead: Option<LoanedBatch>,
    compute: &'a mut Compute,
}

impl Work<'_> {
    /// Forward, backward, reduce, update.
    fn step(&mut self, step: Step) -> Result<StepRecord, Broke> {
        let begun = Instant::now();
        let plan = self.compute.parts.feed.plan().step(step);
        self.plane.sequence.0 += 1;
        self.gradients(&plan)?;
        let controls = Arc::clone(&self.compute.controls);
        controls.set_activity(Activity::Reducing);
        self.compute.profiler.skip();
        let waited = Instant::now();
        let alone = self.plane.trailer_at_home();
        let trailer = match alone {
            Some(trailer) => trailer,
            None => self.all_reduce(&plan)?,
        };
        let mut waited = waited.elapsed();
        self.compute.profiler.lap(Doing::Communication);
        controls.set_activity(Activity::Computing);
        if trailer.non_finite != Trailer::ALL_FINITE {
            // All ranks read the same trailer, so nobody commits.
            let micro_batch = Some(MicroBatch(trailer.non_finite));
            return Err(Failure::NonFinite { step, micro_batch }.into());
        }
        let generation = self.plane.membership.generation;
        let record = |took: Duration, waited: Duration| StepRecord {
            generation,
            step,
            epoch: plan.epoch,
            trailer,
            seconds: took.as_secs_f64(),
            busy: took.saturating_sub(waited).as_secs_f64(),
            lr: 0.0,
            gradient_norm: 0.0,
        };
        let Self { plane, compute, .. } = self;
        let Trailer { weight, samples, .. } = trailer;
        let replica = compute.parts.replica.as_mut();
        let in_common = replica.sharing().is_some();
        let updated = match alone.is_some() || plane.sums == Sums::OnDevice {
            true => replica.update_kept(step, weight, samples),
            false if in_common => {
                controls.set_activity(Activity::Reducing);
                // From here on the others can decide it.
                compute.undecided = Some(record(begun.elapsed(), waited));
                waited += common_state::measure(plane, replica, step, &trailer)?;
                common_state::settle(replica)
            }
            false => replica.update(step, plane.backend.reduced(), weight, samples),
        };
        let info = match updated {
            Ok(info) => info,
            Err(EngineError::NonFinite { .. }) => return Err(self.name_the_fault(&plan).into()),
            Err(error) => return Err(engine(error).into()),
        };
        crate::skipped::tell(plane.membership.rank, step, &info);
        if in_common {
            waited += common_state::together(plane, compute.parts.replica.as_mut(), step)?;
            compute.undecided = None;
        }
        compute.profiler.lap(Doing::Optimizer);
        Ok(told(record(begun.elapsed(), waited), &info))
    }

    /// The sum of all ranks' slots.
    fn all_reduce(&mut self, plan: &StepPlan) -> Result<Trailer, Broke> {
        let DataPlane { backend, trailers, sequence, .. } = &mut self.plane;
        let op = Op::AllReduce { micro_batches: plan.micro_batches, trailers };
        backend.start(*sequence, &op).map_err(off)?;
        backend.finish(*sequence).map_err(off)
    }

    /// Fills one slot per root with the sum of its micro-batches, merged like a binary counter: as many at once as the
    /// replica takes. Every node is rounded where it is made. Where the backend takes offers, the last pass hands on its part
    /// of the sum while it goes. A replica that keeps gradients adds them up for itself: in slots on its device, or in memory of
    /// its own, from which the sum of a root comes to its slot, if there is anybody to add it to.
    fn gradients(&mut self, plan: &StepPlan) -> Result<(), Broke> {
        let known = self.plane.roots.iter().position(|(count, _)| *count == plan.micro_batches);
        let known = known.expect("every step length was prepared");
        let count = self.plane.roots[known].1.len();
        let travels = self.plane.sums != Sums::InReplica && !self.plane.stays_at_home(count);
        let takes = travels && self.plane.backend.takes_offers();
        let offers = self.compute.parts.bucket_bytes.filter(|_| takes);
        self.plane.trailers.clear();
        for index in 0..count {
            let root = self.plane.roots[known].1[index];
            let mut merger = Merger::default();
            let mut sums = self.plane.sums;
            for lo in (root.lo..root.hi).step_by(self.compute.parts.replica.group() as usize) {
                let hi = (lo + self.compute.parts.replica.group()).min(root.hi);
                let buffer = merger.next_buffer();
                let bucket = offers.filter(|_| hi == root.hi && index + 1 == count);
                if bucket.is_some() {
                    self.plane.note_merges(index, merger.clone(), hi - lo);
                }
                let place = match self.plane.keeps() {
                    true => Place::Kept(self.plane.kept(index, buffer)),
                    false => Place::Slot(self.plane.geometry.slot(index, buffer)),
                };
                self.plane.pending[buffer] = self.group(plan, MicroRange { lo, hi }, place, bucket)?;
                let Self { plane, compute, .. } = self;
                if bucket.is_some() {
                    sums = Sums::Offered;
                }
                let mut added = false;
                merger.push_subtree(hi - lo, |l, r| {
                    added = true;
                    plane.merge(&mut compute.parts, index, [l, r], sums);
                });
                if added {
                    compute.profiler.lap_on(Doing::Add, MicroBatch(lo));
                }
            }
            let Self { plane, compute, .. } = self;
            merger.finish(|l, r| plane.merge(&mut compute.parts, index, [l, r], sums));
            compute.profiler.lap(Doing::Add);
            plane.trailers.push(plane.pending[0]);
            if plane.sums == Sums::InReplica && !plane.stays_at_home(count) {
                let slot = plane.geometry.slot(index, 0);
                compute.parts.replica.bring(0, plane.backend.arena().lease(slot)).map_err(engine)?;
            }
        }
        Ok(())
    }

    /// Fills a place with the sum of some micro-batches, and hands it on in buckets of so many bytes if they are the last; gives
    /// the sum of their trailers.
    fn group(
        &mut self,
        plan: &StepPlan,
        group: MicroRange,
        place: Place,
        bucket: Option<usize>,
    ) -> Result<Trailer, Broke> {
        let Self { plane, loader, ahead, compute } = self;
        let (controls, parts, profiler) = (&compute.controls, &mut compute.parts, &mut compute.profiler);
        let figures = &mut plane.figures[..group.len() as usize];
        let wire = parts.wire;
        let mut offers = bucket.map(|bucket_bytes| Offers {
            sequence: plane.sequence,
            micro_batches: plan.micro_batches,
            bucket_bytes,
            merges: &plane.merges,
            wire,
            rests: &mut plane.rests,
        });
        for (at, m) in (group.lo..group.hi).enumerate() {
            if controls.must_leave(compute.generation) {
                return Err(told_to_leave());
            }
            controls.set_activity(Activity::Loading);
            let batch = match ahead.take() {
                Some(batch) => batch,
                None => loader.next_batch().map_err(data)?.expect("the loader ends with the last step"),
            };
            assert_eq!(
                (batch.step(), batch.micro_batch()),
                (plan.step, MicroBatch(m)),
                "loader and loop agree"
            );
            controls.set_activity(Activity::Computing);
            profiler.lap_on(Doing::Data, MicroBatch(m));
            plane.checks[at] = batch.check();
            if figures.len() > 1 {
                parts.replica.lay(at, &lend(&batch)).map_err(engine)?;
                continue;
            }
            let (step, m, batch) = (plan.step, MicroBatch(m), lend(&batch));
            let begun = match place {
                Place::Slot(slot) => {
                    let (backend, offers) = (plane.backend.as_mut(), offers.take());
                    let mut to = GradientSlot::new(backend, slot, wire, offers, profiler);
                    let alone = parts.replica.begin(step, m, &batch, &mut to);
                    to.finish();
                    alone
                }
                Place::Kept(number) => {
                    let kept = Kept { number, elements: parts.replica.gradient_len() };
                    let mut to = DeviceSlot::new(plane.backend.as_mut(), kept, offers.take());
                    parts.replica.begin(step, m, &batch, &mut to)
                }
            };
            figures[0] = match begun.map_err(engine)? {
                Begun::Done(figures) => figures,
                Begun::UnderWay => {
                    // One that is not there yet is waited for when its turn comes, and not under another name.
                    *ahead = loader.ready_batch();
                    if let Some(next) = ahead {
                        let (step, m) = (next.step(), next.micro_batch());
                        parts.replica.take_ahead(step, m, &lend(next)).map_err(engine)?;
                    }
                    parts.replica.figures()
                }
            };
        }
        if let (Place::Slot(slot), true) = (place, figures.len() > 1) {
            // The replica rounds what it adds up.
            let mut to = GradientSlot::new(plane.backend.as_mut(), slot, Wire::F32, offers, profiler);
            let first = MicroBatch(group.lo);
            parts.replica.micro_batches(plan.step, first, wire, &mut to, figures).map_err(engine)?;
            to.finish();
        }
        profiler.passes(MicroBatch(group.lo));
        let stop = controls.stop_flag();
        Ok(sum_of_trailers(figures, &plane.checks, group.lo, stop))
    }

    /// What is due after a step. The next one waits until a validation is recorded: were a member lost, the others could
    /// not make it again with a state that has moved on.
    fn after(&mut self, step: Step, due: Due) -> Result<(), Broke> {
        self.compute.profiler.skip();
        if due.verify {
            self.compute.parts.replica.bring_state().map_err(engine)?;
            let digest = Digest(self.compute.parts.replica.state().state_digest());
            self.compute.desk.tell(News::Verified(self.compute.generation, step, digest));
            self.compute.profiler.lap(Doing::Verify);
        }
        if let Some(epoch) = due.validate {
            self.compute.controls.set_activity(Activity::Validating);
            self.validate(epoch, step)?;
            let generation = self.compute.generation;
            self.compute.controls.set_activity(Activity::Reducing);
            self.compute.controls.wait_until_validated(generation, epoch);
            if self.compute.controls.must_leave(generation) {
                return Err(told_to_leave());
            }
            self.compute.profiler.lap(Doing::Validation);
        }
        if due.checkpoint {
            self.compute.controls.set_activity(Activity::Saving);
            let Membership { generation, rank, .. } = self.plane.membership;
            let id = CheckpointId { generation, step };
            let writers = &self.plane.writers;
            if let Some(place) = writers.iter().position(|writer| *writer == rank) {
                self.compute.parts.replica.bring_state().map_err(engine)?;
                let share = Slice { rank, place: Rank(place as u32), of: WorldSize(writers.len() as u32) };
                self.compute.saver.save(id, share, self.compute.parts.replica.state());
            }
            self.compute.profiler.lap(Doing::Checkpoint);
        }
        Ok(())
    }

    /// This rank's share of the validation set, summed along its tree.
    fn validate(&mut self, epoch: Epoch, step: Step) -> Result<(), Broke> {
        let parts = &mut self.compute.parts;
        let set = parts.validation.clone().expect("validation is due only where there is a validation set");
        let count = set.plan.micro_batches();
        let range = cut_evenly(count, self.plane.membership.world().0)[self.plane.membership.rank.index()];
        let classes = set.dataset.spec().classes().map_or(0, |classes| classes as usize);
        let mut counts = ClassCounts::new(classes);
        let mut batch = set.plan.batch(set.dataset.as_ref());
        let mut sums = Vec::new();
        for root in roots(range, count) {
            let mut merger = Merger::default();
            let mut pending = vec![Trailer::EMPTY; Merger::buffers(root.len())];
            for m in root.lo..root.hi {
                if self.compute.controls.must_leave(self.compute.generation) {
                    return Err(told_to_leave());
                }
                set.plan.read(set.dataset.as_ref(), MicroBatch(m), &mut batch).map_err(data)?;
                let loss = parts.replica.evaluate(&lend(&batch), &mut counts).map_err(engine)?;
                let figures = Figures { sums: loss, samples: batch.rows() as u64 };
                pending[merger.next_buffer()] = figures.trailer(MicroBatch(m), 0);
                merger.push(|l, r| pending[l] = pending[l].merge(&pending[r]));
            }
            merger.finish(|l, r| pending[l] = pending[l].merge(&pending[r]));
            sums.push((root, pending[0]));
        }
        let counts = if classes <= MOST_CLASSES { flatten(&counts) } else { Vec::new() };
        let part = ValidationPart { epoch, step, parts: sums, counts };
        self.compute.desk.tell(News::Validated(self.compute.generation, part));
        Ok(())
    }

    /// Computes this rank's micro-batches again, one by one, to say which one made the gradient not finite.
    fn name_the_fault(&mut self, plan: &StepPlan) -> Failure {
        let step = plan.step;
        let range = self.plane.membership.range().within(plan.micro_batches);
        let parts = &mut self.compute.parts;
        let mut batch = parts.feed.batch();
        let mut found = None;
        for m in range.lo..range.hi {
            let gradient = self.plane.backend.arena().lease(0);
            let again =
                parts.feed.read_micro_batch(step, MicroBatch(m), &mut batch).map_err(data).and_then(|()| {
                    parts.replica.is_at_fault(step, MicroBatch(m), &lend(&batch), gradient).map_err(engine)
                });
            match again {
                Ok(false) => {}
                Ok(true) => {
                    found = Some(MicroBatch(m));
                    break;
                }
                Err(failure) => return failure,
            }
        }
        Failure::NonFinite { step, micro_batch: found }
    }
}

/// What is told of a step, with what its update came to.
fn told(record: StepRecord, info: &UpdateInfo) -> StepRecord {
    StepRecord { lr: info.lr, gradient_norm: info.gradient_norm, ..record }
}

/// Beyond this many classes F1 is not worth the traffic: counts are left out.
const MOST_CLASSES: usize = 1_024;
