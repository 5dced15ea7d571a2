//! The agenda: what a rank does next in a generation, down to the parts of an update.
//!
//! A step is computed, reduced and applied; what is due after it (verification, validation, checkpoint, end) follows in one order on
//! every rank. The compute thread of the runtime and that of the simulator both take their tasks from here, one after the other, and
//! tell what came of them. Where ranks share a state, this is also where it is known that peers may have decided an update that this
//! rank is to leave (S3, S4).
//!
//! It does not know gradients, threads or the network, nor how a task is done.

use crate::message::{Pending, ResumePoint, StartFrom, StateSource, StepRecord, StopFlag};
use crate::schedule::{Due, Schedule};
use dtrain_types::CheckpointId;
use dtrain_types::{MicroBatch, Rank, Step, Trailer};
use std::collections::VecDeque;

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Forward and backward of this rank's micro-batches of a step.
    Compute(Step),
    /// The sum over all ranks.
    Reduce(Step),
    /// The update of a state of its own.
    Update(Step),
    /// A look at this rank's share of the sum; nothing is changed yet.
    Measure(Step),
    /// Where ranks hold shards: each learns what the others have measured.
    Agree(Step),
    /// Until all ranks are here.
    Meet(Step),
    /// This rank's share of the update of a state that all share, or of the shards that it holds: the first rank that comes here decides it.
    UpdateShare(Step),
    /// Where ranks hold shards: each has what the others hold of the parameters.
    Gather(Step),
    /// The update is done by all: from now on the state after it is read.
    Commit(Step),
    /// Digest the state and tell.
    Verify(Step),
    /// This rank's share of a validation.
    Validate(Step),
    /// Until that validation is recorded: were a member lost, the others could not make it again with a state that has moved on.
    AwaitValidation(Step),
    /// This rank's shard of a checkpoint, if it writes one.
    Checkpoint(Step),
    /// There is no further step.
    Finish,
}

/// Who has the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateHolder {
    /// Each rank has one of its own.
    Rank,
    /// The ranks of the host share one, and each updates its share.
    Host,
    /// Each rank holds some shards, and updates them.
    Shards,
}

/// What a rank does to a shared state before all adopt it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It lays out the state that it has.
    Publish,
    /// It completes the update that was decided last.
    Complete,
    /// It waits for another rank.
    Wait,
}

/// What the member tells its driver while a task waits: see [`Agenda::is_ready`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// No further step for now: too much is not acknowledged.
    pub paused: bool,
    /// All checkpoints up to this one are written or given up.
    pub settled: CheckpointId,
    /// All validations up to this step are recorded.
    pub validated: Step,
    /// The run ends after this step.
    pub enough: Option<Step>,
    /// A shard is being written.
    pub writing: bool,
    /// What is being written is still read where the state of this rank lies.
    pub lent: bool,
}

/// What a rank does next. The driver calls [`Agenda::begin`] when a generation runs, then takes one task after the other
/// ([`Agenda::take`]) as soon as it is ready, does it, and tells what came of it where a method here asks for that.
///
/// *Order*: a function of the configuration and of what was told: all ranks of a generation have the same tasks.
#[derive(Clone, Debug)]
pub struct Agenda {
    schedule: Schedule,
    holder: StateHolder,
    pending: VecDeque<Task>,
    /// The newest step that is made, and the stop flag of its trailer.
    at: (Step, StopFlag),
    /// The step whose update peers may still decide when this rank is told to leave; what the update comes to is not in it yet.
    undecided: Option<StepRecord>,
    /// The checkpoint that this rank began last, in any generation.
    begun: Option<CheckpointId>,
}

impl Agenda {
    /// A rank that has nothing to do.
    #[must_use]
    pub fn new(schedule: Schedule) -> Self {
        Self {
            schedule,
            holder: StateHolder::Rank,
            pending: VecDeque::new(),
            at: (Step(0), StopFlag::default()),
            undecided: None,
            begun: None,
        }
    }

