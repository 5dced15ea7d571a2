//! What a validation says in numbers: of classes, tokens or values, and of metrics of a program's own.
//!
//! A pure function of its sums, which are the same on any ranks. It does not know where the numbers go.

use crate::metric::{Predicts, Quantity};
use crate::run_files::RunFacts;
use dtrain_engine::Ranking;
use dtrain_protocol::Validation;
use dtrain_telemetry::{ClassCount, ClassTable, EpochMetrics};
use dtrain_types::ExactSum;
use std::collections::BTreeMap;

impl RunFacts {
    /// Share of right predictions, where there are classes.
    #[must_use]
    pub fn accuracy(&self, correct: u64, predictions: u64) -> Option<f64> {
        (matches!(self.predicts, Predicts::Classes(_) | Predicts::Tokens | Predicts::Counted)
            && predictions > 0)
            .then(|| correct as f64 / predictions as f64)
    }

    /// The numbers of a validation; what of its epoch it does not know itself, the loss of the steps, is left out.
    #[must_use]
    pub fn scores(&self, validation: &Validation) -> EpochMetrics {
        let trailer = &validation.trailer;
        let loss = (trailer.weight > 0.0).then(|| trailer.loss / trailer.weight);
        // Values have the sum of their absolute errors in this place.
        let classes = match self.predicts {
            Predicts::Classes(_) | Predicts::Tokens => &validation.counts[..],
            Predicts::Value { .. } | Predicts::Values | Predicts::Counted => &[],
        };
        let order = match self.predicts {
            Predicts::Classes(classes) => Ranking::len_of(classes),
            _ => 0,
        };
        let (classes, order) = classes.split_at(classes.len().saturating_sub(order));
        let (table, ranking) = (class_counts(classes), Ranking::from_words(order));
        let figures = table.figures();
        let mut others = BTreeMap::new();
        let mut note = |name: &str, number: Option<f64>| {
            others.extend(number.map(|number| (name.to_owned(), number)));
        };
        note(Quantity::Precision.name(), figures.macro_precision);
        note(Quantity::Recall.name(), figures.macro_recall);
        let areas = ranking.as_ref().and_then(Ranking::means);
        note(Quantity::Auc.name(), areas.map(|areas| areas.roc));
        note(Quantity::AveragePrecision.name(), areas.map(|areas| areas.average_precision));
        if self.predicts == Predicts::Tokens {
            note(Quantity::Perplexity.name(), loss.map(f64::exp));
        }
        let mut rest = &validation.counts[..];
        for (name, metric) in &self.own_metrics {
            let Some((words, behind)) = rest.split_at_checked(metric.words()) else { break };
            note(name, metric.value(words));
            rest = behind;
        }
        let asked = self.best.iter().chain(self.patience.as_ref().map(|patience| &patience.metric));
        for metric in asked {
            let Some((quantity, class)) = metric.of_class() else { continue };
            let count = table.0.get(class);
            let areas = || ranking.as_ref()?.areas(class);
            note(
                &metric.to_string(),
                match quantity {
                    Quantity::Precision => count.map(ClassCount::precision),
                    Quantity::Recall => count.map(ClassCount::recall),
                    Quantity::Auc => areas().map(|areas| areas.roc),
                    Quantity::AveragePrecision => areas().map(|areas| areas.average_precision),
                    _ => count.map(ClassCount::f1),
                },
            );
        }
        if let Predicts::Value { unit, .. } = self.predicts {
            let sum = ExactSum::from_words(&validation.counts).map(|sum| sum.value());
            let mean = |sum: f64| unit * sum / trailer.predictions.max(1) as f64;
            note(Quantity::Mae.name(), sum.map(mean).filter(|_| loss.is_some()));
        }
        let (rmse, r2) = match (self.predicts, loss) {
            (Predicts::Value { unit, variance }, Some(loss)) => {
                (Some(unit * loss.sqrt()), (variance > 0.0).then(|| 1.0 - loss / variance))
            }
            _ => (None, None),
        };
        EpochMetrics {
            val_loss: loss,
            val_accuracy: self.accuracy(trailer.correct, trailer.predictions),
            val_f1: figures.macro_f1,
            val_rmse: rmse,
            val_r2: r2,
            others,
            ..EpochMetrics::default()
        }
    }
}

/// Counts as a rank flattens them: all true positives, then false positives, then false negatives.
fn class_counts(flat: &[u64]) -> ClassTable {
    let classes = flat.len() / 3;
    let count = |class| ClassCount {
        true_positives: flat[class],
        false_positives: flat[classes + class],
        false_negatives: flat[2 * classes + class],
    };
    ClassTable((0..classes).map(count).collect())
}
