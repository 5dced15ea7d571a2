//! Steps: micro-batches, the reduction, the update, and what is due after one.

use super::{Ask, Compute, FIRST_STEP, Micro, News, OFFERS, ShardJob, Task, Todo, Tools, Work};
use crate::disk::share;
use crate::job::{VALIDATION, flat, flatten, no_counts};
use crate::sabotage::Sabotage;
use dtrain_collective::{Arena, Mode, Op, Sequence, rank_roots};
use dtrain_protocol::{CheckpointId, Digest, Finished, StepRecord, StopFlag, ValidationPart};
use dtrain_types::{Epoch, Merger, MicroBatch, Step, StepPlan, Trailer, cut_evenly, roots};

impl Compute {
    /// Does what is next, as far as nothing has to be waited for.
    pub(super) fn go(&mut self, tools: &mut Tools<'_>) {
        while matches!(self.task, Task::Rest) && !self.working {
            let Some(todo) = self.todo.front() else { return };
            let waits = match todo {
                Todo::AwaitValidated(_) if self.sabotage == Some(Sabotage::UnawaitedValidation) => false,
                Todo::AwaitValidated(epoch) => self.controls.validated < Some(*epoch),
                Todo::Save(_) => {
                    let unsettled = self.last_saved.is_some_and(|last| last > self.controls.settled);
                    self.saving.is_some() || unsettled
                }
                Todo::Step(_) => self.controls.paused,
                Todo::Finish => self.saving.is_some(),
                Todo::Verify(_) | Todo::Validate(..) => false,
            };
            if waits {
                return;
            }
            let todo = self.todo.pop_front().expect("just seen");
            self.carry_out(tools, todo);
        }
    }

    pub(super) fn carry_out(&mut self, tools: &mut Tools<'_>, todo: Todo) {
        let Some(generation) = self.plane.as_ref().map(|plane| plane.generation) else { return };
        match todo {
            Todo::AwaitValidated(_) => {}
            Todo::Verify(step) => {
                let digest = self.state_digest().expect("a rank that runs has a state");
                tools.tell(News::Verified(generation, step, digest));
            }
            Todo::Validate(epoch, step) => {
                self.task = Task::Evaluate(epoch, step);
                self.work(tools, Work::Evaluate);
            }
            Todo::Save(step) => self.save(tools, CheckpointId { generation, step }),
            Todo::Step(step) => self.begin_step(tools, step),
            Todo::Finish => {
                let state = self.state.as_ref().expect("a rank that runs has a state");
                let (digest, state_digest) = (Digest(state.digest()), Digest(state.state_digest()));
                tools
                    .tell(News::Finished(generation, Finished { step: state.applied, digest, state_digest }));
            }
        }
    }

    pub(super) fn save(&mut self, tools: &mut Tools<'_>, id: CheckpointId) {
        let (Some(state), Some(plane)) = (&self.state, &self.plane) else { return };
        let all = flat(state);
        let own = share(all.len(), plane.rank, plane.members.world().0);
        let (digest, state_digest) = (Digest(state.digest()), Digest(state.state_digest()));
        (self.saving, self.last_saved) = (Some(id), Some(id));
        let floats = all[own].to_vec();
        tools.asks.push(Ask::Save(ShardJob { id, rank: plane.rank, floats, digest, state_digest }));
    }

    pub(super) fn begin_step(&mut self, tools: &mut Tools<'_>, step: Step) {
        let Some(plane) = &self.plane else { return };
        let plan = tools.engine.job().plan.step(step);
        let range = plane.members.seats[plane.rank.index()].range;
        let roots = rank_roots(range, plan.micro_batches, Mode::Exact);
        (self.begun, self.busy) = (tools.now, 0.0);
        let next = roots.first().map_or(0, |root| root.lo);
        let pending = vec![Trailer::EMPTY; Merger::buffers(plan.micro_batches)];
        let (merger, trailers) = (Merger::default(), Vec::with_capacity(roots.len()));
        let micro = Micro { plan, roots, root: 0, next, merger, pending, trailers };
        if micro.roots.is_empty() {
            return self.reduce(tools, &micro);
        }
        self.task = Task::Micro(Box::new(micro));
        self.work(tools, Work::MicroBatch);
    }

