//! The two kinds of halves as the host knows them: in f64, by their definition.

use super::numbers;
use dtrain_cuda::operations::Half;

/// A kind of halves as a type, so that a check of one is a function.
pub trait Kind {
    const HALF: Half;
    /// What one rounding is off by at most, of a number that is not too small.
    const ROUNDING: f64;
}

pub struct Bf16;
pub struct F16;

impl Kind for Bf16 {
    const HALF: Half = Half::Bf16;
    const ROUNDING: f64 = 1.0 / 256.0;
}

impl Kind for F16 {
    const HALF: Half = Half::F16;
    const ROUNDING: f64 = 1.0 / 2048.0;
}

/// Bits behind the leading one, and the exponent of the least number that has all of them.
fn format(half: Half) -> (u32, i32) {
    match half {
        Half::Bf16 => (7, -126),
        Half::F16 => (10, -14),
    }
}

/// A half as a number.
pub fn as_f64(half: Half, bits: u16) -> f64 {
    let ((behind, least), sign) = (format(half), if bits >> 15 == 1 { -1.0 } else { 1.0 });
    let (exponent, rest) = (i32::from((bits & 0x7fff) >> behind), f64::from(bits & ((1 << behind) - 1)));
    let unit = 2f64.powi(exponent.max(1) - 1 + least - behind as i32);
    match exponent {
        0 => sign * rest * unit,
        // The exponent of all ones.
        top if top == 0x7fff >> behind => {
            if rest == 0.0 {
                sign * f64::INFINITY
            } else {
                f64::NAN
            }
        }
        _ => sign * (rest + f64::from(1 << behind)) * unit,
    }
}

/// The nearest half, of two the even one; beyond the greatest, infinity.
pub fn nearest(half: Half, v: f64) -> u16 {
    let ((behind, least), sign) = (format(half), (v.to_bits() >> 48) as u16 & 0x8000);
    let infinity = 0x7fff >> behind << behind;
    if v.is_nan() {
        return 0x7fff;
    }
    let exponent = ((v.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least);
    if exponent > 127 {
        return sign | infinity;
    }
    // So many of what the last bit means. A carry goes into the exponent by itself.
    let steps = (v.abs() / 2f64.powi(exponent - behind as i32)).round_ties_even() as u32;
    sign | ((((exponent - least) as u32) << behind) + steps).min(infinity.into()) as u16
}

/// `len` numbers in `[-range, range)` as halves.
pub fn halves<K: Kind>(site: u32, len: usize, range: f32) -> Vec<u16> {
    numbers(site, len).iter().map(|v| nearest(K::HALF, f64::from(v * range))).collect()
}

/// Halves as numbers.
pub fn values<K: Kind>(x: &[u16]) -> Vec<f64> {
    x.iter().map(|bits| as_f64(K::HALF, *bits)).collect()
}
