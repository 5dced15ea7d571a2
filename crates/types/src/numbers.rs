//! Powers, exponentials, logarithms, sines and cosines in f64 from additions, multiplications and square roots alone, so that they have
//! the same bits on every machine: the mathematics library of the system may differ in the last digit.

/// `base^exponent`, by squaring.
#[must_use]
pub fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

/// `cos(pi x)` for `x` in `[0, 1]`.
#[must_use]
pub fn cos_pi(x: f64) -> f64 {
    // cos(pi x) = -cos(pi (1 - x)): half the range is enough, where 12 terms of the series are exact to f64.
    if x > 0.5 {
        return -cos_pi(1.0 - x);
    }
    let square = (x * std::f64::consts::PI) * (x * std::f64::consts::PI);
    let (mut term, mut sum) = (1.0, 1.0);
    for n in 1..=12 {
        let n = f64::from(n);
        term *= -square / ((2.0 * n - 1.0) * (2.0 * n));
        sum += term;
    }
    sum
}

/// The natural logarithm of a positive normal number.
#[must_use]
pub fn ln(x: f64) -> f64 {
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m - 1) / (m + 1)).
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for n in (0..12).rev() {
        sum = sum * square + 1.0 / f64::from(2 * n + 1);
    }
    2.0 * s * sum + f64::from(exponent) * std::f64::consts::LN_2
}

/// The value below which a standard normal number falls with probability `p`, `0 < p < 1`; 7 digits.
///
/// *Source*: Wichura, "Algorithm AS 241: the percentage points of the normal distribution", 1988, PPND7.
#[must_use]
#[allow(clippy::excessive_precision)]
pub fn normal_quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180625 - q * q;
        let above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179;
        let below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0;
        return q * above / below;
    }
    let r = (-ln(p.min(1.0 - p))).sqrt();
    let tail = if r <= 5.0 {
        let r = r - 1.6;
        let above = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777;
        above / ((0.12021132975 * r + 0.73700164250) * r + 1.0)
    } else {
        let r = r - 5.0;
        let above = ((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150;
        above / ((0.012258202635 * r + 0.24197894225) * r + 1.0)
    };
    if q < 0.0 { -tail } else { tail }
}

/// Terms of each series; enough for f64 where it is used.
const TERMS: u32 = 24;

/// `e^x` for `x` in `[-2, 2]`.
#[must_use]
pub fn exp(x: f64) -> f64 {
    (1..=TERMS).rev().fold(1.0, |sum, n| 1.0 + sum * x / f64::from(n))
}

/// Sine and cosine of an angle in degrees, up to 90 on both sides.
#[must_use]
pub fn sine_and_cosine(degrees: f64) -> (f64, f64) {
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
    fn powers_and_cosines_and_logarithms_agree_with_the_library() {
        for i in 0..=1000 {
            let x = f64::from(i) / 1000.0;
            assert!((cos_pi(x) - (x * std::f64::consts::PI).cos()).abs() < 1e-14, "cos at {x}");
            let y = 1e-9 + x * 37.0;
            assert!((ln(y) - y.ln()).abs() <= 1e-14 * y.ln().abs().max(1.0), "ln at {y}");
        }
        for exponent in [0, 1, 2, 7, 1000, 123_456] {
            let want = 0.999f64.powf(exponent as f64);
            assert!((power(0.999, exponent) - want).abs() <= 1e-11 * want);
        }
    }

    #[test]
    fn normal_quantiles_are_those_of_the_tables() {
        for (p, want) in
            [(0.5, 0.0), (0.975, 1.959964), (0.999, 3.090232), (0.8413447, 1.0), (1e-12, -7.034484)]
        {
            assert!((normal_quantile(p) - want).abs() < 2e-6, "{p}: {}", normal_quantile(p));
        }
    }

    #[test]
    fn exponentials_and_sines_agree_with_the_library() {
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
