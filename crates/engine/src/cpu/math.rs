//! The functions that kernels are made of: exponential, logarithm, normal distribution, sums in sixteen lanes.
//!
//! All are branch-free on f32 so that they vectorise, and use only operations that IEEE 754 rounds exactly (sums,
//! products, fused multiply-adds, quotients, roots), so every instruction set gives the same bits.
//!
//! This file does not know tensors.

/// How many independent sums a reduction has, on every instruction set.
pub(super) const LANES: usize = 16;

/// `e^x`, within 1 ulp or so; 0 below -87.3 and infinity above 88.7; NaN stays NaN.
///
/// *Source*: S. Moshier's Cephes, `expf`: `x = n ln 2 + r`, a polynomial in `r`, and `n` added to the exponent.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let low = if x < LEAST { 0.0 } else { exp_in_range(x) };
    // Bits that are added to those of a NaN may make a number of it, so it does not go that way.
    if x <= 88.7 { low } else { x + f32::INFINITY }
}

/// Below it `e^x` is 0.
const LEAST: f32 = -87.3;

/// [`exp`] from [`LEAST`] to 88.7. What comes of a NaN may be a number.
#[inline(always)]
fn exp_in_range(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let t = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-0.693_145_75, x);
    let r = n.mul_add(-1.428_606_8e-6, r);
    let p = 1.987_569_1e-4f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let y = (p * r).mul_add(r, r) + 1.0;
    f32::from_bits(y.to_bits().wrapping_add(t.to_bits() << 23))
}

/// `ln x` of a positive finite number in f64, within 1e-14 relative or so.
pub(super) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.172: ten terms reach 1e-16.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let s2 = s * s;
    let mut series = 0.0;
    for i in (0..11).rev() {
        series = series * s2 + 1.0 / f64::from(2 * i + 1);
    }
    2.0 * s * series + exponent as f64 * std::f64::consts::LN_2
}

/// `(Phi(x), phi(x))`: the normal distribution and its density, both within 1e-7 relative or so (the left tail
/// too, until it leaves the range of f32).
///
/// `erfc(z) = e^(-z^2) t P(t)`, `t = 1 / (1 + 0.3275911 z)`, as Abramowitz and Stegun 7.1.26 has it, with `P` of
/// degree 7 fitted anew to 6e-8 relative over all of `z >= 0`.
#[inline(always)]
pub(super) fn normal(x: f32) -> (f32, f32) {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    // e^(-x^2/2), with what the square loses added back, for the tail's sake.
    let h = -0.5 * x;
    let square = h * x;
    let lost = h.mul_add(x, -square);
    let e = exp_in_range(square);
    // Where `x` is NaN, so is `lost`.
    let e = if square < LEAST { 0.0 } else { lost.mul_add(e, e) };
    let t = 1.0 / z.mul_add(0.327_591_1, 1.0);
    // P / 2: halves are exact, so these are its bits with another exponent.
    let p = 0.5 * -0.144_343_67f32;
    let p = p.mul_add(t, 0.5 * 0.510_381_7);
    let p = p.mul_add(t, 0.5 * -0.430_159_9);
    let p = p.mul_add(t, 0.5 * 0.476_360_7);
    let p = p.mul_add(t, 0.5 * 0.012_647_813);
    let p = p.mul_add(t, 0.5 * 0.209_981_92);
    let p = p.mul_add(t, 0.5 * 0.180_028_99);
    let p = p.mul_add(t, 0.5 * 0.185_102_4);
    let tail = p * t * e;
    (if x < 0.0 { tail } else { 1.0 - tail }, e * 0.398_942_3)
}

/// `s = (1 + tanh u) / 2`, `1 - s` and `2 u'`, for `u = sqrt(2 / pi) (x + 0.044715 x^3)`.
#[inline(always)]
pub(super) fn half_of_tanh(x: f32) -> [f32; 3] {
    const CUBIC: f32 = 0.044_715;
    const TWICE: f32 = 1.595_769_2;
    let square = x * x;
    let twice_u = TWICE * x * square.mul_add(CUBIC, 1.0);
    // Of the two shares that e^(2u) and 1 have in their sum, by the one of e^-|2u|, which is never great. A NaN keeps its sign.
    let e = exp(if twice_u > 0.0 { -twice_u } else { twice_u });
    let greater = 1.0 / (1.0 + e);
    let less = e * greater;
    let twice_slope = TWICE * square.mul_add(3.0 * CUBIC, 1.0);
    if twice_u < 0.0 { [less, greater, twice_slope] } else { [greater, less, twice_slope] }
}

/// `1 / (1 + e^-x)`, by the exponential that is never great.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let greater = 1.0 / (1.0 + e);
    if x < 0.0 { e * greater } else { greater }
}

/// `tanh x`, within 2 ulp or so.
///
/// *Source*: S. Moshier's Cephes, `tanhf`: a polynomial about 0, the exponential elsewhere.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let square = x * x;
    let p = -5.704_988_7e-3f32;
    let p = p.mul_add(square, 2.063_908_8e-2);
    let p = p.mul_add(square, -5.373_971_5e-2);
    let p = p.mul_add(square, 1.333_144_2e-1);
    let p = p.mul_add(square, -3.333_328e-1);
    let near = (p * square).mul_add(x, x);
    let z = x.abs();
    let far = (1.0 - 2.0 / (exp(z + z) + 1.0)).copysign(x);
    if z < 0.625 { near } else { far }
}

