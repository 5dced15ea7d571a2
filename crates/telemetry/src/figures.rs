//! Accuracy and F1 from counts per class.
//!
//! Counts are whole numbers, so ranks can add theirs in any order and the figures have the same bits. This does not know
//! logits or labels.
//!
//! *Source*: the definitions of scikit-learn's `f1_score(average="macro", zero_division=0)`.

use serde::{Deserialize, Serialize};

/// How the predictions of one class turned out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassCount {
    /// Of this class, and predicted so.
    pub true_positives: u64,
    /// Of another class, but predicted as this one.
    pub false_positives: u64,
    /// Of this class, but predicted as another.
    pub false_negatives: u64,
}

impl ClassCount {
    /// Share of the predictions of this class that were right; 0 where there was none.
    #[must_use]
    pub fn precision(&self) -> f64 {
        share(self.true_positives, self.true_positives + self.false_positives)
    }

    /// Share of the class that was found; 0 where there was none.
    #[must_use]
    pub fn recall(&self) -> f64 {
        share(self.true_positives, self.true_positives + self.false_negatives)
    }

    /// The harmonic mean of the two.
    #[must_use]
    pub fn f1(&self) -> f64 {
        let twice = 2 * self.true_positives;
        share(twice, twice + self.false_positives + self.false_negatives)
    }
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// The counts of all classes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassTable(pub Vec<ClassCount>);

/// What the counts come to; `None` where nothing was predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassScores {
    /// Share of predictions that were right.
    pub accuracy: Option<f64>,
    /// Mean F1 over the classes that occur among labels or predictions.
    pub macro_f1: Option<f64>,
    /// Mean precision over the same classes.
    pub macro_precision: Option<f64>,
    /// Mean recall over the same classes.
    pub macro_recall: Option<f64>,
}

impl ClassTable {
    /// Accuracy and macro F1.
    ///
    /// *Order*: classes are added in order, in `f64`.
    #[must_use]
    pub fn figures(&self) -> ClassScores {
        let right: u64 = self.0.iter().map(|count| count.true_positives).sum();
        let all: u64 = self.0.iter().map(|count| count.true_positives + count.false_negatives).sum();
        let counts = self.0.iter();
        let occurs =
            |count: &&ClassCount| count.true_positives + count.false_positives + count.false_negatives > 0;
        let present: Vec<&ClassCount> = counts.filter(occurs).collect();
        let mean = |figure: fn(&ClassCount) -> f64| {
            let sum = present.iter().fold(0.0, |sum, count| sum + figure(count));
            (!present.is_empty()).then(|| sum / present.len() as f64)
        };
        ClassScores {
            accuracy: (all > 0).then(|| right as f64 / all as f64),
            macro_f1: mean(ClassCount::f1),
            macro_precision: mean(ClassCount::precision),
            macro_recall: mean(ClassCount::recall),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(classes: u32, labels: &[u32], predicted: &[u32]) -> ClassTable {
        let mut counts = vec![ClassCount::default(); classes as usize];
        for (&label, &predicted) in labels.iter().zip(predicted) {
            if label == predicted {
                counts[label as usize].true_positives += 1;
            } else {
                counts[label as usize].false_negatives += 1;
                counts[predicted as usize].false_positives += 1;
            }
        }
        ClassTable(counts)
    }

    fn close(got: Option<f64>, expected: f64) {
        assert!(got.is_some_and(|got| (got - expected).abs() < 1e-12), "{got:?}, expected {expected}");
    }

    #[test]
    fn figures_are_those_of_scikit_learn() {
        // The example of its documentation of f1_score: macro 0.26666...
        let labels = [0, 1, 2, 0, 1, 2];
        let figures = counted(3, &labels, &[0, 2, 1, 0, 0, 1]).figures();
        close(figures.macro_f1, 0.8 / 3.0);
        close(figures.accuracy, 2.0 / 6.0);
        let perfect = counted(3, &labels, &labels).figures();
        assert_eq!((perfect.accuracy, perfect.macro_f1), (Some(1.0), Some(1.0)));
    }

    #[test]
    fn a_class_that_occurs_nowhere_does_not_count_but_one_that_was_only_predicted_does() {
        // f1_score([0, 0, 1], [0, 0, 1], average="macro") is 1 however many classes the model has.
        close(counted(10, &[0, 0, 1], &[0, 0, 1]).figures().macro_f1, 1.0);
        // f1_score([0, 0, 1], [0, 2, 1], average="macro"): 2/3, 1 and 0.
        close(counted(10, &[0, 0, 1], &[0, 2, 1]).figures().macro_f1, (2.0 / 3.0 + 1.0) / 3.0);
    }

    #[test]
    fn no_prediction_gives_no_figure() {
        let none = ClassScores { accuracy: None, macro_f1: None, macro_precision: None, macro_recall: None };
        assert_eq!(counted(3, &[], &[]).figures(), none);
    }
}
