//! How far a run is and how it does: everything that its events and metrics say, folded into one value.
//!
//! The process that leads a run folds while it writes; `dtrain status` folds what the files hold. Both come to the same, and whoever
//! shows it, as a table or for Prometheus, need not know where it is from.

use crate::{EpochMetrics, GpuReadings, Metric, RunBegun, RunEvent, StepMetrics, Summary, UnixTime};
use dtrain_types::{Epoch, MemberId, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How much the newest step counts in the smoothed speed.
const SMOOTHING: f64 = 0.1;

/// Everything that is known of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// What was known when it began, the last time.
    pub begun: RunBegun,
    /// When that was.
    pub begun_at: Option<UnixTime>,
    /// When something was last heard of it.
    pub heard_at: Option<UnixTime>,
    /// How it does.
    pub state: RunState,
    /// The newest step and its numbers.
    pub newest: StepMetrics,
    /// The generation at work.
    pub generation: u64,
    /// Steps that were committed, those that were made again included.
    pub steps: u64,
    /// Samples fed.
    pub samples: u64,
    /// Time of steps, as a rank measured them. *Units*: seconds.
    pub step_seconds: f64,
    /// Time of that in which this rank waited for others. *Units*: seconds.
    pub waiting_seconds: f64,
    /// Samples a second, smoothed.
    pub speed: Option<f64>,
    /// The newest epoch that has ended.
    pub epoch: Option<Epoch>,
    /// What it came to, or what the validation inside of one came to that is newer, by name.
    pub results: BTreeMap<String, f64>,
    /// The step of that validation.
    pub results_step: Option<Step>,
    /// Ranks of the generation at work that are not lost.
    pub alive: u32,
    /// The most ranks that it had, or that it began with: as many as it is to have.
    pub wanted: u32,
    /// Every process slot.
    pub ranks: BTreeMap<MemberId, RankStanding>,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// The newest fault in words.
    pub newest_fault: Option<String>,
    /// Processes of ranks that were started in the place of others.
    pub restarts: u64,
    /// Recoveries.
    pub recoveries: u64,
    /// Their time. *Units*: seconds.
    pub recovery_seconds: f64,
    /// Steps that were lost with all who held them, and are made again.
    pub lost_steps: u64,
    /// Checkpoints that are complete.
    pub checkpoints: u64,
    /// Checkpoints that could not be written.
    pub failed_checkpoints: u64,
    /// The newest complete one: its folder's name.
    pub checkpoint: Option<String>,
    /// Its step.
    pub checkpoint_step: u64,
    /// The GPUs of the leading host, as they last were.
    pub gpus: BTreeMap<u32, GpuReadings>,
    /// What the run came to, once it has ended.
    pub summary: Option<Summary>,
}

/// How a run does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Its ranks are not ready yet.
    #[default]
    Starting,
    /// It makes steps.
    Training,
    /// A rank was lost, and no step was made since.
    Recovering,
    /// It has ended.
    Ended,
}

impl RunState {
    /// Every state with its word.
    pub const ALL: [(Self, &str); 4] = [
        (Self::Starting, "starting"),
        (Self::Training, "training"),
        (Self::Recovering, "recovering"),
        (Self::Ended, "ended"),
    ];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        let named = Self::ALL.iter().find(|(state, _)| *state == self);
        named.map_or("", |(_, word)| word)
    }
}

/// One process slot of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankStanding {
    /// Its rank in the newest generation that it was in.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// What it trains on.
    pub device: String,
    /// Its process.
    pub pid: u32,
    /// Which life of the slot.
    pub incarnation: u32,
    /// The newest generation that it was in.
    pub generation: u64,
    /// Whether it was lost, and is not back.
    pub is_lost: bool,
    /// Its faults.
    pub faults: u64,
    /// How many processes were started for it after the first.
    pub restarts: u64,
    /// Of one that is slow: its time for a micro-batch, as a multiple of the median rank's.
    pub slow: Option<f64>,
}

