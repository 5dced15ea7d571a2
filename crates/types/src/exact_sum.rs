//! A sum of sizes that has no order: every `f32` is added exactly, so no bit depends on who adds what first.
//!
//! *Source*: U. Kulisch, "Computer Arithmetic and Validity", the long accumulator.

/// Digits of 32 bits, from 2^-149 on: enough for the largest finite `f32`.
const DIGITS: usize = 9;

/// The sum of the sizes of many `f32` values, exact for up to 2^32 of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExactSum {
    digits: [u64; DIGITS],
    /// Values that were infinite or not a number.
    not_finite: u64,
}

impl ExactSum {
    /// Words of one in a list.
    pub const WORDS: usize = DIGITS + 1;

    /// Adds the size of a value.
    pub fn add_size_of(&mut self, value: f32) {
        let bits = value.to_bits() & 0x7fff_ffff;
        let (exponent, fraction) = (bits >> 23, u64::from(bits & 0x007f_ffff));
        if exponent == 0xff {
            self.not_finite += 1;
            return;
        }
        let mantissa = if exponent == 0 { fraction } else { fraction | 1 << 23 };
        let place = exponent.max(1) - 1;
        let (digit, shifted) = ((place / 32) as usize, mantissa << (place % 32));
        self.digits[digit] += shifted & 0xffff_ffff;
        self.digits[digit + 1] += shifted >> 32;
    }

    /// The sum; `NaN` if a value was not finite.
    #[must_use]
    pub fn value(&self) -> f64 {
        if self.not_finite > 0 {
            return f64::NAN;
        }
        // Carried, the digits are those of the sum, whoever added what.
        let (mut digits, mut carry) = ([0u64; DIGITS], 0u64);
        for (digit, sum) in digits.iter_mut().zip(&self.digits) {
            let all = u128::from(*sum) + u128::from(carry);
            (*digit, carry) = (all as u64 & 0xffff_ffff, (all >> 32) as u64);
        }
        let from_top = digits.iter().enumerate().rev();
        let scale = |digit: usize| 2f64.powi(32 * digit as i32 - 149);
        let rest: f64 = from_top.map(|(at, digit)| *digit as f64 * scale(at)).sum();
        carry as f64 * scale(DIGITS) + rest
    }

    /// As a list whose sums, element by element, are those of sums.
    #[must_use]
    pub fn words(&self) -> Vec<u64> {
        self.digits.iter().copied().chain([self.not_finite]).collect()
    }

    /// Back from a list; none if it is of another length.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let (not_finite, digits) = words.split_last()?;
        Some(Self { digits: digits.try_into().ok()?, not_finite: *not_finite })
    }
}

/// A quotient of two sums without order: what a metric of a program's own comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExactQuotient {
    above: ExactSum,
    below: ExactSum,
    weight: ExactSum,
}

impl ExactQuotient {
    /// Words of one in a list.
    pub const WORDS: usize = 3 * ExactSum::WORDS;

    /// Adds a value and its weight, each rounded to an `f32` first.
    pub fn add(&mut self, value: f64, weight: f64) {
        let side = if value < 0.0 { &mut self.below } else { &mut self.above };
        side.add_size_of(value as f32);
        self.weight.add_size_of(weight as f32);
    }

    /// The sum of the values by that of the weights; none without weight.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        let weight = self.weight.value();
        (weight != 0.0).then(|| (self.above.value() - self.below.value()) / weight)
    }

    /// As a list whose sums, element by element, are those of sums.
    #[must_use]
    pub fn words(&self) -> Vec<u64> {
        [&self.above, &self.below, &self.weight].into_iter().flat_map(ExactSum::words).collect()
    }

    /// Back from a list; none if it is of another length.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let mut parts = words.chunks(ExactSum::WORDS).map(ExactSum::from_words);
        let mut next = || parts.next().flatten();
        let all = Self { above: next()?, below: next()?, weight: next()? };
        parts.next().is_none().then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(values: &[f32]) -> ExactSum {
        let mut sum = ExactSum::default();
        values.iter().for_each(|value| sum.add_size_of(*value));
        sum
    }

    #[test]
    fn a_quotient_is_that_of_the_sums_whoever_added_what() {
        let pairs = [(3.0, 4.0), (-1.5, 1.0), (0.0, 2.0), (1e-3, 0.5), (7e9, 1e3)];
        let all = |pairs: &[(f64, f64)]| {
            let mut quotient = ExactQuotient::default();
            pairs.iter().for_each(|(value, weight)| quotient.add(*value, *weight));
            quotient
        };
        let whole = all(&pairs).value().expect("there is weight");
        let sum = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
        assert!((whole - sum(|pair| pair.0) / sum(|pair| pair.1)).abs() < 1.0);
        for cut in 0..pairs.len() {
            let (one, other) = (all(&pairs[cut..]).words(), all(&pairs[..cut]).words());
            let both: Vec<u64> = one.iter().zip(&other).map(|(a, b)| a + b).collect();
            let joined = ExactQuotient::from_words(&both).and_then(|both| both.value());
            assert_eq!(joined.map(f64::to_bits), Some(whole.to_bits()));
        }
        assert_eq!(all(&[]).value(), None);
        assert!(all(&[(f64::NAN, 1.0)]).value().expect("there is weight").is_nan());
        assert_eq!(ExactQuotient::from_words(&[0; ExactQuotient::WORDS + 1]), None);
    }

    #[test]
    fn nothing_is_lost_however_far_apart_the_values_are() {
        assert_eq!(sum(&[]).value(), 0.0);
        for value in [1.0, -2.5, f32::MIN_POSITIVE, 1e-45, f32::MAX, 0.1, -300_000.25] {
            assert_eq!(sum(&[value]).value(), f64::from(value).abs(), "{value}");
        }
        assert_eq!(sum(&[f32::MAX, f32::MAX]).value(), 2.0 * f64::from(f32::MAX));
        // In f64 the small ones would vanish beside the large one.
        let mut far = vec![1e30f32];
        far.extend([1.0; 1000]);
        let mut words = sum(&far).words();
        words.iter_mut().zip(sum(&[1e30]).words()).for_each(|(all, large)| *all -= large);
        assert_eq!(ExactSum::from_words(&words).unwrap().value(), 1000.0);
        assert!(sum(&[1.0, f32::NAN]).value().is_nan() && sum(&[f32::INFINITY]).value().is_nan());
    }

    #[test]
    fn sums_of_parts_are_the_sum_of_all_in_any_order() {
        let values: Vec<f32> =
            (1..2000u32).map(|at| (at.wrapping_mul(2_654_435_761) as f32) * 1e-3).collect();
        let all = sum(&values);
        for parts in [2, 3, 7] {
            let mut words = vec![0; ExactSum::WORDS];
            for part in values.chunks(values.len().div_ceil(parts)).rev() {
                words.iter_mut().zip(sum(part).words()).for_each(|(all, word)| *all += word);
            }
            assert_eq!(ExactSum::from_words(&words).unwrap().value().to_bits(), all.value().to_bits());
        }
        let plain: f64 = values.iter().map(|value| f64::from(*value)).sum();
        assert!((all.value() - plain).abs() < 1e-12 * plain);
        assert_eq!(ExactSum::from_words(&[0; 3]), None);
    }
}
