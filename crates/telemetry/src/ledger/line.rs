//! The lines of the ledger as bytes and as values, and the hash that chains them.

use dtrain_types::{BatchPlan, Generation, MicroRange, PlanError, Seed, Step};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The blake3 hash of one line's bytes without its newline; hex in text and in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LineHash(pub [u8; 32]);

impl LineHash {
    /// What the first line names as the line before it.
    pub const NONE: Self = Self([0; 32]);

    /// The hash of a line, given without its newline.
    #[must_use]
    pub fn of(line: &[u8]) -> Self {
        Self(*blake3::hash(line).as_bytes())
    }
}

impl fmt::Display for LineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for LineHash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("`{text:.70}` is not a hash of 64 hex digits");
        let hash = blake3::Hash::from_hex(text).map_err(|_| error())?;
        // One hash has one spelling.
        if hash.to_hex().as_str() == text { Ok(Self(*hash.as_bytes())) } else { Err(error()) }
    }
}

impl From<LineHash> for String {
    fn from(hash: LineHash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for LineHash {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// What a ledger is bound to: the run and everything that its batch plan follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The run.
    pub run: String,
    /// The batch plan's numbers.
    pub plan: PlanNumbers,
}

/// The numbers from which a batch plan follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanNumbers {
    /// The seed of the run.
    pub seed: Seed,
    /// Training samples in an epoch.
    pub samples: u64,
    /// Samples in a full step.
    pub global_batch: u32,
    /// Samples in a full micro-batch.
    pub micro_batch: u32,
}

impl PlanNumbers {
    /// The plan that follows.
    pub fn plan(&self) -> Result<BatchPlan, PlanError> {
        BatchPlan::new(self.seed, self.samples, self.global_batch, self.micro_batch)
    }
}

impl fmt::Display for PlanNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, samples, global_batch, micro_batch } = self;
        write!(f, "seed {seed}, {samples} samples, global_batch {global_batch}, micro_batch {micro_batch}")
    }
}

impl Binding {
    /// Binds the run named `run` to the plan that `seed` gave.
    ///
    /// *Panics* if `plan` was not made with `seed`.
    #[must_use]
    pub fn new(run: impl Into<String>, seed: Seed, plan: &BatchPlan) -> Self {
        let (samples, global_batch, micro_batch) = (plan.samples(), plan.global_batch(), plan.micro_batch());
        let numbers = PlanNumbers { seed, samples, global_batch, micro_batch };
        assert_eq!(numbers.plan().as_ref(), Ok(plan), "the plan has another seed");
        Self { run: run.into(), plan: numbers }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BindLine {
    pub run: String,
    pub plan: PlanNumbers,
    pub prev: LineHash,
}

/// Steps `from..=to` under one membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpanLine {
    pub from: Step,
    pub to: Step,
    pub generation: Generation,
    pub ranges: Vec<(u32, u32)>,
    pub samples: u64,
    pub check: CheckSum,
    pub prev: LineHash,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResumeLine {
    pub resume: Step,
    pub prev: LineHash,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Line {
    Bind(BindLine),
    Span(SpanLine),
    Resume(ResumeLine),
}

impl Line {
    pub(super) fn prev(&self) -> LineHash {
        match self {
            Self::Bind(line) => line.prev,
            Self::Span(line) => line.prev,
            Self::Resume(line) => line.prev,
        }
    }

    /// The line's bytes without a newline.
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a line is plain data")
    }
}

/// A wrapping 64-bit sum, 16 hex digits in JSON: many readers of JSON round numbers above `2^53`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) struct CheckSum(pub u64);

impl From<CheckSum> for String {
    fn from(check: CheckSum) -> Self {
        format!("{:016x}", check.0)
    }
}

impl TryFrom<String> for CheckSum {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let check = u64::from_str_radix(&text, 16).ok().map(Self);
        check.filter(|check| String::from(*check) == text).ok_or(format!("`{text:.40}` is not 16 hex digits"))
    }
}

/// Whether `ranges` are contiguous, in order, and cover `0..micro_batches`.
pub(super) fn is_partition(ranges: impl IntoIterator<Item = (u32, u32)>, micro_batches: u32) -> bool {
    let mut next = 0;
    ranges.into_iter().all(|(lo, hi)| std::mem::replace(&mut next, hi) == lo && lo <= hi)
        && next == micro_batches
}

pub(super) fn pairs(ranges: &[MicroRange]) -> Vec<(u32, u32)> {
    ranges.iter().map(|range| (range.lo, range.hi)).collect()
}
