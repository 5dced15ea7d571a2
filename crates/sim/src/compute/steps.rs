//! Tasks: micro-batches, the reduction, the update, and what is due after a step, as the agenda says.

use super::Compute;
use super::doing::{Computed, Doing, FIRST_STEP, Micro, OF_A_STEP, OFFERS};
use super::tools::Tools;
use super::words::{Ask, News, ShardJob, Work};
use crate::disk::share;
use crate::job::{VALIDATION, flat, flatten, no_counts};
use crate::sabotage::Sabotage;
use dtrain_collective::{Arena, Op, Reduce, Sequence, rank_roots};
use dtrain_engine::State;
use dtrain_protocol::{CheckpointId, Digest, Finished, StepRecord, StopFlag, Task, ValidationPart};
use dtrain_types::{Merger, MicroBatch, Step, Trailer, cut_evenly, roots};

impl Compute {
    /// Does what is next, as far as nothing has to be waited for.
    pub(super) fn go(&mut self, tools: &mut Tools<'_>) {
        while matches!(self.doing, Doing::Rest) && !self.working && self.plane.is_some() {
            let Some(task) = self.agenda.next() else { return };
            let awaits = matches!(task, Task::AwaitValidation(_));
            let ignores = awaits && self.sabotage == Some(Sabotage::UnawaitedValidation);
            if !self.agenda.is_ready(&self.signals) && !ignores {
                return;
            }
            self.agenda.take();
            self.lend_state(tools);
            self.carry_out(tools, task);
        }
    }

    fn carry_out(&mut self, tools: &mut Tools<'_>, task: Task) {
        match task {
            Task::Compute(step) => self.begin_step(tools, step),
            Task::Reduce(step) => self.reduce(tools, step),
            Task::Update(step) => {
                self.doing = Doing::Update(step);
                self.work(tools, Work::Update);
            }
            Task::Measure(step) if self.shards.is_some() => self.measure_shards(tools, step),
            Task::Measure(step) => self.measure(tools, step),
            Task::Meet(_) => self.meet(tools),
            Task::Agree(_) => self.agree(tools),
            Task::Gather(_) => self.gather(tools),
            Task::UpdateShare(step) => {
                self.doing = Doing::UpdateShare(step);
                self.work(tools, Work::Update);
            }
            Task::Commit(step) if self.shards.is_some() => self.commit_shards(tools, step),
            Task::Commit(step) => self.commit(tools, step),
            Task::AwaitValidation(_) => self.agenda.handle_validated(self.signals.enough),
            task @ (Task::Verify(_) | Task::Checkpoint(_) | Task::Finish) => {
                match (&self.shards, &self.state) {
                    (Some(_), _) => self.gather_for(tools, task),
                    (None, Some(state)) => {
                        let state = state.clone();
                        self.look_at(tools, task, &state);
                    }
                    (None, None) => unreachable!("a rank that runs has a state"),
                }
            }
            Task::Validate(step) if self.brings() => self.begin_validation(tools, step),
            Task::Validate(step) => {
                self.doing = Doing::Evaluate(step);
                self.work(tools, Work::Evaluate);
            }
        }
    }

    /// Does what looks at all of the state.
    pub(super) fn look_at(&mut self, tools: &mut Tools<'_>, task: Task, state: &State) {
        let Some(generation) = self.plane.as_ref().map(|plane| plane.generation) else { return };
        let (digest, state_digest) = (Digest(state.digest()), Digest(state.state_digest()));
        match task {
            Task::Verify(step) => tools.tell(News::Verified(generation, step, state_digest)),
            Task::Checkpoint(step) => self.save(tools, CheckpointId { generation, step }, state),
            _ => {
                let step = state.applied;
                let finished = Finished { step, digest, state_digest, device_peak: None };
                tools.tell(News::Finished(generation, finished));
            }
        }
    }

    fn save(&mut self, tools: &mut Tools<'_>, id: CheckpointId, state: &State) {
        let Some(plane) = &self.plane else { return };
        let all = flat(state);
        let own = share(all.len(), plane.rank, plane.members.world().0);
        let (digest, state_digest) = (Digest(state.digest()), Digest(state.state_digest()));
        let before = self.copied.replace(id);
        assert!(
            before.is_none_or(|id| id <= self.signals.settled),
            "{before:?} is not settled when {id} is copied"
        );
        self.agenda.handle_checkpoint(id);
        self.signals.writing = true;
        self.signals.lent = self.shards.is_some();
        let floats = all[own].to_vec();
        tools.asks.push(Ask::Save(ShardJob { id, rank: plane.rank, floats, digest, state_digest }));
    }

