//! What a run tells whoever shows it to people. The runtime itself never prints.

use dtrain_protocol::{Cause, CheckpointId, Profile, Reason};
use dtrain_types::{Epoch, Generation, Incarnation, MemberId, NodeId, Rank, Step};

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
    /// The run begins with fewer hosts than were wanted.
    HostsMissing {
        /// How many are there.
        there: u32,
        /// How many were wanted.
        wanted: u32,
    },
    /// A fault was seen.
    Fault(&'a Cause),
    /// The world makes steps again after a member was lost.
    Recovered {
        /// The member.
        member: MemberId,
        /// *Units*: seconds.
        seconds: f64,
        /// The step.
        step: Step,
    },
    /// Nobody had the state any more; steps after this one are made again.
    Resumed {
        /// Where the run goes on.
        from: Step,
        /// How many were lost.
        lost: u64,
    },
    /// A member is not started again.
    GivenUp {
        /// The member.
        member: MemberId,
        /// How often it was, in a minute.
        restarts: u32,
    },
    /// A generation is replaced for a reason that is no fault.
    Reforming(&'a Reason),
    /// A rank has become much slower than the others, or is no more.
    Straggler {
        /// The rank.
        rank: Rank,
        /// Its time as a multiple of the median rank's.
        ratio: f64,
        /// Whether it is one now.
        slow: bool,
    },
    /// A host has come.
    NodeJoined {
        /// Its number.
        node: NodeId,
        /// Its name.
        host: &'a str,
        /// How many ranks it offers.
        ranks: u32,
    },
    /// A host cannot be reached.
    NodeAway(NodeId),
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
    /// Those of them that this rank did not spend in the all-reduce. *Units*: seconds.
    pub busy: f64,
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
