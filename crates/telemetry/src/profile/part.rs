//! A part: what one life of a rank wrote down of its newest steps.
//!
//! Times are of the rank's monotonic clock. It does not know other ranks; `waits.rs` compares them.

use dtrain_types::{Generation, Incarnation, MemberId, MicroBatch, Rank, Step, WorldSize};
use serde::{Deserialize, Serialize};

/// What a rank's compute thread was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// It stood still at a step boundary, because what was committed was not written down yet.
    Held,
    /// It waited for the loader.
    Data,
    /// Forward pass and loss.
    Forward,
    /// Backward pass.
    Backward,
    /// Both passes, where the device does not tell them apart.
    Compute,
    /// Additions of the reduction tree inside the rank.
    Add,
    /// It was in the all-reduce before the last rank had come.
    Wait,
    /// It was in the all-reduce; the wait for the others is in it until [`super::collect`] takes it out.
    Communication,
    /// The optimizer.
    Optimizer,
    /// The digest of its state.
    Verify,
    /// Validation, with the wait until it is recorded.
    Validation,
    /// Its share of a checkpoint: the copy and digests, and the wait for the one before. Writing is the background's.
    Checkpoint,
}

impl Doing {
    /// All of them, in the order of a step.
    pub const ALL: [Self; 12] = [
        Self::Held,
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::Compute,
        Self::Add,
        Self::Wait,
        Self::Communication,
        Self::Optimizer,
        Self::Verify,
        Self::Validation,
        Self::Checkpoint,
    ];

    /// As the trace and the table show it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Compute => "compute",
            Self::Add => "add",
            Self::Wait => "wait",
            Self::Communication => "communication",
            Self::Optimizer => "optimizer",
            Self::Verify => "verify",
            Self::Validation => "validation",
            Self::Checkpoint => "checkpoint",
        }
    }

    /// Whether the rank was working on numbers meanwhile: what can hide communication.
    #[must_use]
    pub fn is_work(self) -> bool {
        matches!(self, Self::Forward | Self::Backward | Self::Compute | Self::Add | Self::Optimizer)
    }
}

/// A stretch of time inside a step. *Units*: nanoseconds of the rank's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// What was done.
    pub doing: Doing,
    /// From when.
    pub begun: u64,
    /// Until when.
    pub ended: u64,
    /// For which micro-batch, where it was for one.
    pub micro_batch: Option<MicroBatch>,
}

impl Span {
    /// How long it took. *Units*: nanoseconds.
    #[must_use]
    pub fn nanos(&self) -> u64 {
        self.ended.saturating_sub(self.begun)
    }

    /// How long both went on. *Units*: nanoseconds.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> u64 {
        self.ended.min(other.ended).saturating_sub(self.begun.max(other.begun))
    }
}

/// One step as one rank saw it, from its top of the loop to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Its number.
    pub step: Step,
    /// The generation that made it.
    pub generation: Generation,
    /// The rank in that generation.
    pub rank: Rank,
    /// How many ranks the generation had.
    pub world: WorldSize,
    /// *Units*: nanoseconds of the rank's clock.
    pub begun: u64,
    /// *Units*: nanoseconds of the rank's clock.
    pub ended: u64,
    /// When the first part of its gradient was on its way, if that was before the all-reduce. *Units*: nanoseconds of the
    /// rank's clock.
    pub offered: Option<u64>,
    /// What it was made of, in order; none overlaps another.
    pub spans: Vec<Span>,
}

impl StepTimes {
    /// How long it took. *Units*: nanoseconds.
    #[must_use]
    pub fn nanos(&self) -> u64 {
        self.ended.saturating_sub(self.begun)
    }

    /// From when part of its gradient was on its way until it had nothing else to do than to wait for the rest.
    #[must_use]
    pub fn ahead(&self) -> Option<Span> {
        let waits = |span: &&Span| matches!(span.doing, Doing::Wait | Doing::Communication);
        let ended = self.spans.iter().find(waits)?.begun;
        self.offered.map(|begun| Span { doing: Doing::Communication, begun, ended, micro_batch: None })
    }
}

/// What one life of a rank wrote down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The process slot.
    pub member: MemberId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The host, for people.
    pub host: String,
    /// The process on that host.
    pub pid: u32,
    /// Which clock its times are of: equal words, one clock.
    pub clock: String,
    /// What has to be added to a time of that clock to have nanoseconds since 1970, as this host has them.
    pub to_unix: i64,
    /// Its newest steps, in order.
    pub steps: Vec<StepTimes>,
}