    /// What a rank does to a shared state that is to be that of `resume_point`. Nobody has written into the memory of the sum since the sum was
    /// there: if an update is not done to its end, no rank has gone on.
    #[must_use]
    pub fn opening(resume_point: &ResumePoint, rank: Rank, writers: &[Rank]) -> Opening {
        match &resume_point.source {
            StateSource::Start(StartFrom::Fresh) if rank == Rank(0) => Opening::Publish,
            StateSource::Start(StartFrom::Checkpoint(_)) if writers.first() == Some(&rank) => {
                Opening::Publish
            }
            StateSource::Ranks(_) if rank == Rank(0) => Opening::Complete,
            StateSource::Start(_) | StateSource::Ranks(_) | StateSource::Shards(_) => Opening::Wait,
        }
    }

    /// A generation runs: what is pending of the step before comes first. `from` may lie past the last step: then only that is left.
    pub fn begin(&mut self, holder: StateHolder, from: Step, pending: Pending) {
        assert!(self.undecided.is_none(), "a generation is left before the next one runs");
        self.holder = holder;
        self.pending.clear();
        let Pending { validate, checkpoint, ends } = pending;
        let due = Due { verify: false, validate, checkpoint, ends: ends || from > self.schedule.last };
        self.at = (Step(from.0.saturating_sub(1)), StopFlag::default());
        self.follow(self.at.0, due, self.at.1);
    }

    /// The task that is next.
    #[must_use]
    pub fn next(&self) -> Option<Task> {
        self.pending.front().copied()
    }

    /// Whether the next task need not wait for anything that a member tells.
    #[must_use]
    pub fn is_ready(&self, signals: &Signals) -> bool {
        match self.next() {
            Some(Task::Compute(_)) => !signals.paused,
            Some(Task::AwaitValidation(step)) => signals.validated >= step,
            // One at a time: a run of a thousand steps a second would else be far ahead of its newest manifest (S10).
            Some(Task::Checkpoint(_)) => {
                !signals.writing && self.begun.is_none_or(|begun| begun <= signals.settled)
            }
            // For memory alone: a state that changes while it is lent is there twice.
            Some(Task::UpdateShare(_)) => !signals.lent,
            _ => true,
        }
    }

    /// Takes the next task.
    pub fn take(&mut self) -> Option<Task> {
        self.pending.pop_front()
    }