    /// One micro-batch is computed: the next one, the next root, or the reduction.
    pub(super) fn micro_batch(&mut self, tools: &mut Tools<'_>, mut micro: Box<Micro>) {
        let Some(plane) = &mut self.plane else { return };
        let (root, index) = (micro.roots[micro.root], micro.root);
        let is_last = index + 1 == micro.roots.len() && micro.next + 1 == root.hi;
        if is_last && self.sabotage == Some(Sabotage::UnfinishedOffer) && plane.machine.takes_offers() {
            let sequence = Sequence(FIRST_STEP + micro.plan.step.0);
            plane.machine.offer(sequence, micro.plan.micro_batches, tools.engine.gradient_len() / 2);
            self.pump(tools);
        }
        let (Some(plane), Some(state)) = (&mut self.plane, &mut self.state) else { return };
        let arena = plane.machine.arena();
        let geometry = arena.geometry();
        let Micro { plan, next, merger, pending, .. } = &mut *micro;
        let slot = geometry.slot(index, merger.next_buffer());
        let mut trailer = tools.engine.micro_batch(state, plan, MicroBatch(*next), arena.lease(slot));
        trailer.stop = self.controls.stop;
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
        self.task = Task::Micro(micro);
        self.work(tools, Work::MicroBatch);
    }

    /// Gives away one piece after the other of what was computed, as a backward pass does, and then starts the reduction.
    pub(super) fn offer(&mut self, tools: &mut Tools<'_>, micro: Box<Micro>, pieces: usize) {
        let Some(plane) = &mut self.plane else { return };
        if pieces == OFFERS || !plane.machine.takes_offers() {
            self.busy = tools.now.since(self.begun).as_secs_f64();
            return self.reduce(tools, &micro);
        }
        let from = tools.engine.gradient_len() * (OFFERS - pieces) / (OFFERS + 1);
        plane.gathering &= pieces > 0;
        plane.sequence = FIRST_STEP + micro.plan.step.0;
        plane.machine.offer(Sequence(plane.sequence), micro.plan.micro_batches, from);
        self.task = Task::Offer(micro, pieces);
        self.work(tools, Work::Backward);
        self.pump(tools);
    }

    pub(super) fn reduce(&mut self, tools: &mut Tools<'_>, micro: &Micro) {
        let Some(plane) = &mut self.plane else { return };
        let (micro_batches, trailers) = (micro.plan.micro_batches, &micro.trailers[..]);
        let sequence = FIRST_STEP + micro.plan.step.0;
        // Where part of it was offered, sums may be on their way.
        plane.gathering &= plane.sequence == sequence;
        plane.sequence = sequence;
        plane.machine.start(Sequence(plane.sequence), &Op::AllReduce { micro_batches, trailers });
        self.task = Task::Reduce(micro.plan);
        self.began(tools);
    }

    pub(super) fn update(&mut self, tools: &mut Tools<'_>, plan: &StepPlan, trailer: Trailer) {
        let (Some(plane), Some(state)) = (&mut self.plane, &mut self.state) else { return };
        let (step, generation) = (plan.step, plane.generation);
        let gradient = plane.machine.arena().lease(0).to_vec();
        let (lr, gradient_norm) = tools.engine.update(state, step, &gradient, &trailer);
        let state_digest = Digest(state.state_digest());
        tools.asks.push(Ask::Updated { generation, step, gradient, state_digest });
        let seconds = tools.now.since(self.begun).as_secs_f64();
        let (busy, epoch) = (self.busy, plan.epoch);
        let record = StepRecord { generation, step, epoch, trailer, seconds, busy, lr, gradient_norm };
        tools.tell(News::Step(record));
        let due = tools.engine.job().schedule.after(step, StopFlag(trailer.stop));
        if due.verify {
            self.todo.push_back(Todo::Verify(step));
        }
        if let Some(epoch) = due.validate {
            self.todo.push_back(Todo::Validate(epoch, step));
        }
        if due.checkpoint {
            self.todo.push_back(Todo::Save(step));
        }
        if due.ends {
            return self.todo.push_back(Todo::Finish);
        }
        if let Some(epoch) = due.validate {
            self.todo.push_back(Todo::AwaitValidated(epoch));
        }
        // With a set stop flag there is no step after this one: the next generation comes.
        if trailer.stop == 0 {
            self.todo.push_back(Todo::Step(step.next()));
        }
    }

    pub(super) fn evaluate(&mut self, tools: &mut Tools<'_>, epoch: Epoch, step: Step) {
        let (Some(plane), Some(state)) = (&self.plane, &mut self.state) else { return };
        let range = cut_evenly(VALIDATION, plane.members.world().0)[plane.rank.index()];
        let mut counts = no_counts();
        let mut parts = Vec::new();
        for root in roots(range, VALIDATION) {
            let mut merger = Merger::default();
            let mut pending = vec![Trailer::EMPTY; Merger::buffers(root.len())];
            for m in root.lo..root.hi {
                pending[merger.next_buffer()] = tools.engine.evaluate(state, MicroBatch(m), &mut counts);
                merger.push(|l, r| pending[l] = pending[l].merge(&pending[r]));
            }
            merger.finish(|l, r| pending[l] = pending[l].merge(&pending[r]));
            parts.push((root, pending[0]));
        }
        let part = ValidationPart { epoch, step, parts, counts: flatten(&counts) };
        tools.tell(News::Validation(plane.generation, part));
    }
}
