//! Figures of predicted classes.

use crate::predict::{greatest, probabilities};
use dtrain_engine::{Areas, Ranking};
use dtrain_telemetry::{ClassCount, ClassTable};

/// Adds up predictions of classes.
#[derive(Clone, Debug)]
pub struct ClassFigures {
    classes: usize,
    /// Rows are true classes, columns predicted ones.
    confusion: Vec<u64>,
    loss: f64,
    samples: u64,
    shares: Vec<f64>,
    /// The order of the samples; none of many classes.
    ranking: Option<Ranking>,
}

/// What is known of one class. *Units*: shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassRow {
    /// Of the samples that were called so, how many are; 0 if none was called so.
    pub precision: f64,
    /// Of the samples that are so, how many were called so; 0 if there is none.
    pub recall: f64,
    /// Their harmonic mean.
    pub f1: f64,
    /// How many samples are so.
    pub samples: u64,
    /// How many were called so.
    pub called: u64,
    /// The areas under its curves, where there are any.
    pub areas: Option<Areas>,
}

impl ClassFigures {
    /// Nothing yet of so many classes.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        Self {
            classes,
            confusion: vec![0; classes * classes],
            loss: 0.0,
            samples: 0,
            shares: Vec::new(),
            ranking: Ranking::new(classes),
        }
    }

    /// Adds a sample of class `target`. *Panics* if there is no such class.
    pub fn add(&mut self, target: usize, outputs: &[f32]) {
        assert!(target < self.classes, "class {target} of {}", self.classes);
        probabilities(outputs, &mut self.shares);
        self.loss -= self.shares[target].max(f64::MIN_POSITIVE).ln();
        self.confusion[target * self.classes + greatest(outputs)] += 1;
        if let Some(ranking) = &mut self.ranking {
            ranking.note(&[target as u32], outputs);
        }
        self.samples += 1;
    }

    /// How many samples there were.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// How many classes there are.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// How often samples of one class were called another.
    #[must_use]
    pub fn count(&self, target: usize, called: usize) -> u64 {
        self.confusion[target * self.classes + called]
    }

    /// The mean negative logarithm of the probability of the true class. Weights and smoothing of training do not count.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.loss / self.samples.max(1) as f64
    }

    /// Share of right predictions.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        self.table().figures().accuracy.unwrap_or(0.0)
    }

    /// The mean F1 of the classes that occur, as a target or as a prediction: as training reports it.
    #[must_use]
    pub fn macro_f1(&self) -> f64 {
        self.table().figures().macro_f1.unwrap_or(0.0)
    }

    /// The mean areas under the curves of the classes, as training reports them; none of many classes, or where all samples are of one.
    #[must_use]
    pub fn mean_areas(&self) -> Option<Areas> {
        self.ranking.as_ref()?.means()
    }

    fn table(&self) -> ClassTable {
        let count = |class| {
            let (samples, called) = self.calls(class);
            let right = self.count(class, class);
            ClassCount {
                true_positives: right,
                false_positives: called - right,
                false_negatives: samples - right,
            }
        };
        ClassTable((0..self.classes).map(count).collect())
    }

    /// How many samples are of a class, and how many were called so.
    fn calls(&self, class: usize) -> (u64, u64) {
        let all = 0..self.classes;
        let samples = all.clone().map(|called| self.count(class, called)).sum();
        (samples, all.map(|target| self.count(target, class)).sum())
    }

    /// The figures of a class.
    #[must_use]
    pub fn row(&self, class: usize) -> ClassRow {
        let (samples, called) = self.calls(class);
        let right = self.count(class, class) as f64;
        let share = |of: u64| if of > 0 { right / of as f64 } else { 0.0 };
        let (precision, recall) = (share(called), share(samples));
        let f1 = if right > 0.0 { 2.0 * right / (samples + called) as f64 } else { 0.0 };
        let areas = self.ranking.as_ref().and_then(|ranking| ranking.areas(class));
        ClassRow { precision, recall, f1, samples, called, areas }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_textbook() {
        let mut figures = ClassFigures::new(3);
        // Class 2 never occurs and is never called.
        for (target, called) in [(0, 0), (0, 0), (0, 1), (1, 1)] {
            let mut outputs = [0.0; 3];
            outputs[called] = 2.0;
            figures.add(target, &outputs);
        }
        assert_eq!((figures.samples(), figures.accuracy()), (4, 0.75));
        let rows: Vec<ClassRow> = (0..3).map(|class| figures.row(class)).collect();
        assert_eq!((rows[0].precision, rows[0].samples), (1.0, 3));
        assert!((rows[0].recall - 2.0 / 3.0).abs() < 1e-15 && (rows[0].f1 - 0.8).abs() < 1e-15);
        assert!((rows[1].f1 - 2.0 / 3.0).abs() < 1e-15);
        assert!((figures.macro_f1() - (0.8 + 2.0 / 3.0) / 2.0).abs() < 1e-15);
        let e = 2f64.exp();
        let right = -(e / (e + 2.0)).ln();
        let wrong = -(1.0 / (e + 2.0)).ln();
        assert!((figures.loss() - (3.0 * right + wrong) / 4.0).abs() < 1e-6);
        // Of class 0, two of three are surer of it than the one of class 1, and the third is as sure as that.
        assert_eq!((rows[0].areas.unwrap().roc, rows[2].areas), (2.5 / 3.0, None));
    }
}
