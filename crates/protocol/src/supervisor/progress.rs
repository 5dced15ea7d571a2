//! Steps: committed once and in order, and the deadline after which a standstill is a hang.
//!
//! This file does not know members, only records and times.

use crate::effect::SupervisorEffect;
use crate::message::{MAX_STEPS_IN_REPORT, Pending, StepRecord, StopFlag};
use crate::schedule::{Due, Schedule};
use crate::timeouts::Timeouts;
use dtrain_types::{Generation, Instant, Step};
use std::collections::BTreeMap;
use std::time::Duration;

/// How many steps a generation makes before its pace counts as known: the first ones compile, fault pages in and warm up.
const LEARNED_FROM: u32 = 3;
/// A hang is this many times the slowest that was seen.
const SLACK: u32 = 10;

/// What is committed, where the generation stands, and how fast it goes.
///
/// A step is committed once per run; after a resume from a checkpoint a generation makes again what is committed
/// already. So there are two counts: `committed` never falls, `at` begins anew with each generation.
#[derive(Debug)]
pub(super) struct Progress {
    committed: Step,
    /// Reported, not committed yet, without a hole.
    ahead: BTreeMap<Step, StepRecord>,
    /// The newest step that was made in this generation, or the state that it began with.
    at: Step,
    /// The newest step whose trailer had the stop flag set, who made it, and its bits.
    stop: Option<(Generation, Step, StopFlag)>,
    /// The step of this generation after which there is no other.
    ended: Option<Step>,
    /// The longest range of a rank, in micro-batches; at least 1.
    share: u32,
    plain: Learned,
    owing: Learned,
    /// Whether something (a validation, a checkpoint) is due after the step at `at`.
    owes: bool,
    moved_at: Instant,
    moved: Instant,
    /// The generation in which the run last went back.
    back: Generation,
    told: Step,
    /// Members of a life before tell what they know one after the other.
    takes_over: bool,
}

/// The slowest of a kind of pause between steps.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    seen: u32,
    slowest: Duration,
}

impl Learned {
    fn note(&mut self, took: Duration) {
        self.seen += 1;
        if self.seen > 1 {
            self.slowest = self.slowest.max(took);
        }
    }
}

impl Progress {
    /// Nothing is reported yet; the state comes from `start`, and steps up to `committed` are known.
    pub fn new(start: Step, committed: Step) -> Self {
        Self {
            committed,
            ahead: BTreeMap::new(),
            at: start,
            stop: None,
            ended: None,
            share: 1,
            plain: Learned::default(),
            owing: Learned::default(),
            owes: false,
            moved_at: Instant::ZERO,
            moved: Instant::ZERO,
            back: Generation(0),
            told: start,
            takes_over: false,
        }
    }

    /// The same for a supervisor that takes over from another one.
    pub fn taking_over(self) -> Self {
        Self { takes_over: true, ..self }
    }

    /// A generation begins to run from the state after `at`; `share` is its longest range, `owes` whether it begins with
    /// something that is due after that state.
    pub fn begin(&mut self, now: Instant, at: Step, share: u32, pending: Pending) {
        self.at = at;
        self.ended = pending.ends.then_some(at);
        self.share = share.max(1);
        self.owes = pending.validate || pending.checkpoint || pending.ends;
        self.moved_at = now;
        self.touch(now);
    }

    /// The run goes back to `step` in this generation: the steps after it are made anew, and their stop flags too.
    pub fn go_back(&mut self, generation: Generation, step: Step) {
        self.stop = None;
        (self.back, self.told) = (generation, step);
    }

    /// Nobody tells of the steps up to this one any more: they count as committed.
    pub fn pass_over(&mut self, to: Step) {
        self.committed = self.committed.max(to);
        self.told = self.told.max(to);
        self.ahead = self.ahead.split_off(&to.next());
    }

    /// The newest step whose record was told since the run last went back. No later one may be acknowledged, even if it was
    /// recorded before: the record of its second making has a stop flag that nobody has heard of.
    pub fn told(&self) -> Step {
        self.told
    }

    /// Counts `now` as a sign of progress: a validation came, or our own clock stood still.
    pub fn touch(&mut self, now: Instant) {
        self.moved = now;
    }

    /// Our own process stood still: that teaches nothing about how long anything takes.
    pub fn forgive(&mut self, now: Instant) {
        (self.moved, self.moved_at) = (now, now);
    }

    pub fn committed(&self) -> Step {
        self.committed
    }