    /// Whether another step follows at once.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        matches!(self.next(), Some(Task::Compute(_)))
    }

    /// The collectives broke off: nothing follows in this generation.
    pub fn stop(&mut self) {
        self.pending.clear();
    }

    /// The sum of a step is there.
    ///
    /// *Errors*: the micro-batch that was not finite. All ranks read the same trailer, so nobody commits.
    pub fn handle_reduced(&mut self, trailer: &Trailer) -> Result<(), MicroBatch> {
        if trailer.non_finite != Trailer::ALL_FINITE {
            self.pending.clear();
            return Err(MicroBatch(trailer.non_finite));
        }
        Ok(())
    }

    /// This rank has measured a step: from here on its peers can decide it.
    pub fn handle_measured(&mut self, record: StepRecord) {
        self.undecided = Some(record);
    }

    /// A step is made, and its state is in hand.
    pub fn handle_committed(&mut self, step: Step, stop: StopFlag) {
        self.undecided = None;
        self.at = (step, stop);
        let due = self.schedule.after(step, stop);
        self.follow(step, due, stop);
    }

    /// The validation that was waited for is recorded, and perhaps the run ends here, before its schedule says. Every rank stands
    /// at the same step, so no flag has to travel: the tasks that were planned behind it are planned anew.
    pub fn handle_validated(&mut self, enough: Option<Step>) {
        let (step, stop) = self.at;
        let Some(last) = enough.filter(|last| *last < self.schedule.last) else { return };
        self.schedule.last = last;
        if step == last {
            self.pending.clear();
            let Due { checkpoint, .. } = self.schedule.after(step, stop);
            self.follow(step, Due { verify: false, validate: false, checkpoint, ends: true }, stop);
        }
    }

    /// This rank has begun to write its shard of a checkpoint.
    pub fn handle_checkpoint(&mut self, id: CheckpointId) {
        self.begun = Some(id);
    }

    /// The generation is left with a state of `applied` updates, and nothing can be decided in it any more. Gives the step that this
    /// rank did not see to its end and that is made all the same.
    pub fn handle_left(&mut self, applied: Option<Step>) -> Option<StepRecord> {
        self.pending.clear();
        self.undecided.take().filter(|record| Some(record.step) == applied)
    }

    /// Notes what is due after a step, and the step that follows.
    fn follow(&mut self, step: Step, due: Due, stop: StopFlag) {
        let Due { verify, validate, checkpoint, ends } = due;
        self.pending.extend(verify.then_some(Task::Verify(step)));
        if validate {
            self.pending.extend([Task::Validate(step), Task::AwaitValidation(step)]);
        }
        self.pending.extend(checkpoint.then_some(Task::Checkpoint(step)));
        if ends {
            self.pending.push_back(Task::Finish);
        } else if stop == StopFlag::default() {
            // With a set stop flag all ranks stand here: the next word is the order to leave this generation.
            self.step(step.next());
        }
    }

    fn step(&mut self, step: Step) {
        self.pending.extend([Task::Compute(step), Task::Reduce(step)]);
        match self.holder {
            StateHolder::Rank => self.pending.push_back(Task::Update(step)),
            StateHolder::Host => self.pending.extend([
                Task::Measure(step),
                Task::Meet(step),
                Task::UpdateShare(step),
                Task::Meet(step),
                Task::Commit(step),
            ]),
            // Nobody updates what it holds before all have what they need to do the same, dead or alive.
            StateHolder::Shards => self.pending.extend([
                Task::Measure(step),
                Task::Agree(step),
                Task::Meet(step),
                Task::UpdateShare(step),
                Task::Gather(step),
                Task::Commit(step),
            ]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Every;
    use dtrain_types::{Epoch, Generation};

    fn agenda(holder: StateHolder) -> Agenda {
        let schedule = Schedule {
            last: Step(6),
            steps_per_epoch: 3,
            checkpoint: Every::Steps(2),
            validation: Every::Epochs(1),
            validation_micro_batches: 1,
            verify: 3,
        };
        let mut agenda = Agenda::new(schedule);
        agenda.begin(holder, Step(1), Pending::default());
        agenda
    }

    fn taken(agenda: &mut Agenda) -> Vec<Task> {
        std::iter::from_fn(|| agenda.take()).collect()
    }

    fn record(step: u64) -> StepRecord {
        StepRecord {
            generation: Generation(1),
            step: Step(step),
            epoch: Epoch(0),
            trailer: Trailer::EMPTY,
            seconds: 0.0,
            busy: 0.0,
            lr: 0.0,
            gradient_norm: 0.0,
        }
    }

    #[test]
    fn what_is_due_after_a_step_comes_in_one_order_before_the_next_step() {
        let mut agenda = agenda(StateHolder::Rank);
        let step = |n| [Task::Compute(Step(n)), Task::Reduce(Step(n)), Task::Update(Step(n))];
        assert_eq!(taken(&mut agenda), step(1));
        agenda.handle_committed(Step(2), StopFlag::default());
        assert_eq!(taken(&mut agenda), [&[Task::Checkpoint(Step(2))][..], &step(3)].concat());
        agenda.handle_committed(Step(3), StopFlag::default());
        let due = [Task::Verify(Step(3)), Task::Validate(Step(3)), Task::AwaitValidation(Step(3))];
        assert_eq!(taken(&mut agenda), [&due[..], &step(4)].concat());
        agenda.handle_committed(Step(6), StopFlag::default());
        let tasks = taken(&mut agenda);
        assert_eq!(tasks[tasks.len() - 2..], [Task::Checkpoint(Step(6)), Task::Finish]);
    }

    #[test]
    fn a_stop_flag_leaves_no_further_step_and_a_drain_ends_with_a_checkpoint() {
        let mut agenda = agenda(StateHolder::Rank);
        taken(&mut agenda);
        agenda.handle_committed(Step(1), StopFlag::REFORM);
        assert_eq!(taken(&mut agenda), []);
        agenda.handle_committed(Step(1), StopFlag::DRAIN);
        assert_eq!(taken(&mut agenda), [Task::Checkpoint(Step(1)), Task::Finish]);
    }

    #[test]
    fn a_validation_that_is_enough_ends_the_run_at_its_step_with_a_checkpoint() {
        let mut agenda = agenda(StateHolder::Rank);
        taken(&mut agenda);
        agenda.handle_committed(Step(3), StopFlag::default());
        assert_eq!(agenda.take(), Some(Task::Verify(Step(3))));
        assert_eq!(agenda.take(), Some(Task::Validate(Step(3))));
        assert_eq!(agenda.take(), Some(Task::AwaitValidation(Step(3))));
        let mut other = agenda.clone();
        agenda.handle_validated(Some(Step(3)));
        assert_eq!(taken(&mut agenda), [Task::Checkpoint(Step(3)), Task::Finish]);
        other.handle_validated(None);
        assert_eq!(other.next(), Some(Task::Compute(Step(4))));
    }

    #[test]
    fn a_generation_that_begins_behind_the_last_step_does_what_is_pending_and_ends() {
        let mut agenda = agenda(StateHolder::Rank);
        agenda.begin(StateHolder::Rank, Step(7), Pending { checkpoint: true, ..Pending::default() });
        assert_eq!(taken(&mut agenda), [Task::Checkpoint(Step(6)), Task::Finish]);
    }

    #[test]
    fn tasks_wait_for_what_the_member_tells() {
        let mut agenda = agenda(StateHolder::Rank);
        let told = Signals::default();
        assert!(agenda.is_ready(&told) && !agenda.is_ready(&Signals { paused: true, ..told }));
        agenda.begin(StateHolder::Rank, Step(3), Pending { checkpoint: true, ..Pending::default() });
        assert!(agenda.is_ready(&told) && !agenda.is_ready(&Signals { writing: true, ..told }));
        let id = |step| CheckpointId { generation: Generation(1), step: Step(step) };
        agenda.handle_checkpoint(id(2));
        assert!(!agenda.is_ready(&Signals { settled: id(1), ..told }));
        assert!(agenda.is_ready(&Signals { settled: id(2), ..told }));
        agenda.begin(StateHolder::Rank, Step(4), Pending { validate: true, ..Pending::default() });
        assert_eq!(agenda.take(), Some(Task::Validate(Step(3))));
        assert!(!agenda.is_ready(&Signals { validated: Step(2), ..told }));
        assert!(agenda.is_ready(&Signals { validated: Step(3), ..told }));
        agenda.begin(StateHolder::Shards, Step(4), Pending::default());
        let lent = Signals { lent: true, ..told };
        while agenda.next() != Some(Task::UpdateShare(Step(4))) {
            assert!(agenda.is_ready(&lent), "{:?} changes nothing of the state", agenda.next());
            agenda.take();
        }
        assert!(agenda.is_ready(&told) && !agenda.is_ready(&lent));
    }

    #[test]
    fn a_step_that_peers_decide_counts_although_this_rank_left_it() {
        let mut agenda = agenda(StateHolder::Host);
        let tasks = taken(&mut agenda);
        let at = |n: usize| tasks[n];
        assert_eq!(
            [at(2), at(4), at(6)],
            [Task::Measure(Step(1)), Task::UpdateShare(Step(1)), Task::Commit(Step(1))]
        );
        assert!(at(3) == Task::Meet(Step(1)) && at(5) == at(3));
        agenda.handle_measured(record(1));
        assert_eq!(agenda.handle_left(Some(Step(0))), None, "nobody decided it");
        agenda.handle_measured(record(1));
        assert_eq!(agenda.handle_left(Some(Step(1))), Some(record(1)));
        agenda.begin(StateHolder::Host, Step(2), Pending::default());
        agenda.handle_measured(record(2));
        agenda.handle_committed(Step(2), StopFlag::default());
        assert_eq!(agenda.handle_left(Some(Step(2))), None, "it was told when it was made");
    }

    #[test]
    fn nobody_goes_on_behind_a_sum_that_is_not_finite() {
        let mut agenda = agenda(StateHolder::Host);
        let trailer = Trailer { non_finite: 3, ..Trailer::EMPTY };
        assert_eq!(agenda.handle_reduced(&trailer), Err(MicroBatch(3)));
        assert_eq!(agenda.next(), None);
    }
}