/// Cosine and sine of an angle from 0 to 2^30 or so, within 1e-7.
///
/// *Source*: S. Moshier's Cephes, `cosf` and `sinf`: a polynomial of what is left of the nearest multiple of a quarter turn, which is found
/// in f64.
#[inline(always)]
pub(super) fn cos_sin(angle: f64) -> [f32; 2] {
    // Adding 1.5 * 2^52 rounds to an integer, which then stands in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let t = angle.mul_add(std::f64::consts::FRAC_2_PI, ROUND);
    let quarters = t - ROUND;
    let r = quarters.mul_add(-std::f64::consts::FRAC_PI_2, angle);
    // What pi / 2 is more than its f64.
    let r = quarters.mul_add(-6.123_233_995_736_766e-17, r) as f32;
    let square = r * r;
    let sine = (-1.951_529_6e-4f32).mul_add(square, 8.332_161e-3);
    let sine = sine.mul_add(square, -1.666_665_5e-1);
    let sine = (sine * square).mul_add(r, r);
    let cosine = 2.443_315_7e-5f32.mul_add(square, -1.388_731_6e-3);
    let cosine = cosine.mul_add(square, 4.166_664_6e-2);
    let cosine = (cosine * square).mul_add(square, (-0.5f32).mul_add(square, 1.0));
    let quarter = t.to_bits();
    let (first, second) = if quarter & 1 == 0 { (cosine, sine) } else { (sine, cosine) };
    // Of the four quarters the cosine is below zero in the second and third, the sine in the third and fourth.
    let first = if (quarter + 1) & 2 == 0 { first } else { -first };
    [first, if quarter & 2 == 0 { second } else { -second }]
}

/// The sum of sixteen lanes, as a tree.
#[inline(always)]
pub(super) fn across(lanes: [f32; LANES]) -> f32 {
    let mut half = [0.0; 8];
    for i in 0..8 {
        half[i] = lanes[i] + lanes[i + 8];
    }
    let quarter = [half[0] + half[4], half[1] + half[5], half[2] + half[6], half[3] + half[7]];
    (quarter[0] + quarter[2]) + (quarter[1] + quarter[3])
}

/// `sum of f(i)` for `i` below `len`: lane `i % 16` adds in order, then the lanes as a tree.
#[inline(always)]
pub(super) fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            lanes[i] += f(block[i]);
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(rest) {
        *lane += f(v);
    }
    across(lanes)
}

/// As [`sum`], over two slices of one length.
#[inline(always)]
pub(super) fn sum2(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in xs.iter().zip(ys) {
        for i in 0..LANES {
            lanes[i] += f(x[i], y[i]);
        }
    }
    for (lane, (&x, &y)) in lanes.iter_mut().zip(x_rest.iter().zip(y_rest)) {
        *lane += f(x, y);
    }
    across(lanes)
}

/// The greatest element; minus infinity of none. NaN is passed over.
#[inline(always)]
pub(super) fn greatest(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            lanes[i] = if block[i] > lanes[i] { block[i] } else { lanes[i] };
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(rest) {
        *lane = if v > *lane { v } else { *lane };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, |best, v| if v > best { v } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_accurate_to_two_ulp_over_its_range() {
        for i in -87_000..88_000 {
            let x = i as f32 * 1e-3;
            let wanted = f64::from(x).exp();
            let error = (f64::from(exp(x)) - wanted).abs() / wanted;
            assert!(error < 2.4e-7, "exp({x}) is off by {error:e}");
        }
        assert_eq!(exp(-1000.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(1000.0), f32::INFINITY);
    }

    #[test]
    fn whatever_nan_goes_in_nan_comes_out() {
        for bits in [0x7fc0_0000, 0x7fff_ffff, 0xffff_ffff, 0x7f80_0001, 0x7fc0_0001, 0xffc0_0000] {
            let x = f32::from_bits(bits);
            let (distribution, density) = normal(x);
            let results = [exp(x), sigmoid(x), tanh(x), distribution, density];
            for (i, y) in results.into_iter().chain(half_of_tanh(x)).enumerate() {
                assert!(y.is_nan(), "function {i} of {bits:#010x} is {y}");
            }
        }
    }

    #[test]
    fn cosine_and_sine_are_accurate_over_thousands_of_turns() {
        for i in 0..200_000 {
            let angle = f64::from(i) * 0.731_234_5;
            let [cosine, sine] = cos_sin(angle).map(f64::from);
            let off = (cosine - angle.cos()).abs().max((sine - angle.sin()).abs());
            assert!(off < 1.2e-7, "of {angle} they are off by {off:e}");
        }
        assert_eq!(cos_sin(0.0), [1.0, 0.0]);
    }

    #[test]
    fn the_logarithm_is_accurate() {
        for i in 1..20_000 {
            let x = f64::from(i) * 0.37e-2;
            assert!((ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(1.0), "ln({x})");
        }
    }

    #[test]
    fn the_normal_distribution_is_accurate_in_its_left_tail_too() {
        // Phi(-x) = erfc(x / sqrt 2) / 2, from tables.
        for (x, phi) in [
            (0.0, 0.5),
            (-1.0, 0.158_655_253_931_457),
            (-2.0, 0.022_750_131_948_179_2),
            (-3.0, 0.001_349_898_031_630_09),
            (-5.0, 2.866_515_718_791_94e-7),
            (-8.0, 6.220_960_574_271_78e-16),
            (1.0, 0.841_344_746_068_543),
        ] {
            let error = (f64::from(normal(x).0) - phi).abs() / phi;
            assert!(error < 5e-7, "Phi({x}) is off by {error:e}");
        }
    }

    #[test]
    fn sums_have_one_order_whatever_the_rest_is() {
        for len in [0, 1, 15, 16, 17, 100] {
            let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
            assert_eq!(sum(&x, |v| v), (0..len).sum::<usize>() as f32);
            assert_eq!(sum2(&x, &x, |a, b| a - b), 0.0);
            assert_eq!(greatest(&x), if len == 0 { f32::NEG_INFINITY } else { len as f32 - 1.0 });
        }
    }
}