    fn begin_step(&mut self, tools: &mut Tools<'_>, step: Step) {
        let Some(plane) = &self.plane else { return };
        let plan = tools.engine.job().plan.step(step);
        (self.begun, self.busy) = (tools.now, 0.0);
        if self.is_in_rounds() {
            return self.begin_rounds(tools, plan);
        }
        let range = plane.members.participants[plane.rank.index()].range;
        let roots = rank_roots(range, plan.micro_batches, Reduce::Exact);
        let next = roots.first().map_or(0, |root| root.lo);
        let pending = vec![Trailer::EMPTY; Merger::buffers(plan.micro_batches)];
        let (merger, trailers) = (Merger::default(), Vec::with_capacity(roots.len()));
        let micro = Micro { plan, roots, root: 0, next, merger, pending, trailers };
        if micro.roots.is_empty() {
            return self.computed(micro);
        }
        self.doing = Doing::Micro(Box::new(micro));
        self.work(tools, Work::MicroBatch);
    }

    /// One micro-batch is computed: the next one, the next root, or the reduction.
    pub(super) fn micro_batch(&mut self, tools: &mut Tools<'_>, mut micro: Box<Micro>) {
        let Some(plane) = &mut self.plane else { return };
        let (root, index) = (micro.roots[micro.root], micro.root);
        let is_last = index + 1 == micro.roots.len() && micro.next + 1 == root.hi;
        let offers = plane.host.is_none() && plane.machine.takes_offers();
        if is_last && self.sabotage == Some(Sabotage::UnfinishedOffer) && offers {
            let sequence = Sequence(number_of(micro.plan.step));
            plane.machine.offer(sequence, micro.plan.micro_batches, tools.engine.gradient_len() / 2);
            self.pump(tools);
        }
        let Micro { plan, next, merger, pending, .. } = &mut *micro;
        let mut gradient = vec![0.0; tools.engine.gradient_len()];
        let mut trailer = match (&mut self.shards, &mut self.state) {
            (Some(shards), _) => {
                tools.engine.micro_batch_by(&mut shards.replica, plan, MicroBatch(*next), &mut gradient)
            }
            (None, Some(state)) => tools.engine.micro_batch(state, plan, MicroBatch(*next), &mut gradient),
            (None, None) => return,
        };
        let Some(plane) = &mut self.plane else { return };
        trailer.stop = self.stop.0;
        let arena = Self::arena(plane, tools);
        let geometry = arena.geometry();
        arena.lease(geometry.slot(index, merger.next_buffer())).copy_from_slice(&gradient);
        pending[merger.next_buffer()] = trailer;
        let mut merge = |left: usize, right: usize| {
            let (into, from) = arena.lease_pair(geometry.slot(index, left), geometry.slot(index, right));
            into.iter_mut().zip(from.iter()).for_each(|(a, b)| *a += *b);
            pending[left] = pending[left].merge(&pending[right]);
        };
        merger.push(&mut merge);
        *next += 1;
        if *next == root.hi {
            merger.finish(&mut merge);
            micro.trailers.push(micro.pending[0]);
            micro.root += 1;
            if micro.root == micro.roots.len() {
                return self.offer(tools, micro, 0);
            }
            micro.next = micro.roots[micro.root].lo;
        }
        self.doing = Doing::Micro(micro);
        self.work(tools, Work::MicroBatch);
    }

    /// Gives away one piece after the other of what was computed, as a backward pass does, and then starts the reduction.
    pub(super) fn offer(&mut self, tools: &mut Tools<'_>, micro: Box<Micro>, pieces: usize) {
        let Some(plane) = &mut self.plane else { return };
        if pieces == OFFERS || plane.host.is_some() || !plane.machine.takes_offers() {
            self.busy = tools.now.since(self.begun).as_secs_f64();
            return self.computed(*micro);
        }
        let from = tools.engine.gradient_len() * (OFFERS - pieces) / (OFFERS + 1);
        plane.gathering &= pieces > 0;
        plane.sequence = number_of(micro.plan.step);
        plane.machine.offer(Sequence(plane.sequence), micro.plan.micro_batches, from);
        self.doing = Doing::Offer(micro, pieces);
        self.work(tools, Work::Backward);
        self.pump(tools);
    }

