//! A line of `metrics.jsonl`: the numbers of a step, an epoch, a validation or a GPU.
//!
//! It does not know who writes it, or who reads it.

use crate::GpuReadings;
use crate::not_finite::{null_is_nan, without_nulls};
use dtrain_types::{Epoch, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Metric {
    /// Of one step.
    Step(StepMetrics),
    /// Of one epoch, at its end.
    Epoch(EpochMetrics),
    /// Of one epoch so far: it was validated inside.
    Validation(EpochMetrics),
    /// Of one GPU, beside a step.
    Gpu(GpuMetrics),
}

/// How a GPU was when a step was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuMetrics {
    /// Its number on its host.
    pub gpu: u32,
    /// That step.
    pub step: Step,
    /// What it told.
    #[serde(flatten)]
    pub readings: GpuReadings,
}

/// What is known of a committed step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepMetrics {
    /// Its number.
    pub step: Step,
    /// The epoch it belongs to.
    pub epoch: Epoch,
    /// Mean loss over its samples.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Samples that it fed.
    pub samples: u64,
    /// Learning rate of its update.
    pub learning_rate: Option<f64>,
    /// Norm of its gradient before clipping.
    pub gradient_norm: Option<f64>,
    /// Samples per second of late.
    pub samples_per_second: Option<f64>,
    /// How long it took, as a rank measured it. *Units*: seconds.
    pub seconds: Option<f64>,
    /// How long of that this rank waited for others. *Units*: seconds.
    pub waiting_seconds: Option<f64>,
}

/// What is known of an epoch, at its end or so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EpochMetrics {
    /// Which.
    pub epoch: Epoch,
    /// Its last step that is made.
    pub step: Step,
    /// Mean loss over its training samples so far.
    #[serde(deserialize_with = "null_is_nan")]
    pub train_loss: f64,
    /// Mean loss over the validation samples.
    pub val_loss: Option<f64>,
    /// Share of validation predictions that were right.
    pub val_accuracy: Option<f64>,
    /// Macro F1 over the validation predictions.
    pub val_f1: Option<f64>,
    /// Root of the mean squared error of a regression. *Units*: those of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_rmse: Option<f64>,
    /// Coefficient of determination of a regression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_r2: Option<f64>,
    /// What only some runs measure, by name.
    #[serde(flatten, deserialize_with = "without_nulls")]
    pub others: BTreeMap<String, f64>,
}

impl EpochMetrics {
    /// What its validation came to, by name, as far as it was measured.
    pub fn results(&self) -> impl Iterator<Item = (&str, f64)> {
        let known = [
            ("val_loss", self.val_loss),
            ("val_accuracy", self.val_accuracy),
            ("val_f1", self.val_f1),
            ("val_rmse", self.val_rmse),
            ("val_r2", self.val_r2),
        ];
        let known = known.into_iter().filter_map(|(name, number)| Some((name, number?)));
        known.chain(self.others.iter().map(|(name, number)| (name.as_str(), *number)))
    }
}
