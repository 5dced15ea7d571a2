//! What a run measures of itself at the end of an epoch, by name: `val_loss`, `val_f1`, `val_f1[setosa]`.
//!
//! It knows which numbers mean something for what is predicted. It does not know where they are written.

use dtrain_engine::Ranking;
use dtrain_telemetry::EpochMetrics;
use std::fmt;

dtrain_types::words!(
    /// A number of an epoch.
    Quantity {
        /// Share of right predictions.
        Accuracy = "val_accuracy",
        /// Macro F1, or that of a class.
        F1 = "val_f1",
        /// Macro precision, or that of a class.
        Precision = "val_precision",
        /// Macro recall, or that of a class.
        Recall = "val_recall",
        /// Area under the receiver operating characteristic: the mean over classes, or that of a class.
        Auc = "val_auc",
        /// Average precision, the area under precision over recall: the mean over classes, or that of a class.
        AveragePrecision = "val_ap",
        /// Mean loss over the validation set.
        Loss = "val_loss",
        /// How many tokens a token could as well have been.
        Perplexity = "val_perplexity",
        /// Root of the mean squared error.
        Rmse = "val_rmse",
        /// Mean absolute error.
        Mae = "val_mae",
        /// Coefficient of determination.
        R2 = "val_r2",
        /// Mean loss over the steps of the epoch.
        TrainLoss = "train_loss",
    }
);

impl Quantity {
    /// The one that a text names, `[CLASS]` left out; none if none has that name.
    #[must_use]
    pub fn named_in(text: &str) -> Option<Self> {
        Self::from_name(split(text).0)
    }

    /// Whether only a model that predicts classes has it.
    #[must_use]
    pub fn is_of_classes(self) -> bool {
        matches!(self, Self::Accuracy | Self::Perplexity) || self.is_of_each_class()
    }

    /// Whether only a model that predicts a number has it.
    #[must_use]
    pub fn is_of_values(self) -> bool {
        matches!(self, Self::Rmse | Self::Mae | Self::R2)
    }

    fn is_of_each_class(self) -> bool {
        matches!(self, Self::F1 | Self::Precision | Self::Recall) || self.is_of_an_order()
    }

    /// Whether it follows from the order of the samples by their outputs.
    fn is_of_an_order(self) -> bool {
        matches!(self, Self::Auc | Self::AveragePrecision)
    }

    fn is_better_below(self) -> bool {
        matches!(self, Self::Loss | Self::Perplexity | Self::Rmse | Self::Mae | Self::TrainLoss)
    }

    fn is_had_by(self, measured: &Measured<'_>) -> bool {
        match measured.predicts {
            Predicts::Classes(classes) => {
                let is_ranked = Ranking::len_of(classes) > 0;
                !self.is_of_values() && self != Self::Perplexity && (is_ranked || !self.is_of_an_order())
            }
            Predicts::Tokens => !self.is_of_values() && !self.is_of_an_order(),
            Predicts::Value { .. } => !self.is_of_classes(),
            Predicts::Values => !self.is_of_classes() && !self.is_of_values(),
            Predicts::Counted => matches!(self, Self::Accuracy | Self::Loss | Self::TrainLoss),
        }
    }
}

/// What a model predicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Predicts {
    /// One of so many classes: accuracy and F1 mean something.
    Classes(usize),
    /// The next token: perplexity, too.
    Tokens,
    /// A number, in a unit of its own.
    Value {
        /// The unit, in those that the model is trained on.
        unit: f64,
        /// The variance of the targets that are held out, in the units that the model is trained on.
        variance: f64,
    },
    /// Several numbers, whose units may differ.
    Values,
    /// What a program of its own says; it may count how many are right.
    Counted,
}

/// What a run can measure.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// What its model predicts.
    pub predicts: Predicts,
    /// The names of its classes; empty where they have numbers alone.
    pub class_names: &'a [String],
    /// How many classes there are.
    pub classes: usize,
    /// Metrics of a program's own, as `val_top5`.
    pub own: &'a [String],
}

/// A number of an epoch by which epochs are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochMetric {
    what: What,
    class: Option<usize>,
    name: String,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Quantity(Quantity),
    /// A metric of a program's own, and whether less of it is better: its name is given as `-val_wer` then.
    Own {
        less_is_better: bool,
    },
}

/// A run does not measure what is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this run has no {name}")]
pub struct NotMeasured {
    /// What was asked for.
    pub name: String,
    /// All that there is.
    pub has: Vec<String>,
}

