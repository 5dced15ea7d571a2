//! The small record that each step carries beside its gradients.

use serde::{Deserialize, Serialize};

/// Sums over micro-batches that a step agrees on: loss, normaliser, counts, the ledger's check, flags.
///
/// *Order*: the `f64` fields are added along the reduction tree; the integers wrap or are or-ed, so their
/// order does not show.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trailer {
    /// Sum of the weighted losses.
    pub loss: f64,
    /// Normaliser: samples, tokens not ignored, or sum of class weights.
    pub weight: f64,
    /// Samples (rows) fed.
    pub samples: u64,
    /// Predictions counted: samples, or tokens not ignored.
    pub predictions: u64,
    /// Predictions that were right.
    pub correct: u64,
    /// Wrapping sum of `hash(epoch, step, sample)` over the samples really fed.
    pub check: u64,
    /// Or of the members' wish to stop after this step (admission, drain, checkpoint on demand).
    pub stop: u32,
    /// The least micro-batch whose loss was not finite, [`Trailer::ALL_FINITE`] if none.
    pub non_finite: u32,
}

impl Trailer {
    /// The value of `non_finite` when every loss was finite.
    pub const ALL_FINITE: u32 = u32::MAX;
    /// The trailer of no micro-batch. It is never added to another: an absent micro-batch is skipped, because
    /// `+0` would change `-0`.
    pub const EMPTY: Self = Self {
        loss: 0.0,
        weight: 0.0,
        samples: 0,
        predictions: 0,
        correct: 0,
        check: 0,
        stop: 0,
        non_finite: Self::ALL_FINITE,
    };

    /// Words of 64 bits that say all of it.
    pub const WORDS: usize = 7;

    /// All of it as words: what is a number with a point as its bits.
    #[must_use]
    pub fn words(&self) -> [u64; Self::WORDS] {
        let Self { loss, weight, samples, predictions, correct, check, stop, non_finite } = *self;
        let flags = u64::from(stop) | u64::from(non_finite) << 32;
        [loss.to_bits(), weight.to_bits(), samples, predictions, correct, check, flags]
    }

    /// The trailer that these words say.
    #[must_use]
    pub fn of_words([loss, weight, samples, predictions, correct, check, flags]: [u64; Self::WORDS]) -> Self {
        Self {
            loss: f64::from_bits(loss),
            weight: f64::from_bits(weight),
            samples,
            predictions,
            correct,
            check,
            stop: flags as u32,
            non_finite: (flags >> 32) as u32,
        }
    }

    /// The trailer of this subtree followed by the `right` one.
    #[must_use]
    pub fn merge(&self, right: &Self) -> Self {
        Self {
            loss: self.loss + right.loss,
            weight: self.weight + right.weight,
            samples: self.samples + right.samples,
            predictions: self.predictions + right.predictions,
            correct: self.correct + right.correct,
            check: self.check.wrapping_add(right.check),
            stop: self.stop | right.stop,
            non_finite: self.non_finite.min(right.non_finite),
        }
    }
}
