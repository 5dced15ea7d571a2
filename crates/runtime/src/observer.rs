//! What a run tells whoever shows it to people. The runtime itself never prints.

use dtrain_protocol::Event;
use dtrain_telemetry::EpochMetrics;
use dtrain_types::{Epoch, MemberId, Step};

/// Sees a run happen. Called on the journal's thread, in order; slow observers delay files, never training.
///
/// Whoever is interested in some of it implements that part.
pub trait Observer: Send {
    /// A step was committed.
    fn step(&mut self, _seen: &StepSeen) {}

    /// An epoch has ended, or the run in it, validation included.
    fn epoch(&mut self, _seen: &EpochMetrics) {}

    /// An epoch was validated inside.
    fn validation(&mut self, _seen: &EpochMetrics) {}

    /// The supervisor has something for people and for the log.
    fn event(&mut self, _event: &Event) {}

    /// A rank printed a line.
    fn rank_output(&mut self, _member: MemberId, _line: &str) {}

    /// Something that people should read, and that stops nothing.
    fn warning(&mut self, _text: &str) {}
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