impl fmt::Display for EpochMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl EpochMetric {
    /// The metric that a text names, in a run that measures this.
    ///
    /// *Errors*: the run has none of that name.
    pub fn find(text: &str, measured: &Measured<'_>) -> Result<Self, NotMeasured> {
        let (own, less_is_better) = match text.strip_prefix('-') {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        if measured.own.iter().any(|name| name == own) {
            return Ok(Self { what: What::Own { less_is_better }, class: None, name: own.to_owned() });
        }
        let (word, class) = split(text);
        let found = Quantity::from_name(word).filter(|quantity| quantity.is_had_by(measured));
        let metric = found.and_then(|quantity| match class {
            None => {
                Some(Self { what: What::Quantity(quantity), class: None, name: quantity.name().to_owned() })
            }
            Some(class) => {
                let by_name = measured.class_names.iter().position(|name| name == class);
                let index = by_name.or_else(|| class.parse().ok().filter(|index| *index < measured.classes));
                let index = index.filter(|_| quantity.is_of_each_class())?;
                Some(Self {
                    what: What::Quantity(quantity),
                    class: Some(index),
                    name: format!("{}[{class}]", quantity.name()),
                })
            }
        });
        metric.ok_or_else(|| NotMeasured { name: text.to_owned(), has: all(measured) })
    }

    /// The number of an epoch, negated where less is better; none if it was not measured.
    #[must_use]
    pub fn score(&self, seen: &EpochMetrics) -> Option<f64> {
        let What::Quantity(quantity) = self.what else {
            return seen.others.get(&self.name).map(|number| self.signed(*number));
        };
        let number = match (quantity, self.class) {
            (Quantity::TrainLoss, _) => Some(seen.train_loss),
            (Quantity::Loss, _) => seen.val_loss,
            (Quantity::Accuracy, _) => seen.val_accuracy,
            (Quantity::F1, None) => seen.val_f1,
            (Quantity::Rmse, _) => seen.val_rmse,
            (Quantity::R2, _) => seen.val_r2,
            _ => seen.others.get(&self.name).copied(),
        };
        number.map(|number| self.signed(number))
    }

    /// The same from the results that a manifest keeps.
    #[must_use]
    pub fn score_in(&self, metrics: &serde_json::Map<String, serde_json::Value>) -> Option<f64> {
        metrics.get(&self.name).and_then(serde_json::Value::as_f64).map(|number| self.signed(number))
    }

    /// The number that a score came from.
    #[must_use]
    pub fn number(&self, score: f64) -> f64 {
        self.signed(score)
    }

    /// The class of which it is a figure, and which.
    #[must_use]
    pub fn of_class(&self) -> Option<(Quantity, usize)> {
        match self.what {
            What::Quantity(quantity) => self.class.map(|class| (quantity, class)),
            What::Own { .. } => None,
        }
    }

    fn signed(&self, number: f64) -> f64 {
        let less_is_better = match self.what {
            What::Quantity(quantity) => quantity.is_better_below(),
            What::Own { less_is_better } => less_is_better,
        };
        if less_is_better { -number } else { number }
    }
}

/// `val_f1[setosa]` as its quantity and its class.
fn split(text: &str) -> (&str, Option<&str>) {
    let class = text.strip_suffix(']').and_then(|text| text.split_once('['));
    class.map_or((text, None), |(word, class)| (word, Some(class)))
}

/// Every metric that there is; one class stands for all.
fn all(measured: &Measured<'_>) -> Vec<String> {
    let of_class = |quantity: &str| {
        let from_name = Quantity::from_name(quantity)?;
        let class = measured.class_names.first().cloned().unwrap_or_else(|| "0".to_owned());
        (from_name.is_of_each_class() && measured.classes > 0).then(|| format!("{quantity}[{class}]"))
    };
    let had = |name: &&&str| Quantity::from_name(name).is_some_and(|quantity| quantity.is_had_by(measured));
    let names = Quantity::NAMES.iter().filter(had);
    let names = names.flat_map(|name| [Some((*name).to_owned()), of_class(name)]).flatten();
    names.chain(measured.own.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_name_and_class_or_refused_with_all_that_there_are() {
        let names = ["cat".to_owned(), "dog".to_owned()];
        let measured = Measured { predicts: Predicts::Classes(2), class_names: &names, classes: 2, own: &[] };
        let by_name = EpochMetric::find("val_f1[dog]", &measured).unwrap();
        assert_eq!(by_name.of_class(), Some((Quantity::F1, 1)));
        assert_eq!(
            EpochMetric::find("val_recall[0]", &measured).unwrap().of_class(),
            Some((Quantity::Recall, 0))
        );
        for wrong in ["val_f1[cow]", "val_rmse", "val_loss[dog]", "loss", "val_perplexity"] {
            let has = EpochMetric::find(wrong, &measured).unwrap_err().has;
            assert!(has.contains(&"val_f1[cat]".to_owned()) && has.contains(&"train_loss".to_owned()));
        }
        let value = Predicts::Value { unit: 2.0, variance: 1.0 };
        let numbers = Measured { predicts: value, class_names: &[], classes: 0, own: &[] };
        assert!(EpochMetric::find("val_mae", &numbers).unwrap().number(-3.0) == 3.0);
        assert!(EpochMetric::find("val_auc[dog]", &measured).is_ok());
        let many =
            Measured { predicts: Predicts::Classes(1_000), class_names: &[], classes: 1_000, own: &[] };
        assert!(EpochMetric::find("val_f1", &many).is_ok() && EpochMetric::find("val_auc", &many).is_err());
        let tokens = Measured { predicts: Predicts::Tokens, class_names: &[], classes: 256, own: &[] };
        assert!(EpochMetric::find("val_perplexity", &tokens).is_ok());
    }
}