    /// The newest step that the generation made.
    pub fn at(&self) -> Step {
        self.at
    }

    pub fn ended(&self) -> Option<Step> {
        self.ended
    }

    /// The generation makes no step after the newest.
    pub fn end(&mut self) {
        self.ended = Some(self.at);
    }

    /// The newest step whose record, and those of all before it, are here.
    pub fn known(&self) -> Step {
        self.ahead.last_key_value().map_or(self.committed, |(step, _)| *step)
    }

    /// The stop flag that all read in the trailer of `step`.
    pub fn stop_of(&self, step: Step) -> StopFlag {
        self.stop.filter(|(_, at, _)| *at == step).map_or(StopFlag::default(), |(_, _, bits)| bits)
    }

    /// Takes in the records of one Report, whose sender stands at `applied`.
    ///
    /// *Errors*: what is impossible about them, in words.
    pub fn take(&mut self, steps: &[StepRecord], applied: Option<Step>) -> Result<(), String> {
        if steps.is_empty() {
            return Ok(());
        }
        // With this, `ahead` never reaches further than one report past what is known (S10).
        if steps.len() > MAX_STEPS_IN_REPORT {
            return Err(format!("{} steps in one report, the limit is {MAX_STEPS_IN_REPORT}", steps.len()));
        }
        // Who copied a state has no record of the steps that led to it. They are known before it may go on, but to a supervisor that
        // takes over: others will tell it, and this one says the rest again.
        //
        // 1. A rank makes step 86 and breaks off in 87, which others finish; it copies their state and makes step 88.
        // 2. Nothing is written down since: its report has the records of 86 and 88.
        let mut known = self.known();
        let mut taken = 0;
        for record in steps {
            if record.step > known.next() {
                break;
            }
            known = known.max(record.step);
            taken += 1;
        }
        if let Some(pair) = steps.windows(2).find(|pair| pair[0].step >= pair[1].step) {
            return Err(format!("step {} follows step {}", pair[1].step, pair[0].step));
        }
        if taken < steps.len() && !self.takes_over {
            let ahead = steps[taken].step;
            return Err(format!("step {ahead} follows nothing, known are {known}"));
        }
        let steps = &steps[..taken];
        let Some(newest) = steps.last().copied() else { return Ok(()) };
        if Some(newest.step) > applied {
            return Err(format!("it reports step {} and stands at {applied:?}", newest.step));
        }
        let made = (newest.generation, newest.step);
        if newest.trailer.stop != 0
            && self.stop.is_none_or(|(generation, step, _)| (generation, step) <= made)
        {
            self.stop = Some((newest.generation, newest.step, StopFlag(newest.trailer.stop)));
        }
        if newest.generation >= self.back {
            self.told = self.told.max(newest.step);
        }
        for record in steps.iter().filter(|record| record.step > self.committed) {
            self.ahead.entry(record.step).or_insert(*record);
        }
        Ok(())
    }

    /// Commits, in order, what is reported and not above `limit`; says whether there was anything.
    pub fn commit(&mut self, limit: Step, effects: &mut Vec<SupervisorEffect>) -> bool {
        let before = self.committed;
        while self.committed < limit {
            let Some(record) = self.ahead.remove(&self.committed.next()) else { break };
            self.committed = record.step;
            effects.push(SupervisorEffect::Commit(record));
        }
        self.committed > before
    }

    /// A member of the generation stands at `applied`: gives each step that is new in it, with what is due after it.
    pub fn made(
        &mut self,
        now: Instant,
        applied: Step,
        seconds: f64,
        schedule: &Schedule,
    ) -> Vec<(Step, Due)> {
        let mut done = Vec::new();
        // Beyond what is known nobody can tell which flag a step had.
        while self.ended.is_none() && self.at < applied.min(self.known()).min(self.told) {
            self.at = self.at.next();
            self.learn(now, seconds);
            let due = schedule.after(self.at, self.stop_of(self.at));
            self.owes = due.verify || due.validate || due.checkpoint || due.ends;
            self.ended = due.ends.then_some(self.at);
            done.push((self.at, due));
        }
        done
    }

    fn learn(&mut self, now: Instant, seconds: f64) {
        if self.owes {
            // Not from `moved`: the parts of a validation move that, and its whole length is what counts.
            self.owing.note(now.since(self.moved_at));
        } else {
            // A rank may report any number; a bad one only means that the floor counts.
            let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            self.plain.note(seconds / self.share);
        }
        self.moved = now;
        self.moved_at = now;
    }

