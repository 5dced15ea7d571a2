//! Early stopping: how long a metric has not improved, and whether that is enough.
//!
//! A pure function of the results of validations, so it says the same for any number of ranks and after any fault. It does not know
//! how a run ends.

use crate::metric::EpochMetric;
use dtrain_telemetry::EpochMetrics;
use dtrain_types::{Epoch, Step};
use serde::{Deserialize, Serialize};

/// When a run ends before its length.
#[derive(Clone, Debug, PartialEq)]
pub struct Patience {
    /// The metric that has to improve.
    pub metric: EpochMetric,
    /// After so many validations without an improvement the run ends.
    pub epochs: u32,
    /// By more than this.
    pub least: f64,
}

/// What is known after a validation; every manifest of a run with patience has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// The metric.
    pub metric: String,
    /// Its best value.
    pub best: f64,
    /// The epoch that had it.
    pub epoch: Epoch,
    /// The step of it behind which it was validated; of checkpoints that do not say it, 0.
    #[serde(default)]
    pub step: Step,
    /// Validations without an improvement since then.
    pub stale: u32,
}

impl Patience {
    /// What is known after `seen`. What is no number is no improvement.
    #[must_use]
    pub fn after(&self, before: Option<&Standing>, seen: &EpochMetrics) -> Option<Standing> {
        let name = self.metric.to_string();
        let before = before.filter(|before| before.metric == name);
        let score = self.metric.score(seen).filter(|score| !score.is_nan());
        let best = before.map(|before| self.metric.number(before.best));
        match (score, before) {
            (Some(score), _) if best.is_none_or(|best| score > best + self.least) => {
                let (best, epoch, step) = (self.metric.number(score), seen.epoch, seen.step);
                Some(Standing { metric: name, best, epoch, step, stale: 0 })
            }
            (_, Some(before)) => Some(Standing { stale: before.stale + 1, ..before.clone() }),
            (_, None) => None,
        }
    }

    /// Whether that is enough.
    #[must_use]
    pub fn is_over(&self, standing: &Standing) -> bool {
        standing.metric == self.metric.to_string() && standing.stale >= self.epochs
    }
}

impl Standing {
    /// The same with the count begun anew.
    #[must_use]
    pub fn renewed(self) -> Self {
        Self { stale: 0, ..self }
    }
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { metric, best, epoch, step, stale } = self;
        let times = dtrain_types::counted(*stale, "validation");
        let epoch = epoch.0 + 1;
        write!(f, "{metric} has not improved for {times}: {best:.6} in epoch {epoch}")?;
        if *step > Step(0) {
            write!(f, " after step {step}")?;
        }
        f.write_str(" is the best")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::{Measured, Predicts};

    #[test]
    fn patience_ends_after_so_many_validations_without_an_improvement() {
        let measured = Measured { predicts: Predicts::Classes(3), class_names: &[], classes: 3, own: &[] };
        let metric = EpochMetric::find("val_loss", &measured).unwrap();
        let patience = Patience { metric, epochs: 2, least: 0.1 };
        let mut standing = None;
        let mut over = Vec::new();
        // 0.95 improves by too little, and what is not finite does not improve.
        for (epoch, val_loss) in (0..).zip([1.0, 0.95, 0.8, f64::NAN, 0.71]) {
            let seen =
                EpochMetrics { epoch: Epoch(epoch), val_loss: Some(val_loss), ..EpochMetrics::default() };
            standing = patience.after(standing.as_ref(), &seen);
            over.push(patience.is_over(standing.as_ref().unwrap()));
        }
        assert_eq!(over, [false, false, false, false, true]);
        let standing = standing.unwrap();
        assert_eq!((standing.best, standing.epoch, standing.stale), (0.8, Epoch(2), 2));
        assert!(!patience.is_over(&standing.renewed()));
    }
}
