//! What an audit can find wrong in a ledger, and where.

use crate::ledger::{LineHash, PlanNumbers};
use dtrain_types::{Epoch, Generation, Step, counted};
use std::fmt;
use thiserror::Error;

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditProblem {
    /// The line, from 1; none for what concerns the end or the whole.
    pub line: Option<usize>,
    /// What is wrong.
    pub wrong: Wrong,
}

impl fmt::Display for AuditProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.wrong),
            None => self.wrong.fmt(f),
        }
    }
}

impl std::error::Error for AuditProblem {}

/// What can be wrong with a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Wrong {
    /// It has no whole line.
    #[error("the ledger is empty")]
    Empty,
    /// A line is not one of a ledger.
    #[error("not a line of a ledger")]
    NotALine,
    /// A line does not follow the one before it.
    #[error("the line before has hash {expected}, this line names {got}: a line was changed, lost or moved")]
    Chain {
        /// Hash of the line before.
        expected: LineHash,
        /// Hash that the line names.
        got: LineHash,
    },
    /// The binding is not the first line, or not the only one.
    #[error("the first line, and no other, names the run and its plan")]
    BindingPlace,
    /// The ledger is of another plan.
    #[error("the ledger was written under another plan: {found}")]
    OtherPlan {
        /// The plan in the ledger.
        found: PlanNumbers,
    },
    /// A span ends before it begins, begins at 0 or ends beyond any run.
    #[error("no span of steps goes from {from} to {to}")]
    Backwards {
        /// First step.
        from: Step,
        /// Last step.
        to: Step,
    },
    /// Steps are missing.
    #[error("steps {first} to {last} are missing")]
    Gap {
        /// First missing step.
        first: Step,
        /// Last missing step.
        last: Step,
    },
    /// Steps are covered twice without a resume between.
    #[error("steps {first} to {last} are covered twice without a resume between")]
    Twice {
        /// First step covered twice.
        first: Step,
        /// Last step covered twice.
        last: Step,
    },
    /// A generation is lower than one before.
    #[error("generation {got} after generation {before}")]
    GenerationFell {
        /// The greatest generation before.
        before: Generation,
        /// The generation found.
        got: Generation,
    },
    /// The ranges are not a partition of the micro-batches.
    #[error("ranges {ranges:?} do not cover micro-batches 0 to {micro_batches} once and in order")]
    Ranges {
        /// The ranges found.
        ranges: Vec<(u32, u32)>,
        /// Micro-batches of a full step.
        micro_batches: u32,
    },
    /// A resume goes forward.
    #[error("resumes from step {resume}, the ledger reaches {reached}")]
    ResumeAhead {
        /// The step resumed from.
        resume: Step,
        /// The last step before.
        reached: Step,
    },
    /// The samples do not add up.
    #[error("steps {from} to {to} fed {}, the plan has {expected}", counted(*got, "sample"))]
    Samples {
        /// First step.
        from: Step,
        /// Last step.
        to: Step,
        /// Samples of the plan.
        expected: u64,
        /// Samples in the ledger.
        got: u64,
    },
    /// Other samples were fed than the plan has.
    #[error(
        "steps {from} to {to} have check {got:016x}, the plan gives {expected:016x}: other samples were fed"
    )]
    Check {
        /// First step.
        from: Step,
        /// Last step.
        to: Step,
        /// Check of the plan.
        expected: u64,
        /// Check in the ledger.
        got: u64,
    },
    /// A sample came twice in an epoch.
    #[error("sample {sample} is used twice in epoch {epoch}")]
    SampleTwice {
        /// The sample.
        sample: u64,
        /// The epoch.
        epoch: Epoch,
    },
    /// The ledger ends before the newest checkpoint.
    #[error("the newest checkpoint is of step {step}, the ledger reaches {reached}")]
    Short {
        /// Step of the newest manifest.
        step: Step,
        /// The last step that counts.
        reached: Step,
    },
    /// No line has the hash that the newest manifest names.
    #[error(
        "no line up to here has the hash {ledger} that the checkpoint of step {step} names: this line was changed, or one \
         before it with all hashes after it"
    )]
    NoSuchHead {
        /// Step of the newest manifest.
        step: Step,
        /// The hash it names.
        ledger: LineHash,
    },
    /// The line that the newest manifest names was written before its step was committed.
    #[error("the newest checkpoint is of step {step}, the line that it names reaches only {reached}")]
    HeadStep {
        /// Step of the newest manifest.
        step: Step,
        /// Step reached by that line.
        reached: Step,
    },
}
