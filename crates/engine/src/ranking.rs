//! How well outputs tell the samples of a class from all others, whatever share of them is called so: areas under curves.
//!
//! The areas follow from the order of all samples. It is kept as a histogram of the odds of each class, so that ranks can add theirs up:
//! integers, whose sums have no order. Samples whose odds differ by less than a thirtieth count as equal. This file knows no threshold.

use crate::cpu::exp;

/// Of more classes the histograms would be larger than what is counted beside them is worth.
pub const MOST_RANKED_CLASSES: usize = 16;

/// Bins by which the odds double.
const PER_OCTAVE: u32 = 32;

/// The least and the greatest odds that are told apart are 2 to this power, one over the other.
const OCTAVES: u32 = 16;

const BINS: usize = (2 * OCTAVES * PER_OCTAVE) as usize;

/// In the upper half of a word are the samples of the class, in the lower half all others.
const OF_CLASS: u64 = 1 << 32;

/// How often each class has which odds, among samples that are of it and among those that are not. At most 2^32 - 1 samples are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    /// The bins of one class behind those of the other, least odds first.
    words: Vec<u64>,
}

/// What an order of samples comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Areas {
    /// Under the receiver operating characteristic: how probable it is that a sample of the class has the greater odds than another one.
    pub roc: f64,
    /// Under precision over recall, by steps: the mean precision at each sample of the class.
    pub average_precision: f64,
}

impl Ranking {
    /// Of so many classes, if they are ranked: two or more, and at most [`MOST_RANKED_CLASSES`].
    #[must_use]
    pub fn new(classes: usize) -> Option<Self> {
        match Self::len_of(classes) {
            0 => None,
            len => Some(Self { words: vec![0; len] }),
        }
    }

    /// How many words there are of so many classes; 0 if they are not ranked.
    #[must_use]
    pub fn len_of(classes: usize) -> usize {
        if (2..=MOST_RANKED_CLASSES).contains(&classes) { classes * BINS } else { 0 }
    }

    /// The same from its words; none if they are too few or too many.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let is_whole = !words.is_empty() && words.len() == Self::len_of(words.len() / BINS);
        is_whole.then(|| Self { words: words.to_vec() })
    }

    /// The counts. Those of several ranks, added word by word, are the counts of all of their samples.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// How many classes are ranked.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.words.len() / BINS
    }

    /// Notes samples: their classes, and an output for each class of each sample. Those of no class are left out. Nothing is allocated.
    pub fn note(&mut self, targets: &[u32], outputs: &[f32]) {
        let classes = self.classes();
        for (target, outputs) in targets.iter().zip(outputs.chunks_exact(classes)) {
            let target = *target as usize;
            if target >= classes {
                continue;
            }
            let mut shares = [0.0; MOST_RANKED_CLASSES];
            let most = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            for (share, output) in shares.iter_mut().zip(outputs) {
                *share = exp(output - most);
            }
            for class in 0..classes {
                // Without the class itself, and not all minus it: nothing is cancelled.
                let others = shares[..class].iter().chain(&shares[class + 1..classes]).sum::<f32>();
                let count = if class == target { OF_CLASS } else { 1 };
                self.words[class * BINS + bin(shares[class] / others)] += count;
            }
        }
    }

    /// The areas of a class; none if all samples are of it, or none is. *Panics* if there is no such class.
    #[must_use]
    pub fn areas(&self, class: usize) -> Option<Areas> {
        let bins = &self.words[class * BINS..(class + 1) * BINS];
        let split = |word: &u64| (word / OF_CLASS, word % OF_CLASS);
        let (mut of_class, mut others) = (0, 0);
        // Pairs of a sample of the class and another one, twice: those that are equal count a half.
        let mut ordered = 0u128;
        for (here, not) in bins.iter().map(split) {
            ordered += u128::from(here) * u128::from(2 * others + not);
            of_class += here;
            others += not;
        }
        if of_class == 0 || others == 0 {
            return None;
        }
        let (mut right, mut called, mut precisions) = (0, 0, 0.0);
        for (here, not) in bins.iter().rev().map(split) {
            right += here;
            called += here + not;
            if here > 0 {
                precisions += here as f64 * (right as f64 / called as f64);
            }
        }
        let pairs = 2 * u128::from(of_class) * u128::from(others);
        Some(Areas { roc: ordered as f64 / pairs as f64, average_precision: precisions / of_class as f64 })
    }

    /// The mean of each area over the classes that have one, in their order; none if no class has.
    #[must_use]
    pub fn means(&self) -> Option<Areas> {
        let all: Vec<Areas> = (0..self.classes()).filter_map(|class| self.areas(class)).collect();
        let mean = |area: fn(&Areas) -> f64| all.iter().map(area).sum::<f64>() / all.len() as f64;
        let means = || Areas {
            roc: mean(|areas| areas.roc),
            average_precision: mean(|areas| areas.average_precision),
        };
        (!all.is_empty()).then(means)
    }
}

