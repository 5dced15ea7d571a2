//! What is due after which step: validation, checkpoint, verification, the end.
//!
//! A pure function of the run's configuration, so that every rank and the supervisor know it without a word. It does
//! not know how any of it is done.

use crate::message::StopFlag;
use dtrain_types::Step;
use serde::{Deserialize, Serialize};

/// How often a checkpoint is written, or the run validates. Except with `Never`, both are done at the end, and a drain always writes
/// a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Every {
    /// Never, not even at the end: benchmarks.
    Never,
    /// At the end only.
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
    pub checkpoint: Every,
    /// Validations.
    pub validation: Every,
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
    /// Validate.
    pub validate: bool,
    /// Write a checkpoint.
    pub checkpoint: bool,
    /// No further step.
    pub ends: bool,
}

impl Schedule {
    /// What is due after `step`, whose trailer had this stop flag.
    ///
    /// The run's last step validates even where nothing else would; a drain does not, the run goes on after the resume.
    /// *Panics* if `step` is 0.
    #[must_use]
    pub fn after(&self, step: Step, stop: StopFlag) -> Due {
        assert!(step.0 > 0, "nothing is due at the initial state");
        let last = step >= self.last;
        let ends = last || stop.has(StopFlag::DRAIN);
        let every = |steps: u64| step.0.is_multiple_of(steps.max(1));
        let is_due = |what, ends| match what {
            Every::Never => false,
            Every::End => ends,
            Every::Steps(n) => ends || every(n),
            Every::Epochs(n) => ends || every(n.max(1).saturating_mul(self.steps_per_epoch)),
        };
        Due {
            verify: self.verify > 0 && every(self.verify),
            validate: self.validation_micro_batches > 0 && is_due(self.validation, last),
            checkpoint: is_due(self.checkpoint, ends),
            ends,
        }
    }

    /// Whether the run validates after `step`, if it comes there.
    #[must_use]
    pub fn validates(&self, step: Step) -> bool {
        step > Step(0) && self.after(step, StopFlag::default()).validate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(checkpoint: Every) -> Schedule {
        let validation = Every::Epochs(1);
        Schedule {
            last: Step(10),
            steps_per_epoch: 4,
            checkpoint,
            validation,
            validation_micro_batches: 3,
            verify: 5,
        }
    }

    fn steps_with(schedule: &Schedule, what: impl Fn(Due) -> bool) -> Vec<u64> {
        (1..=schedule.last.0).filter(|s| what(schedule.after(Step(*s), StopFlag::default()))).collect()
    }

    #[test]
    fn checkpoints_come_every_n_steps_or_epochs_and_at_the_end() {
        let at = |every| steps_with(&schedule(every), |due| due.checkpoint);
        assert_eq!(at(Every::Never), [] as [u64; 0]);
        assert_eq!(at(Every::End), [10]);
        assert_eq!(at(Every::Steps(3)), [3, 6, 9, 10]);
        assert_eq!(at(Every::Epochs(1)), [4, 8, 10]);
        assert_eq!(at(Every::Epochs(2)), [8, 10]);
    }

    #[test]
    fn a_validation_comes_every_n_steps_or_epochs_and_ends_the_run() {
        let at =
            |validation| steps_with(&Schedule { validation, ..schedule(Every::End) }, |due| due.validate);
        assert_eq!(at(Every::Epochs(1)), [4, 8, 10]);
        assert_eq!(at(Every::Steps(3)), [3, 6, 9, 10]);
        assert_eq!(at(Every::End), [10]);
        let nothing = Schedule { validation_micro_batches: 0, ..schedule(Every::End) };
        assert_eq!(steps_with(&nothing, |due| due.validate), [] as [u64; 0]);
        assert_eq!(steps_with(&nothing, |due| due.verify), [5, 10]);
    }

    #[test]
    fn a_stop_flag_ends_the_run_after_its_step_with_a_checkpoint_and_no_validation() {
        let due = schedule(Every::Epochs(1)).after(Step(6), StopFlag::DRAIN);
        assert_eq!(due, Due { verify: false, validate: false, checkpoint: true, ends: true });
        assert!(!schedule(Every::Never).after(Step(6), StopFlag::DRAIN).checkpoint);
    }
}
