//! What a device is told that settles updates by itself, and what it tells of them.
//!
//! The norm of a gradient, whether it is finite, and what clipping makes of it are known where the gradient lies; an update that
//! waits for the host to know them too keeps the device waiting. So the device says what the update is multiplied by, and the host
//! hears of it behind the next step. The rule is that of `passes.rs`; it does not know who drives a replica, nor when it asks.

use crate::device::LossSums;
use crate::optimizer::Factors;
use crate::update_facts::UpdateFacts;

/// An update that a device is to settle.
#[derive(Clone, Copy, Debug)]
pub struct Settling<'a> {
    /// What it is an update of.
    pub facts: &'a UpdateFacts,
    /// The greatest norm of the mean gradient, if it is clipped.
    pub clip_norm: Option<f64>,
    /// Rows of the whole step.
    pub samples: u64,
}

/// What a reduced gradient is divided by, beside the scale of its loss.
#[derive(Clone, Copy, Debug)]
pub enum Normaliser<'a, S> {
    /// This: the host knows the losses of the step, and that they are finite.
    Known(f64),
    /// What the losses of its micro-batches, in their order, weigh along the reduction tree.
    Losses(&'a [S]),
}

/// What an update multiplies by, where a device has settled it.
#[derive(Clone, Copy, Debug)]
pub struct UpdateScalars<S> {
    /// Of the optimizer.
    pub factors: Factors<S>,
    /// Sums of the statistics.
    pub stats: S,
}

/// What a device found of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Findings {
    /// The sum of its losses along the reduction tree; the weight alone where the host knows them.
    pub sums: LossSums,
    /// The first of its micro-batches whose loss is not finite, as one of its list.
    pub non_finite: Option<u32>,
    /// Sum of the squares of the mean gradient.
    pub squares: f64,
    /// Whether the sums of the statistics are finite.
    pub stats_finite: bool,
    /// What became of the update.
    pub verdict: Verdict,
}

/// What became of an update that a device has settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was made.
    Made,
    /// The gradient of a scaled loss is not finite: it changed nothing but the scale.
    Skipped,
    /// A loss, or a gradient that no scale is to blame for, is not finite. Nothing was changed, and no later update changes anything
    /// either, until [`OwnMemory::go_on`](crate::OwnMemory::go_on).
    Halted,
}
