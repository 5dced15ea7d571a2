//! What goes into a pass and what comes out beside the gradient: batches, figures, counts.
//!
//! This file does not know where samples come from, nor which ones a micro-batch holds.

use crate::device::LossSums;
use crate::own_metric::{OwnCounts, OwnMetric};
use crate::ranking::Ranking;
use dtrain_types::{ExactSum, MicroBatch, Trailer};

/// The inputs of a micro-batch, row after row.
#[derive(Clone, Copy, Debug)]
pub enum Inputs<'a> {
    /// f32 values, `[rows, dims...]`.
    Values(&'a [f32]),
    /// Token ids, `[rows, time]`.
    Tokens(&'a [u32]),
}

/// The targets of a micro-batch, row after row.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// Class ids: one a row, or `[rows, time]` for sequence models.
    Classes(&'a [u32]),
    /// Class ids of samples that were mixed: of each row a class, the other class, and the share of the first, as the bits of an f32
    /// in `[0, 1]`. To train on alone.
    Mixed(&'a [u32]),
    /// Values, in the shape of the outputs.
    Values(&'a [f32]),
}

/// One micro-batch of samples, lent for the length of a pass.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    /// How many samples.
    pub rows: usize,
    /// What the model sees.
    pub inputs: Inputs<'a>,
    /// What it should say.
    pub targets: Targets<'a>,
}

/// What a micro-batch says of itself beside its gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchFigures {
    /// Loss, normaliser and counts.
    pub sums: LossSums,
    /// Samples fed.
    pub samples: u64,
}

impl BatchFigures {
    /// These figures as the leaf of a step's trailer. `check` is the ledger's sum over the samples fed.
    #[must_use]
    pub fn trailer(&self, micro_batch: MicroBatch, check: u64) -> Trailer {
        let finite = self.sums.loss.is_finite();
        Trailer {
            loss: self.sums.loss,
            weight: self.sums.weight,
            samples: self.samples,
            predictions: self.sums.counted,
            correct: self.sums.correct,
            check,
            stop: 0,
            non_finite: if finite { Trailer::ALL_FINITE } else { micro_batch.0 },
        }
    }
}

/// How often each class was found, claimed wrongly, and missed; of numbers, how far off they were. Integers, so their sums have no
/// order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvaluationCounts {
    /// Rows of the class that were called so.
    pub true_positive: Vec<u64>,
    /// Rows of another class that were called so.
    pub false_positive: Vec<u64>,
    /// Rows of the class that were called another.
    pub false_negative: Vec<u64>,
    /// The sum of absolute errors, where values are predicted.
    pub absolute_errors: ExactSum,
    /// The order of the samples by their outputs, where it is asked for.
    pub ranking: Option<Ranking>,
    /// Metrics of a program's own.
    pub own: Vec<OwnCounts>,
}

impl EvaluationCounts {
    /// Counts of zero for `classes` classes.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        let zero = || vec![0; classes];
        Self {
            true_positive: zero(),
            false_positive: zero(),
            false_negative: zero(),
            absolute_errors: ExactSum::default(),
            ranking: None,
            own: Vec::new(),
        }
    }

    /// With the order of the samples, where there are as many classes as are ranked.
    #[must_use]
    pub fn with_ranking(self) -> Self {
        Self { ranking: Ranking::new(self.classes()), ..self }
    }

    /// With room for these metrics of a program's own.
    #[must_use]
    pub fn with_own(self, metrics: &[OwnMetric]) -> Self {
        Self { own: metrics.iter().map(|metric| metric.counts()).collect(), ..self }
    }

    /// How many classes are counted.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.true_positive.len()
    }

    /// Notes one prediction. *Panics* if a class is not counted.
    pub fn note(&mut self, target: u32, predicted: u32) {
        if target == predicted {
            self.true_positive[target as usize] += 1;
        } else {
            self.false_negative[target as usize] += 1;
            self.false_positive[predicted as usize] += 1;
        }
    }

    /// Notes how far outputs are from their targets.
    pub(crate) fn note_errors(&mut self, targets: &[f32], outputs: &[f32]) {
        targets
            .iter()
            .zip(outputs)
            .for_each(|(target, output)| self.absolute_errors.add_size_of(output - target));
    }

    /// Notes the prediction of each row whose target is a class; others are to be ignored.
    pub(crate) fn note_all(&mut self, targets: &[u32], predicted: &[u32], classes: usize) {
        let known = targets.iter().zip(predicted).filter(|(target, _)| (**target as usize) < classes);
        known.for_each(|(target, predicted)| self.note(*target, *predicted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_is_a_hit_or_a_miss_of_two_classes() {
        let mut counts = EvaluationCounts::new(4);
        for (target, predicted) in [(0, 0), (0, 0), (0, 1), (1, 1), (2, 0)] {
            counts.note(target, predicted);
        }
        assert_eq!(counts.true_positive, [2, 1, 0, 0]);
        assert_eq!(counts.false_positive, [1, 1, 0, 0]);
        assert_eq!(counts.false_negative, [1, 0, 1, 0]);
    }

    #[test]
    fn a_loss_that_is_not_finite_names_its_micro_batch() {
        let mut figures = BatchFigures { samples: 3, ..BatchFigures::default() };
        assert_eq!(figures.trailer(MicroBatch(5), 9).non_finite, Trailer::ALL_FINITE);
        figures.sums.loss = f64::NAN;
        assert_eq!(figures.trailer(MicroBatch(5), 9).non_finite, 5);
    }
}
