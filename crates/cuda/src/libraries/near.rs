//! Whether what a library computed is near what dtrain's own kernels did.
//!
//! It does not know what they computed.

use crate::values::Half;

/// How far apart results may be: the square root of the mean square, in steps of a half at what that of the result is.
const STEPS: f64 = 8.0;
/// Numbers that are compared at once.
const PIECE: usize = 1 << 16;

/// A step of a half, as a share of a number.
fn step(half: Half) -> f64 {
    match half {
        Half::Bf16 => 2f64.powi(-8),
        Half::F16 => 2f64.powi(-11),
    }
}

/// Sums of squares: of what results are apart, and of what was wanted.
#[derive(Default)]
struct Apart {
    off: f64,
    all: f64,
}

impl Apart {
    fn note(&mut self, found: &[f32], wanted: &[f32]) {
        for (a, b) in found.iter().zip(wanted) {
            let (off, b) = (f64::from(*a) - f64::from(*b), f64::from(*b));
            self.off += off * off;
            self.all += b * b;
        }
    }

    /// Whether they are apart by at most that share. What is not a number is not.
    fn is_at_most(&self, share: f64) -> bool {
        self.off <= share * share * self.all
    }
}

/// Whether halves are near each other.
pub(super) fn are_near(half: Half, found: &[u16], wanted: &[u16]) -> bool {
    let widened = |halves: &[u16]| {
        let mut floats = vec![0.0; halves.len()];
        half.widen(halves, &mut floats);
        floats
    };
    let mut apart = Apart::default();
    for (found, wanted) in found.chunks(PIECE).zip(wanted.chunks(PIECE)) {
        apart.note(&widened(found), &widened(wanted));
    }
    apart.is_at_most(STEPS * step(half))
}

/// Whether numbers are near each other that were made of halves.
pub(super) fn are_near_floats(half: Half, found: &[f32], wanted: &[f32]) -> bool {
    let mut apart = Apart::default();
    apart.note(found, wanted);
    apart.is_at_most(STEPS * step(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_or_two_are_near_and_another_result_or_none_is_not() {
        let wanted: Vec<f32> = (0..100).map(|i| (i as f32 * 0.7).sin()).collect();
        let halves = |numbers: &[f32]| {
            let mut rounded = vec![0; numbers.len()];
            Half::Bf16.round(numbers, &mut rounded);
            rounded
        };
        let near = |found: &[f32]| are_near(Half::Bf16, &halves(found), &halves(&wanted));
        let with = |change: fn(usize, f32) -> f32| -> Vec<f32> {
            wanted.iter().enumerate().map(|(i, x)| change(i, *x)).collect()
        };
        assert!(near(&wanted) && near(&with(|_, x| x * 1.01)));
        assert!(!near(&with(|_, x| x * 1.05)) && !near(&with(|_, x| -x)));
        assert!(!near(&with(|i, x| if i == 99 { f32::NAN } else { x })));
        assert!(!are_near_floats(Half::F16, &with(|_, x| x * 1.01), &wanted));
        assert!(are_near_floats(Half::Bf16, &[0.0; 4], &[0.0; 4]));
    }
}
