//! Exponentials, sines and cosines in f64 from additions and multiplications alone: the mathematics library of the system may differ in
//! the last digit, and a picture must have the same bits on every machine.

/// Terms of each series; enough for f64 where it is used.
const TERMS: u32 = 24;

/// `e^x` for `x` in `[-2, 2]`.
pub(super) fn exp(x: f64) -> f64 {
    (1..=TERMS).rev().fold(1.0, |sum, n| 1.0 + sum * x / f64::from(n))
}

/// Sine and cosine of an angle in degrees, up to 90 on both sides.
pub(super) fn sine_and_cosine(degrees: f64) -> (f64, f64) {
    let x = degrees * (std::f64::consts::PI / 180.0);
    // x - x^3/3! + ... and 1 - x^2/2! + ..., from their last terms.
    let series = |first: u32| {
        (0..TERMS / 2).rev().fold(1.0, |sum, n| {
            let n = f64::from(2 * n + first);
            1.0 - sum * x * x / (n * (n + 1.0))
        })
    };
    (x * series(2), series(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_agree_with_the_library() {
        for at in -1000..=1000 {
            let share = f64::from(at) / 1000.0;
            assert!((exp(2.0 * share) - (2.0 * share).exp()).abs() < 1e-14, "{share}");
            let (sine, cosine) = sine_and_cosine(90.0 * share);
            let (expected_sine, expected_cosine) = (90.0 * share).to_radians().sin_cos();
            assert!((sine - expected_sine).abs() < 1e-14 && (cosine - expected_cosine).abs() < 1e-14);
        }
        assert_eq!((exp(0.0), sine_and_cosine(0.0)), (1.0, (0.0, 1.0)));
    }
}