impl Progress {
    /// Takes an event into account.
    pub fn event(&mut self, time: UnixTime, event: &RunEvent) {
        self.heard_at = Some(time);
        match event {
            RunEvent::Run(begun) => {
                self.begun = begun.clone();
                self.wanted = begun.ranks;
                self.begun_at = Some(time);
                self.state = RunState::Starting;
                self.alive = 0;
                // A life that follows another numbers its members anew.
                self.ranks.clear();
                self.summary = None;
            }
            RunEvent::RankStarted { member, rank, incarnation, generation, pid, host, device } => {
                let standing = self.ranks.entry(*member).or_default();
                if standing.incarnation != 0 && standing.incarnation != incarnation.0 {
                    standing.restarts += 1;
                    self.restarts += 1;
                }
                standing.incarnation = incarnation.0;
                (standing.rank, standing.pid) = (rank.0, *pid);
                standing.host.clone_from(host);
                standing.device.clone_from(device);
                (standing.generation, standing.is_lost, standing.slow) = (generation.0, false, None);
            }
            RunEvent::Generation { generation, ranks, step, .. } => {
                self.generation = generation.0;
                self.alive = *ranks;
                self.wanted = self.wanted.max(*ranks);
                // Whoever left without a fault is no part of it any more.
                self.ranks.retain(|_, rank| rank.is_lost || rank.generation == generation.0);
                self.lost_steps += self.newest.step.0.saturating_sub(step.0);
                self.newest.step = *step;
                if self.state == RunState::Starting {
                    self.state = RunState::Training;
                }
            }
            RunEvent::Fault { member, rank, host, cause, kind, .. } => {
                let kind = if kind.is_empty() { "unknown" } else { kind };
                *self.faults.entry(kind.to_owned()).or_default() += 1;
                self.newest_fault = Some(format!("member {member} ({host}): {cause}"));
                let standing = self.ranks.entry(*member).or_default();
                if !standing.is_lost && standing.generation == self.generation {
                    self.alive = self.alive.saturating_sub(1);
                }
                if standing.host.is_empty() {
                    // It never began to work.
                    standing.host.clone_from(host);
                    standing.rank = rank.map_or(0, |rank| rank.0);
                }
                standing.is_lost = true;
                standing.faults += 1;
                if self.state == RunState::Training {
                    self.state = RunState::Recovering;
                }
            }
            RunEvent::Straggler { member, ratio, slow, .. } => {
                self.ranks.entry(*member).or_default().slow = slow.then_some(*ratio);
            }
            RunEvent::Recovery { seconds, .. } => {
                self.recoveries += 1;
                self.recovery_seconds += seconds;
            }
            RunEvent::Checkpoint { step, name, .. } => {
                self.checkpoints += 1;
                self.checkpoint = Some(name.clone());
                self.checkpoint_step = step.0;
            }
            RunEvent::CheckpointFailed { .. } => self.failed_checkpoints += 1,
            RunEvent::Summary(summary) => {
                self.summary = Some(summary.clone());
                self.state = RunState::Ended;
                self.alive = 0;
            }
            // Both come with more numbers as metrics.
            RunEvent::Step { step, epoch, loss, samples, .. } => {
                self.state = RunState::Training;
                (self.newest.step, self.newest.epoch) = (*step, *epoch);
                (self.newest.loss, self.newest.samples) = (*loss, *samples);
            }
            RunEvent::Epoch(of) => self.epoch(of),
            RunEvent::Validation(of) => self.came_to(of, Some(of.step)),
            _ => {}
        }
    }

    fn epoch(&mut self, of: &EpochMetrics) {
        self.epoch = Some(of.epoch);
        // Where validations come inside epochs, the end of one may have nothing to say in place of the newest.
        if self.results_step.is_none() || of.results().next().is_some() {
            self.came_to(of, None);
        }
    }

    fn came_to(&mut self, of: &EpochMetrics, step: Option<Step>) {
        let all = std::iter::once(("train_loss", of.train_loss)).chain(of.results());
        // What is no number in JSON (a loss that was not finite) is no result.
        let finite = all.filter(|(_, number)| number.is_finite());
        self.results = finite.map(|(name, number)| (name.to_owned(), number)).collect();
        self.results_step = step;
    }

    /// Takes a line of metrics into account.
    pub fn metric(&mut self, time: UnixTime, metric: &Metric) {
        self.heard_at = Some(time);
        match metric {
            Metric::Step(step) => self.step(step),
            Metric::Epoch(of) => self.epoch(of),
            Metric::Validation(of) => self.came_to(of, Some(of.step)),
            Metric::Gpu(gpu) => drop(self.gpus.insert(gpu.gpu, gpu.readings)),
        }
    }

    fn step(&mut self, step: &StepMetrics) {
        self.newest = *step;
        self.steps += 1;
        self.samples += step.samples;
        self.step_seconds += step.seconds.unwrap_or(0.0);
        self.waiting_seconds += step.waiting_seconds.unwrap_or(0.0);
        if let Some(now) = step.samples_per_second.filter(|now| now.is_finite()) {
            self.speed = Some(self.speed.map_or(now, |speed| speed + SMOOTHING * (now - speed)));
        }
    }

    /// How long the rest of the run takes at the present speed. *Units*: seconds.
    #[must_use]
    pub fn seconds_left(&self) -> Option<f64> {
        let left = self.begun.steps.checked_sub(self.newest.step.0).filter(|_| self.begun.steps > 0)?;
        let samples = left as f64 * self.begun.global_batch as f64;
        self.speed.filter(|speed| *speed > 0.0).map(|speed| samples / speed)
    }

    /// The newest committed step.
    #[must_use]
    pub fn at(&self) -> Step {
        self.newest.step
    }
}

/// The progress of a run that this process leads: written by one thread, read by others.
#[derive(Debug, Default)]
pub struct Board(Mutex<Progress>);

impl Board {
    /// Takes something into account. Readers are quick: it costs no system call.
    pub fn note(&self, note: impl FnOnce(&mut Progress)) {
        note(&mut self.lock());
    }

