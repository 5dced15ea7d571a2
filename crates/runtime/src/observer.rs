//! What a run tells whoever shows it to people. The runtime itself never prints.

use dtrain_protocol::{Cause, CheckpointId, Profile};
use dtrain_types::{Epoch, Generation, Incarnation, MemberId, Rank, Step};

/// Sees a run happen. Called on the journal's thread, in order; slow observers delay files, never training.
pub trait Observer: Send {
    /// One thing has happened.
    fn see(&mut self, happening: &Happening<'_>);
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Happening<'a> {
    /// A rank begins to make steps.
    RankStarted {
        /// The member.
        member: MemberId,
        /// Its rank.
        rank: Rank,
        /// Its life.
        incarnation: Incarnation,
        /// Its generation.
        generation: Generation,
        /// Who it is.
        profile: &'a Profile,
    },
    /// All ranks are told to run.
    Running {
        /// The generation.
        generation: Generation,
        /// The first step.
        from_step: Step,
    },
    /// A step was committed.
    Step(StepSeen),
    /// An epoch has ended, validation included.
    Epoch(EpochSeen),
    /// A checkpoint is complete.
    CheckpointWritten {
        /// Its name.
        id: CheckpointId,
        /// Whether it is the best so far.
        best: bool,
    },
    /// A checkpoint was given up; training goes on.
    CheckpointGivenUp {
        /// Its name.
        id: CheckpointId,
        /// Why.
        reason: &'a str,
    },
    /// A drain was asked for: the run stops after the next step.
    Draining,
    /// A member did not come in time and the run begins without it.
    LeftOut(MemberId),
    /// A fault was seen.
    Fault(&'a Cause),
    /// A rank printed a line.
    RankOutput {
        /// The member.
        member: MemberId,
        /// The line.
        line: &'a str,
    },
    /// Something that people should read, and that stops nothing.
    Warning(&'a str),
}

/// A committed step, in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSeen {
    /// Its number.
    pub step: Step,
    /// Its epoch, from 0.
    pub epoch: Epoch,
    /// Mean loss.
    pub loss: f64,
    /// Share of predictions that were right, where there are classes.
    pub accuracy: Option<f64>,
    /// Samples fed.
    pub samples: u64,
    /// *Units*: seconds, as the first reporting rank measured them.
    pub seconds: f64,
}

/// A finished epoch, in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochSeen {
    /// Its number, from 0.
    pub epoch: Epoch,
    /// The last step of it.
    pub step: Step,
    /// Mean loss over its steps.
    pub train_loss: f64,
    /// Mean loss over the validation set, if there is one.
    pub val_loss: Option<f64>,
    /// Share of right predictions.
    pub val_accuracy: Option<f64>,
    /// Macro F1.
    pub val_f1: Option<f64>,
}