    /// All micro-batches of this rank are computed.
    fn computed(&mut self, micro: Micro) {
        let Micro { plan, trailers, .. } = micro;
        self.computed = Some(Computed { plan, trailers, trailer: Trailer::EMPTY, sum: Vec::new() });
        self.doing = Doing::Rest;
    }

    fn reduce(&mut self, tools: &mut Tools<'_>, step: Step) {
        if self.is_in_rounds() {
            return self.sum_trailers(tools);
        }
        let (Some(plane), Some(computed)) = (&mut self.plane, &self.computed) else { return };
        let sequence = number_of(step);
        // Where part of it was offered, sums may be on their way.
        plane.gathering &= plane.sequence == sequence;
        plane.sequence = sequence;
        let (micro_batches, trailers) = (computed.plan.micro_batches, computed.trailers.clone());
        self.doing = Doing::Reduce;
        self.start(tools, &Op::AllReduce { micro_batches, trailers: &trailers });
    }

    /// What all ranks say of a step is added up.
    pub(super) fn reduced(&mut self, trailer: Trailer) {
        self.agenda.handle_reduced(&trailer).expect("every loss is finite");
        self.computed.as_mut().expect("a step is in hand").trailer = trailer;
    }

    /// What is known of the step in hand before its update is made.
    pub(super) fn record(&self, tools: &Tools<'_>, step: Step) -> StepRecord {
        let plane = self.plane.as_ref().expect("a step has a generation");
        let Computed { plan, trailer, .. } = self.computed.as_ref().expect("a step is in hand");
        let (generation, epoch, trailer) = (plane.generation, plan.epoch, *trailer);
        let (seconds, busy) = (tools.now.since(self.begun).as_secs_f64(), self.busy);
        StepRecord { generation, step, epoch, trailer, seconds, busy, lr: 0.0, gradient_norm: 0.0 }
    }

    pub(super) fn update(&mut self, tools: &mut Tools<'_>, step: Step) {
        let record = self.record(tools, step);
        let (Some(plane), Some(state)) = (&mut self.plane, &mut self.state) else { return };
        let generation = plane.generation;
        let gradient = Self::arena(plane, tools).lease(0).to_vec();
        let (lr, gradient_norm) = tools.engine.update(state, step, &gradient, &record.trailer);
        let state_digest = Digest(state.state_digest());
        tools.asks.push(Ask::Updated { generation, step, gradient, needed: None, state_digest });
        self.committed(tools, StepRecord { lr, gradient_norm, ..record });
    }

    pub(super) fn committed(&mut self, tools: &mut Tools<'_>, record: StepRecord) {
        tools.tell(News::Step(record));
        self.agenda.handle_committed(record.step, StopFlag(record.trailer.stop));
    }

    pub(super) fn evaluate(&mut self, tools: &mut Tools<'_>, step: Step) {
        let Some(plane) = &self.plane else { return };
        let range = cut_evenly(VALIDATION, plane.members.world().0)[plane.rank.index()];
        let mut counts = no_counts();
        let mut parts = Vec::new();
        for root in roots(range, VALIDATION) {
            let mut merger = Merger::default();
            let mut pending = vec![Trailer::EMPTY; Merger::buffers(root.len())];
            for m in root.lo..root.hi {
                pending[merger.next_buffer()] = match (&mut self.shards, &mut self.state) {
                    (Some(shards), _) => {
                        tools.engine.evaluate_by(&mut shards.replica, MicroBatch(m), &mut counts)
                    }
                    (None, Some(state)) => tools.engine.evaluate(state, MicroBatch(m), &mut counts),
                    (None, None) => return,
                };
                merger.push(|l, r| pending[l] = pending[l].merge(&pending[r]));
            }
            merger.finish(|l, r| pending[l] = pending[l].merge(&pending[r]));
            parts.push((root, pending[0]));
        }
        let part = ValidationPart { step, parts, counts: flatten(&counts) };
        tools.tell(News::Validation(plane.generation, part));
    }
}

/// The number of the sum of a step.
fn number_of(step: Step) -> u64 {
    FIRST_STEP + OF_A_STEP * step.0
}