/// The bin of odds: the exponent of the number and the upper bits of its mantissa. What is no number has the least odds.
fn bin(odds: f32) -> usize {
    let least = 2f32.powi(-(OCTAVES as i32)).to_bits();
    let bits = if odds.is_nan() { 0 } else { odds.to_bits() };
    let step = f32::MANTISSA_DIGITS - 1 - PER_OCTAVE.ilog2();
    ((bits.saturating_sub(least) >> step) as usize).min(BINS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The areas by all pairs, and by all thresholds, as the textbook has them.
    fn by_hand(scores: &[(f64, bool)]) -> (f64, f64) {
        let (of_class, others): (Vec<_>, Vec<_>) = scores.iter().partition(|(_, is)| *is);
        let mut ordered = 0.0;
        for (one, _) in &of_class {
            for (other, _) in &others {
                ordered += if one > other {
                    1.0
                } else if one == other {
                    0.5
                } else {
                    0.0
                };
            }
        }
        let precision = |at: f64| {
            let called: Vec<_> = scores.iter().filter(|(score, _)| *score >= at).collect();
            called.iter().filter(|(_, is)| *is).count() as f64 / called.len() as f64
        };
        let precisions: f64 = of_class.iter().map(|(score, _)| precision(*score)).sum();
        (ordered / (of_class.len() * others.len()) as f64, precisions / of_class.len() as f64)
    }

    /// Some number from 0 to 1 for each place.
    fn some(place: u32) -> f64 {
        let mut x = u64::from(place).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x >> 40) as f64 / f64::from(1 << 24)
    }

    #[test]
    fn areas_are_those_of_scikit_learn() {
        // The examples of its documentation of roc_auc_score and average_precision_score: 0.75 and 0.83.
        let (mut ranking, scores) = (Ranking::new(2).unwrap(), [0.1f64, 0.4, 0.35, 0.8]);
        let outputs: Vec<f32> = scores.iter().flat_map(|p| [(1.0 - p).ln() as f32, p.ln() as f32]).collect();
        ranking.note(&[0, 0, 1, 1], &outputs);
        let areas = ranking.areas(1).unwrap();
        assert_eq!(areas.roc, 0.75);
        assert!((areas.average_precision - 0.83333).abs() < 1e-4);
        assert_eq!(ranking.areas(0).unwrap().roc, 0.75, "of two classes one is the other turned round");
    }

    #[test]
    fn areas_are_near_those_of_all_pairs_for_rare_classes_and_for_many() {
        for (classes, rarely, center) in [(2usize, 0.03, -4.0), (2, 0.5, 0.0), (5, 0.2, 1.0), (16, 0.05, 0.0)]
        {
            let mut ranking = Ranking::new(classes).unwrap();
            let mut scores = vec![Vec::new(); classes];
            for sample in 0..1_500u32 {
                let target = match some(7 * sample + 1) < rarely {
                    true => classes as u32 - 1,
                    false => sample % (classes as u32 - 1),
                };
                let output = |class: u32| {
                    let noise: f64 = (0..6).map(|i| some((sample * 31 + class) * 6 + i) - 0.5).sum();
                    (noise + f64::from(u8::from(class == target)) + center * f64::from(u8::from(class > 0)))
                        as f32
                };
                let outputs: Vec<f32> = (0..classes as u32).map(output).collect();
                ranking.note(&[target], &outputs);
                for (class, scores) in scores.iter_mut().enumerate() {
                    let exps: Vec<f64> = outputs.iter().map(|output| f64::from(*output).exp()).collect();
                    let all: f64 = exps.iter().sum();
                    scores.push((exps[class] / (all - exps[class]), class as u32 == target));
                }
            }
            for (class, scores) in scores.iter().enumerate() {
                let (roc, average_precision) = by_hand(scores);
                let areas = ranking.areas(class).unwrap();
                assert!((0.55..0.98).contains(&roc), "{roc}");
                assert!((areas.roc - roc).abs() < 1e-3, "{classes}: {roc} {areas:?}");
                assert!(
                    (areas.average_precision - average_precision).abs() < 5e-3,
                    "{average_precision} {areas:?}"
                );
            }
        }
    }

    #[test]
    fn counts_of_parts_add_up_and_what_has_no_area_has_none() {
        let mut whole = Ranking::new(3).unwrap();
        assert_eq!(whole.means(), None);
        let outputs: Vec<f32> = (0..60).map(|place| some(place) as f32 * 4.0).collect();
        let targets: Vec<u32> = (0..20).map(|sample| sample % 2).collect();
        whole.note(&targets, &outputs);
        let mut words = vec![0; Ranking::len_of(3)];
        for (targets, outputs) in targets.chunks(7).zip(outputs.chunks(21)) {
            let mut part = Ranking::new(3).unwrap();
            part.note(targets, outputs);
            words.iter_mut().zip(part.words()).for_each(|(sum, word)| *sum += word);
        }
        assert_eq!(Ranking::from_words(&words).as_ref(), Some(&whole));
        assert_eq!(whole.areas(2), None, "no sample is of it");
        let two = [0, 1].map(|class| whole.areas(class).unwrap().roc);
        assert_eq!(whole.means().unwrap().roc, (two[0] + two[1]) / 2.0);
        assert_eq!(Ranking::from_words(&words[1..]), None);
        assert_eq!([1, 17, 0].map(Ranking::len_of), [0; 3]);
    }

    #[test]
    fn any_outputs_can_be_ranked() {
        let mut ranking = Ranking::new(2).unwrap();
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, f32::MIN, 1e-40];
        for one in odd {
            for other in odd {
                ranking.note(&[0, 1, u32::MAX], &[one, other, other, one, one, other]);
            }
        }
        let areas = ranking.means().unwrap();
        assert!((0.0..=1.0).contains(&areas.roc) && (0.0..=1.0).contains(&areas.average_precision));
        // The surest there can be are as sure as others, and right all the same.
        let mut sure = Ranking::new(2).unwrap();
        sure.note(&[0, 0, 1, 1], &[90.0, 0.0, 200.0, 0.0, 0.0, 300.0, 0.0, 40.0]);
        assert_eq!(sure.means(), Some(Areas { roc: 1.0, average_precision: 1.0 }));
    }
}
