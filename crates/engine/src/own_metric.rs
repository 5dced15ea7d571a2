//! Metrics of a program's own: what is counted of its batches, and what the counts of all of them come to.
//!
//! This file does not know what a metric means, nor what it is called.

use crate::ranking::{Areas, Ranking};
use dtrain_types::ExactQuotient;

/// What a metric of a program's own is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnMetric {
    /// A sum over samples by its weight.
    Mean,
    /// The area under the receiver operating characteristic, of so many classes.
    RocAuc(usize),
    /// The average precision, of so many classes.
    AveragePrecision(usize),
}

/// What is counted of one. Integers, so their sums have no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnCounts {
    /// A sum and its weight.
    Mean(Box<ExactQuotient>),
    /// The order of the samples.
    Order(Ranking),
}

impl OwnMetric {
    /// Nothing yet. *Panics* if there are more classes than are ranked, or fewer than two.
    #[must_use]
    pub fn counts(self) -> OwnCounts {
        match self {
            Self::Mean => OwnCounts::Mean(Box::default()),
            Self::RocAuc(classes) | Self::AveragePrecision(classes) => {
                OwnCounts::Order(Ranking::new(classes).expect("as many classes as are ranked"))
            }
        }
    }

    /// How many words its counts have.
    #[must_use]
    pub fn words(self) -> usize {
        match self {
            Self::Mean => ExactQuotient::WORDS,
            Self::RocAuc(classes) | Self::AveragePrecision(classes) => Ranking::len_of(classes),
        }
    }

    /// What counts come to; none if they are of no sample, or of one class. Of two classes it is the area of the second, of more the mean.
    #[must_use]
    pub fn value(self, words: &[u64]) -> Option<f64> {
        let areas = || {
            let ranking = Ranking::from_words(words)?;
            if ranking.classes() == 2 { ranking.areas(1) } else { ranking.means() }
        };
        match self {
            Self::Mean => ExactQuotient::from_words(words)?.value(),
            Self::RocAuc(_) => areas().map(|Areas { roc, .. }| roc),
            Self::AveragePrecision(_) => areas().map(|Areas { average_precision, .. }| average_precision),
        }
    }
}

impl OwnCounts {
    /// The counts as words. Those of several ranks, added word by word, are the counts of all.
    #[must_use]
    pub fn words(&self) -> Vec<u64> {
        match self {
            Self::Mean(quotient) => quotient.words(),
            Self::Order(ranking) => ranking.words().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_what_its_words_come_to() {
        for metric in [OwnMetric::Mean, OwnMetric::RocAuc(2), OwnMetric::AveragePrecision(3)] {
            let mut counts = metric.counts();
            assert_eq!((counts.words().len(), metric.value(&counts.words())), (metric.words(), None));
            match &mut counts {
                OwnCounts::Mean(quotient) => quotient.add(3.0, 4.0),
                // Two of class 1 before the one of class 0, and one behind it.
                OwnCounts::Order(ranking) if ranking.classes() == 2 => {
                    ranking.note(&[1, 1, 0, 1], &[0.0, 3.0, 0.0, 2.0, 0.0, 1.0, 0.0, 0.0]);
                }
                OwnCounts::Order(ranking) => ranking.note(&[0, 1], &[5.0, 0.0, 0.0, 0.0, 5.0, 0.0]),
            }
            let expected = match metric {
                OwnMetric::Mean => 0.75,
                OwnMetric::RocAuc(_) => 2.0 / 3.0,
                OwnMetric::AveragePrecision(_) => 1.0,
            };
            assert_eq!(metric.value(&counts.words()), Some(expected), "{metric:?}");
        }
    }
}