    /// How it is now.
    #[must_use]
    pub fn read(&self) -> Progress {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_types::{Generation, Incarnation, Rank};

    const NOW: UnixTime = UnixTime(1.0);

    fn started(member: u32, incarnation: u32, generation: u64) -> RunEvent {
        RunEvent::RankStarted {
            member: MemberId(member),
            rank: Rank(member),
            incarnation: Incarnation(incarnation),
            generation: Generation(generation),
            pid: 100 + member,
            host: "here".into(),
            device: "cpu".into(),
        }
    }

    fn generation(generation: u64, ranks: u32, step: u64) -> RunEvent {
        let (generation, step) = (Generation(generation), Step(step));
        RunEvent::Generation { generation, ranks, step, ranges: Vec::new() }
    }

    fn fault(member: u32) -> RunEvent {
        RunEvent::Fault {
            member: MemberId(member),
            rank: None,
            host: "here".into(),
            phase: "run".into(),
            cause: "killed by signal 9".into(),
            kind: "signal".into(),
            doing: None,
        }
    }

    fn step(number: u64) -> Metric {
        Metric::Step(StepMetrics {
            step: Step(number),
            loss: 0.5,
            samples: 50,
            seconds: Some(0.5),
            waiting_seconds: Some(0.1),
            samples_per_second: Some(100.0),
            ..StepMetrics::default()
        })
    }

    fn made(run: &mut Progress, number: u64) {
        let (step, epoch, generation) = (Step(number), Epoch(0), Generation(1));
        run.event(NOW, &RunEvent::Step { step, epoch, generation, loss: 0.5, samples: 50 });
        run.metric(NOW, &self::step(number));
    }

    #[test]
    fn a_rank_that_is_lost_and_comes_back_is_counted_once_in_everything() {
        let mut run = Progress::default();
        let begun = RunBegun { steps: 10, global_batch: 50, ..RunBegun::default() };
        run.event(NOW, &RunEvent::Run(begun));
        assert_eq!((run.state, run.seconds_left()), (RunState::Starting, None));
        for event in [started(0, 1, 1), started(1, 2, 1), generation(1, 2, 0)] {
            run.event(NOW, &event);
        }
        made(&mut run, 1);
        made(&mut run, 2);
        assert_eq!((run.state, run.alive, run.at()), (RunState::Training, 2, Step(2)));
        assert_eq!(run.seconds_left(), Some(4.0));
        run.event(NOW, &fault(1));
        // A second word about the same loss.
        run.event(NOW, &fault(1));
        assert_eq!((run.state, run.alive, run.faults["signal"]), (RunState::Recovering, 1, 2));
        assert!(run.ranks[&MemberId(1)].is_lost);
        for event in [started(0, 1, 2), started(1, 3, 2), generation(2, 2, 1)] {
            run.event(NOW, &event);
        }
        made(&mut run, 2);
        let recovery = RunEvent::Recovery { member: MemberId(1), seconds: 0.25, step: Step(2) };
        run.event(NOW, &recovery);
        assert_eq!((run.state, run.alive, run.restarts, run.lost_steps), (RunState::Training, 2, 1, 1));
        assert_eq!((run.recoveries, run.recovery_seconds, run.steps), (1, 0.25, 3));
        assert_eq!((run.samples, run.waiting_seconds), (150, 0.1 + 0.1 + 0.1));
    }

    #[test]
    fn who_leaves_without_a_fault_is_no_rank_any_more_and_the_last_results_stay() {
        let mut run = Progress::default();
        for event in [started(0, 1, 1), started(1, 2, 1), generation(1, 2, 0), started(0, 1, 2)] {
            run.event(NOW, &event);
        }
        run.event(NOW, &generation(2, 1, 0));
        assert_eq!((run.alive, run.ranks.len()), (1, 1));
        let epoch = EpochMetrics { train_loss: f64::NAN, val_accuracy: Some(0.5), ..EpochMetrics::default() };
        run.metric(NOW, &Metric::Epoch(epoch));
        assert_eq!(run.results, BTreeMap::from([("val_accuracy".to_owned(), 0.5)]));
        let inside =
            EpochMetrics { epoch: Epoch(1), step: Step(7), val_loss: Some(0.25), ..EpochMetrics::default() };
        run.metric(NOW, &Metric::Validation(inside));
        run.metric(NOW, &Metric::Epoch(EpochMetrics { epoch: Epoch(1), ..EpochMetrics::default() }));
        assert_eq!(
            (run.epoch, run.results_step, run.results["val_loss"]),
            (Some(Epoch(1)), Some(Step(7)), 0.25)
        );
        run.event(NOW, &RunEvent::Summary(Summary::default()));
        assert_eq!((run.state.word(), run.alive), ("ended", 0));
    }

    #[test]
    fn it_travels_as_json_even_with_numbers_that_are_not_finite() {
        let mut run = Progress::default();
        run.event(NOW, &started(0, 1, 1));
        run.metric(NOW, &step(1));
        run.newest.loss = f64::NAN;
        let text = serde_json::to_string(&run).unwrap();
        let back: Progress = serde_json::from_str(&text).unwrap();
        assert!(back.newest.loss.is_nan());
        assert_eq!((back.ranks, back.steps), (run.ranks, 1));
    }
}
