//! What a run tells whoever shows it to people. The runtime itself never prints.

use dtrain_protocol::Event;
use dtrain_types::{Epoch, MemberId, Step};
use std::collections::BTreeMap;

/// Sees a run happen. Called on the journal's thread, in order; slow observers delay files, never training.
///
/// Whoever is interested in some of it implements that part.
pub trait Observer: Send {
    /// A step was committed.
    fn step(&mut self, _seen: &StepSeen) {}

    /// An epoch has ended, validation included, or was validated inside.
    fn epoch(&mut self, _seen: &EpochSeen) {}

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

/// An epoch in numbers, so far as it is made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EpochSeen {
    /// Its number, from 0.
    pub epoch: Epoch,
    /// The last step of it that is made.
    pub step: Step,
    /// Whether it ends there, or the run does.
    pub ended: bool,
    /// Mean loss over its steps.
    pub train_loss: f64,
    /// Mean loss over the validation set, if there is one.
    pub val_loss: Option<f64>,
    /// Share of right predictions.
    pub val_accuracy: Option<f64>,
    /// Macro F1.
    pub val_f1: Option<f64>,
    /// Root of the mean squared error of a regression. *Units*: those of the target.
    pub val_rmse: Option<f64>,
    /// Coefficient of determination of a regression.
    pub val_r2: Option<f64>,
    /// What only some runs measure, by name.
    pub others: BTreeMap<String, f64>,
}