    /// When the world counts as hanging while something that takes as long as it takes holds it up.
    pub fn patient_deadline(&self, times: &Timeouts) -> Instant {
        self.moved + times.patience
    }

    /// When the world counts as hanging, if nothing moves until then.
    pub fn deadline(&self, times: &Timeouts) -> Instant {
        let (learned, share) = if self.owes { (self.owing, 1) } else { (self.plain, self.share) };
        if learned.seen < LEARNED_FROM || self.ended.is_some() {
            return self.patient_deadline(times);
        }
        let slowest = learned.slowest.saturating_mul(share).saturating_mul(SLACK);
        self.moved + slowest.max(times.progress)
    }

    /// How long nothing has moved.
    pub fn still(&self, now: Instant) -> Duration {
        now.since(self.moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Every;
    use dtrain_types::{Epoch, Trailer};

    const SCHEDULE: Schedule = Schedule {
        last: Step(100),
        steps_per_epoch: 10,
        checkpoint: Every::End,
        validation: Every::Epochs(1),
        validation_micro_batches: 4,
        verify: 0,
    };

    fn record(step: u64) -> StepRecord {
        StepRecord {
            generation: Generation(1),
            step: Step(step),
            epoch: Epoch(0),
            trailer: Trailer::EMPTY,
            seconds: 0.1,
            busy: 0.1,
            lr: 1e-3,
            gradient_norm: 1.0,
        }
    }

    fn records(steps: std::ops::RangeInclusive<u64>) -> Vec<StepRecord> {
        steps.map(record).collect()
    }

    fn committed(effects: &[SupervisorEffect]) -> Vec<u64> {
        effects.iter().map(|e| if let SupervisorEffect::Commit(r) = e { r.step.0 } else { 0 }).collect()
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn begun(from: u64) -> Progress {
        let mut progress = Progress::new(Step(0), Step(0));
        progress.begin(at(0), Step(from), 1, Pending::default());
        progress
    }

    #[test]
    fn steps_are_committed_once_and_in_order() {
        let (mut progress, mut effects) = (begun(0), Vec::new());
        assert_eq!(progress.take(&records(1..=3), Some(Step(3))), Ok(()));
        assert!(progress.commit(Step(2), &mut effects));
        assert_eq!(progress.take(&records(2..=4), Some(Step(4))), Ok(()));
        assert!(progress.commit(Step(u64::MAX), &mut effects));
        assert!(!progress.commit(Step(u64::MAX), &mut effects));
        assert_eq!(committed(&effects), [1, 2, 3, 4]);
    }

    #[test]
    fn records_with_a_hole_or_beyond_their_sender_are_impossible() {
        let mut progress = begun(0);
        assert!(progress.take(&records(2..=2), Some(Step(2))).is_err());
        assert!(progress.take(&[record(1), record(3)], Some(Step(3))).is_err());
        assert!(progress.take(&records(1..=2), Some(Step(1))).is_err());
        assert!(progress.take(&records(1..=257), Some(Step(257))).is_err());
        assert_eq!(progress.take(&records(1..=2), Some(Step(2))), Ok(()));
        assert_eq!(progress.take(&records(3..=3), Some(Step(3))), Ok(()), "what is known needs no commit");
        assert_eq!(
            progress.take(&[record(2), record(4)], Some(Step(4))),
            Ok(()),
            "it copied the state of step 3"
        );
        assert!(progress.take(&[record(4), record(4)], Some(Step(4))).is_err());
    }

    #[test]
    fn who_takes_over_hears_the_steps_in_any_order_and_commits_them_in_theirs() {
        let (mut progress, mut effects) = (Progress::new(Step(0), Step(2)).taking_over(), Vec::new());
        assert_eq!(progress.take(&[record(3), record(5)], Some(Step(5))), Ok(()));
        assert_eq!(progress.take(&records(5..=5), Some(Step(5))), Ok(()));
        assert_eq!(progress.known(), Step(3), "nobody has told of step 4");
        assert_eq!(progress.take(&records(4..=5), Some(Step(5))), Ok(()));
        progress.commit(Step(u64::MAX), &mut effects);
        assert_eq!(committed(&effects), [3, 4, 5]);
    }

    #[test]
    fn a_step_that_is_made_again_after_a_resume_is_due_again_and_not_committed_again() {
        let (mut progress, mut effects) = (begun(0), Vec::new());
        progress.take(&records(1..=12), Some(Step(12))).expect("possible");
        progress.commit(Step(u64::MAX), &mut effects);
        let due = progress.made(at(1), Step(12), 0.1, &SCHEDULE);
        assert_eq!(due.iter().filter(|(_, due)| due.validate).count(), 1);
        effects.clear();
        progress.begin(at(2), Step(5), 1, Pending::default());
        progress.take(&records(6..=12), Some(Step(12))).expect("possible");
        assert!(!progress.commit(Step(u64::MAX), &mut effects) && effects.is_empty());
        let again = progress.made(at(3), Step(12), 0.1, &SCHEDULE);
        assert_eq!(again.iter().map(|(step, _)| step.0).collect::<Vec<_>>(), [6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(again.iter().filter(|(_, due)| due.validate).count(), 1);
    }

    #[test]
    fn a_drain_ends_the_generation_and_is_forgotten_with_the_ranks_that_had_it() {
        let mut progress = begun(0);
        let mut last = record(3);
        last.trailer.stop = StopFlag::DRAIN.0;
        progress.take(&[record(1), record(2), last], Some(Step(3))).expect("possible");
        assert_eq!(progress.made(at(1), Step(3), 0.1, &SCHEDULE).len(), 3);
        assert_eq!((progress.ended(), progress.stop_of(Step(3))), (Some(Step(3)), StopFlag::DRAIN));
        progress.go_back(Generation(2), Step(1));
        progress.begin(at(2), Step(1), 1, Pending::default());
        let again = [2, 3].map(|step| StepRecord { generation: Generation(2), ..record(step) });
        progress.take(&again, Some(Step(3))).expect("possible");
        assert_eq!(progress.made(at(3), Step(3), 0.1, &SCHEDULE).len(), 2);
        assert_eq!(progress.ended(), None);
    }

    #[test]
    fn a_step_that_is_made_again_counts_once_its_new_record_was_told() {
        let (mut progress, mut effects) = (begun(0), Vec::new());
        progress.take(&records(1..=4), Some(Step(4))).expect("possible");
        progress.commit(Step(u64::MAX), &mut effects);
        progress.go_back(Generation(2), Step(2));
        progress.begin(at(2), Step(2), 1, Pending::default());
        assert_eq!((progress.committed(), progress.told()), (Step(4), Step(2)));
        assert_eq!(progress.made(at(3), Step(3), 0.1, &SCHEDULE), [], "nobody has heard its stop flag");
        // A late word of the generation before says nothing of the second making.
        progress.take(&records(3..=3), Some(Step(3))).expect("possible");
        assert_eq!(progress.told(), Step(2));
        let mut again = record(3);
        (again.generation, again.trailer.stop) = (Generation(2), StopFlag::DRAIN.0);
        progress.take(&[again], Some(Step(3))).expect("possible");
        assert_eq!(progress.told(), Step(3));
        assert_eq!(progress.made(at(4), Step(3), 0.1, &SCHEDULE).len(), 1);
        assert_eq!(progress.ended(), Some(Step(3)));
    }

    #[test]
    fn time_in_which_we_stood_still_ourselves_is_no_time_that_anybody_took() {
        let times = Timeouts::derive(Duration::from_secs(1)).expect("in range");
        let mut progress = begun(0);
        (progress.owes, progress.owing.seen) = (true, LEARNED_FROM);
        progress.forgive(at(100));
        assert_eq!(progress.deadline(&times), at(100) + times.progress);
        progress.take(&records(1..=1), Some(Step(1))).expect("possible");
        progress.made(at(101), Step(1), 0.1, &SCHEDULE);
        progress.owes = true;
        assert_eq!(
            progress.deadline(&times),
            at(101) + Duration::from_secs(10),
            "a second, and not a hundred"
        );
    }

    #[test]
    fn a_hang_is_many_times_the_slowest_step_and_never_before_the_pace_is_known() {
        let times = Timeouts::derive(Duration::from_secs(1)).expect("in range");
        let mut progress = begun(0);
        assert_eq!(progress.deadline(&times), at(0) + times.patience);
        progress.take(&records(1..=8), Some(Step(8))).expect("possible");
        for step in 1..=8 {
            progress.made(at(step), Step(step), 3.0, &SCHEDULE);
        }
        assert_eq!(progress.deadline(&times), at(8) + Duration::from_secs(30));
        progress.begin(at(9), Step(8), 2, Pending::default());
        assert_eq!(
            progress.deadline(&times),
            at(9) + Duration::from_secs(60),
            "twice the range, twice the time"
        );
    }
}
