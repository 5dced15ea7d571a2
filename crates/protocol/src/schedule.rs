//! What is due after which step: validation, checkpoint, verification, the end.
//!
//! A pure function of the run's configuration, so that every rank and the supervisor know it without a word. It does
//! not know how any of it is done.

use crate::message::StopFlag;
use dtrain_types::{Epoch, Step};
use serde::{Deserialize, Serialize};

/// How often a checkpoint is written. Except with `Never`, the end and a drain always write one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointEvery {
    /// Never, not even at the end: benchmarks.
    Never,
    /// At the end or at a drain only.
    End,
    /// After each step that is a multiple of this; at least 1.
    Steps(u64),
    /// After each epoch whose count is a multiple of this; at least 1.
    Epochs(u64),
}

/// The schedule of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The last step of the run.
    pub last: Step,
    /// Steps in an epoch; at least 1.
    pub steps_per_epoch: u64,
    /// Checkpoints.
    pub checkpoint: CheckpointEvery,
    /// Micro-batches of the validation set; 0 means that there is no validation.
    pub validation_micro_batches: u32,
    /// State digests are compared every so many steps; 0 is never.
    pub verify: u64,
}

/// What is to be done after a step, in this order: verify, validate, checkpoint, end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Digest the state and report it.
    pub verify: bool,
    /// Validate, as the end of this epoch.
    pub validate: Option<Epoch>,
    /// Write a checkpoint.
    pub checkpoint: bool,
    /// No further step.
    pub ends: bool,
}

impl Schedule {
    /// What is due after `step`, whose trailer had this stop flag.
    ///
    /// The run's last step validates even inside an epoch; a drain does not, its epoch goes on after the resume.
    /// *Panics* if `step` is 0.
    #[must_use]
    pub fn after(&self, step: Step, stop: StopFlag) -> Due {
        assert!(step.0 > 0, "nothing is due at the initial state");
        let every = |n: u64| step.0.is_multiple_of(n.max(1));
        let last = step >= self.last;
        let epoch = (step.0 - 1) / self.steps_per_epoch.max(1);
        let ends_epoch = every(self.steps_per_epoch);
        let ends = last || stop.has(StopFlag::DRAIN);
        Due {
            verify: self.verify > 0 && every(self.verify),
            validate: (self.validation_micro_batches > 0 && (ends_epoch || last))
                .then(|| Epoch(u32::try_from(epoch).unwrap_or(u32::MAX))),
            checkpoint: match self.checkpoint {
                CheckpointEvery::Never => false,
                CheckpointEvery::End => ends,
                CheckpointEvery::Steps(n) => ends || every(n),
                CheckpointEvery::Epochs(n) => ends || (ends_epoch && (epoch + 1).is_multiple_of(n.max(1))),
            },
            ends,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(checkpoint: CheckpointEvery) -> Schedule {
        Schedule { last: Step(10), steps_per_epoch: 4, checkpoint, validation_micro_batches: 3, verify: 5 }
    }

    fn steps_with(schedule: &Schedule, what: impl Fn(Due) -> bool) -> Vec<u64> {
        (1..=schedule.last.0).filter(|s| what(schedule.after(Step(*s), StopFlag::default()))).collect()
    }

    #[test]
    fn checkpoints_come_every_n_steps_or_epochs_and_at_the_end() {
        let at = |every| steps_with(&schedule(every), |due| due.checkpoint);
        assert_eq!(at(CheckpointEvery::Never), [] as [u64; 0]);
        assert_eq!(at(CheckpointEvery::End), [10]);
        assert_eq!(at(CheckpointEvery::Steps(3)), [3, 6, 9, 10]);
        assert_eq!(at(CheckpointEvery::Epochs(1)), [4, 8, 10]);
        assert_eq!(at(CheckpointEvery::Epochs(2)), [8, 10]);
    }

    #[test]
    fn a_validation_ends_each_epoch_and_the_run() {
        let schedule = schedule(CheckpointEvery::End);
        assert_eq!(steps_with(&schedule, |due| due.validate.is_some()), [4, 8, 10]);
        assert_eq!(schedule.after(Step(4), StopFlag::default()).validate, Some(Epoch(0)));
        assert_eq!(schedule.after(Step(10), StopFlag::default()).validate, Some(Epoch(2)));
        assert_eq!(steps_with(&schedule, |due| due.verify), [5, 10]);
    }

    #[test]
    fn a_stop_flag_ends_the_run_after_its_step_with_a_checkpoint_and_no_validation_inside_an_epoch() {
        let due = schedule(CheckpointEvery::Epochs(1)).after(Step(6), StopFlag::DRAIN);
        assert_eq!(due, Due { verify: false, validate: None, checkpoint: true, ends: true });
        assert!(!schedule(CheckpointEvery::Never).after(Step(6), StopFlag::DRAIN).checkpoint);
    }
}
