//! Steps: committed once and in order, and the deadline after which a standstill is a hang.
//!
//! This file does not know members, only records and times.

use crate::effect::SupervisorEffect;
use crate::message::{MAX_STEPS_IN_REPORT, StepRecord};
use crate::schedule::{Due, Schedule};
use crate::timeouts::Timeouts;
use dtrain_types::{Instant, Step};
use std::collections::BTreeMap;
use std::time::Duration;

/// How many steps a generation makes before its pace counts as known: the first ones compile, fault pages in and warm up.
const LEARNED_FROM: u32 = 3;
/// A hang is this many times the slowest that was seen.
const SLACK: u32 = 10;

/// What is committed, what is reported ahead of it, and how fast it goes.
#[derive(Debug)]
pub(super) struct Progress {
    committed: Step,
    /// Reported, not committed yet: in ring mode they wait for all ranks.
    ahead: BTreeMap<Step, StepRecord>,
    /// The step after which there is no other, once it is committed.
    ended: Option<Step>,
    /// The longest range of a rank, in micro-batches; at least 1.
    share: u32,
    plain: Learned,
    owing: Learned,
    /// Whether something (a validation, a checkpoint) is due after the last committed step.
    owes: bool,
    committed_at: Instant,
    moved: Instant,
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
    pub fn new(start: Step) -> Self {
        Self {
            committed: start,
            ahead: BTreeMap::new(),
            ended: None,
            share: 1,
            plain: Learned::default(),
            owing: Learned::default(),
            owes: false,
            committed_at: Instant::ZERO,
            moved: Instant::ZERO,
        }
    }

    /// The world begins to run; `share` is the longest range.
    pub fn begin(&mut self, now: Instant, share: u32) {
        self.share = share.max(1);
        self.touch(now);
    }

    /// Counts `now` as a sign of progress: a validation came, or our own clock stood still.
    pub fn touch(&mut self, now: Instant) {
        self.moved = now;
    }

    pub fn committed(&self) -> Step {
        self.committed
    }

    pub fn ended(&self) -> Option<Step> {
        self.ended
    }

    /// Takes in the records of one Report, whose sender stands at `applied`.
    ///
    /// *Errors*: what is impossible about them, in words.
    pub fn take(&mut self, steps: &[StepRecord], applied: Option<Step>) -> Result<(), String> {
        let Some(first) = steps.first() else { return Ok(()) };
        // With this, `ahead` never reaches further than one report past the committed steps (S10).
        if steps.len() > MAX_STEPS_IN_REPORT {
            return Err(format!("{} steps in one report, the limit is {MAX_STEPS_IN_REPORT}", steps.len()));
        }
        if first.step > self.committed.next() {
            return Err(format!("its oldest step is {}, committed are {}", first.step, self.committed));
        }
        if let Some(pair) = steps.windows(2).find(|pair| pair[0].step.next() != pair[1].step) {
            return Err(format!("step {} follows step {}", pair[1].step, pair[0].step));
        }
        let newest = steps[steps.len() - 1].step;
        if Some(newest) > applied {
            return Err(format!("it reports step {newest} and stands at {applied:?}"));
        }
        for record in steps.iter().filter(|record| record.step > self.committed) {
            if self.ended.is_some_and(|ended| record.step > ended) {
                return Err(format!("step {} comes after the last one", record.step));
            }
            self.ahead.entry(record.step).or_insert(*record);
        }
        Ok(())
    }

    /// Commits, in order, what is reported and not above `limit`. Gives each step with what is due after it.
    pub fn commit(
        &mut self,
        now: Instant,
        limit: Step,
        schedule: &Schedule,
        effects: &mut Vec<SupervisorEffect>,
    ) -> Vec<(Step, Due)> {
        let mut done = Vec::new();
        while self.ended.is_none() && self.committed < limit {
            let Some(record) = self.ahead.remove(&self.committed.next()) else { break };
            self.learn(now, &record);
            self.committed = record.step;
            let due = schedule.after(record.step, record.trailer.stop);
            self.owes = due.verify || due.validate.is_some() || due.checkpoint || due.ends;
            self.ended = due.ends.then_some(record.step);
            effects.push(SupervisorEffect::Commit(record));
            done.push((record.step, due));
        }
        done
    }

    fn learn(&mut self, now: Instant, record: &StepRecord) {
        if self.owes {
            // Not from `moved`: the parts of a validation move that, and its whole length is what counts.
            self.owing.note(now.since(self.committed_at));
        } else {
            // A rank may report any number; a bad one only means that the floor counts.
            let seconds = Duration::try_from_secs_f64(record.seconds).unwrap_or_default();
            self.plain.note(seconds / self.share);
        }
        self.moved = now;
        self.committed_at = now;
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
    use crate::schedule::CheckpointEvery;
    use dtrain_types::{Epoch, Generation, Trailer};

    const SCHEDULE: Schedule = Schedule {
        last: Step(100),
        steps_per_epoch: 10,
        checkpoint: CheckpointEvery::End,
        validation_micro_batches: 4,
        verify: 0,
    };

    fn record(step: u64, seconds: f64) -> StepRecord {
        StepRecord {
            generation: Generation(1),
            step: Step(step),
            epoch: Epoch(0),
            trailer: Trailer::EMPTY,
            seconds,
            lr: 1e-3,
            gradient_norm: 1.0,
        }
    }

    fn committed(effects: &[SupervisorEffect]) -> Vec<u64> {
        effects.iter().map(|e| if let SupervisorEffect::Commit(r) = e { r.step.0 } else { 0 }).collect()
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn repeated_and_overlapping_reports_commit_each_step_once_and_in_order() {
        let (mut progress, mut effects) = (Progress::new(Step(0)), Vec::new());
        for range in [1..=2, 1..=3, 2..=2, 3..=5, 1..=5] {
            let steps: Vec<_> = range.map(|s| record(s, 0.1)).collect();
            assert_eq!(progress.take(&steps, Some(Step(9))), Ok(()));
            progress.commit(at(1), Step(u64::MAX), &SCHEDULE, &mut effects);
        }
        assert_eq!(committed(&effects), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn nothing_above_the_limit_is_committed() {
        let (mut progress, mut effects) = (Progress::new(Step(0)), Vec::new());
        assert_eq!(progress.take(&[record(1, 0.1), record(2, 0.1)], Some(Step(2))), Ok(()));
        assert_eq!(progress.commit(at(1), Step(1), &SCHEDULE, &mut effects).len(), 1);
        assert_eq!(progress.commit(at(1), Step(1), &SCHEDULE, &mut effects), []);
        assert_eq!(committed(&effects), [1]);
    }

    #[test]
    fn holes_and_steps_from_the_future_are_impossible() {
        let mut progress = Progress::new(Step(4));
        for (steps, applied) in [(vec![6], 6), (vec![5, 7], 7), (vec![5, 6], 5)] {
            let steps: Vec<_> = steps.into_iter().map(|s| record(s, 0.1)).collect();
            assert!(progress.take(&steps, Some(Step(applied))).is_err(), "{steps:?}");
        }
    }

    #[test]
    fn a_stop_flag_ends_the_steps() {
        let (mut progress, mut effects) = (Progress::new(Step(0)), Vec::new());
        let mut last = record(2, 0.1);
        last.trailer.stop = 1;
        assert_eq!(progress.take(&[record(1, 0.1), last], Some(Step(2))), Ok(()));
        progress.commit(at(1), Step(u64::MAX), &SCHEDULE, &mut effects);
        assert_eq!(progress.ended(), Some(Step(2)));
        assert!(progress.take(&[record(3, 0.1)], Some(Step(3))).is_err());
    }

    #[test]
    fn the_deadline_is_patience_first_then_ten_times_the_slowest_with_a_floor() {
        let times = Timeouts::derive(Duration::from_secs(1)).expect("a second is in range");
        let (mut progress, mut effects) = (Progress::new(Step(0)), Vec::new());
        progress.begin(at(0), 4);
        let mut step = |s, seconds, when: u64| {
            assert_eq!(progress.take(&[record(s, seconds)], Some(Step(s))), Ok(()));
            progress.commit(at(when), Step(s), &SCHEDULE, &mut effects);
            progress.deadline(&times)
        };
        assert_eq!(step(1, 30.0, 30), at(30 + 600));
        assert_eq!(step(2, 0.1, 31), at(31 + 600));
        assert_eq!(step(3, 0.1, 32), at(32 + 5), "the first step, thirty seconds long, is not learned from");
        assert_eq!(step(4, 2.0, 34), at(34 + 20));
        for s in 5..10 {
            step(s, 1.0, 35);
        }
        assert_eq!(step(10, 1.0, 36), at(36 + 600), "nothing is known of validations yet");
    }
}
