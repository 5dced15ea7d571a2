//! As what kind of number a sum of gradients is kept, and how one is rounded to it.
//!
//! A node of the reduction tree, leaf or sum, is rounded once, where it is made; so its bits do not depend on who made it.
//! A rounded number is still an `f32`: its low half is zero, and only a wire leaves that out. This file does not know
//! gradients, trees or wires.

crate::words!(
    /// What every node of the sum of a step is rounded to.
    #[derive(Default, PartialOrd, Ord, Hash)]
    Wire {
        /// 32-bit floats: nothing is rounded but by the additions themselves.
        #[default]
        F32 = "f32",
        /// The upper halves of 32-bit floats: half the bytes between hosts.
        Bf16 = "bf16",
    }
);

impl Wire {
    /// Bytes of a number between hosts.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Rounds every number, in place.
    pub fn round(self, numbers: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::Bf16 => numbers.iter_mut().for_each(|x| *x = to_bf16(*x)),
        }
    }
}

/// The nearest number of eight significant bits; of two that are as near, the even one.
///
/// As IEEE 754 has it: what rounds beyond the greatest is infinite, infinities and signs stay, a number that is none stays none
/// and becomes quiet. *Order*: whole-number arithmetic alone, without a branch, so that a loop becomes vector code whose bits are
/// those of one number after the other on every instruction set.
#[inline(always)]
#[must_use]
pub fn to_bf16(x: f32) -> f32 {
    const UPPER: u32 = 0xffff_0000;
    const INFINITE: u32 = 0x7f80_0000;
    const QUIET: u32 = 0x0040_0000;
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & UPPER;
    let none = (bits | QUIET) & UPPER;
    f32::from_bits(if bits & !(1 << 31) > INFINITE { none } else { nearest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same from its definition, with distances in f64, where they are exact.
    fn by_distance(x: f32) -> f32 {
        let below = f32::from_bits(x.to_bits() & 0xffff_0000);
        if x.is_nan() || x.is_infinite() || x == below {
            return x;
        }
        let above_bits = below.to_bits() + 0x1_0000;
        // Beyond the greatest the next one would be 2^128.
        let above = match f32::from_bits(above_bits) {
            infinite if infinite.is_infinite() => 2f64.powi(128).copysign(x.into()),
            finite => finite.into(),
        };
        let (down, up) = ((f64::from(x) - f64::from(below)).abs(), (above - f64::from(x)).abs());
        let is_even = below.to_bits() >> 16 & 1 == 0;
        if down < up || down == up && is_even { below } else { f32::from_bits(above_bits) }
    }

    /// Low halves around the tie and at the ends.
    const LOW: [u32; 9] = [0, 1, 2, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff];

    /// Every upper half with each of them: ties to both sides, denormals, infinities, numbers that are none.
    fn patterns() -> impl Iterator<Item = u32> {
        (0..=u32::from(u16::MAX)).flat_map(|upper| LOW.map(|low| upper << 16 | low))
    }

    #[test]
    fn every_upper_half_is_rounded_to_the_nearest_and_ties_to_even() {
        let mut ties = 0;
        for bits in patterns() {
            let x = f32::from_bits(bits);
            let got = to_bf16(x);
            assert_eq!(got.to_bits() & 0xffff, 0, "{bits:#010x}");
            if x.is_nan() {
                assert!(got.is_nan() && got.is_sign_negative() == x.is_sign_negative(), "{bits:#010x}");
                assert_ne!(got.to_bits() & 0x0040_0000, 0, "{bits:#010x} stays one that signals");
                continue;
            }
            assert_eq!(got.to_bits(), by_distance(x).to_bits(), "{bits:#010x}");
            ties += u32::from(bits & 0xffff == 0x8000);
        }
        // All but those of infinite exponent.
        assert_eq!(ties, 2 * 255 * 128);
    }

    #[test]
    fn a_loop_has_the_bits_of_one_number_after_the_other() {
        let numbers: Vec<f32> = patterns().map(f32::from_bits).collect();
        let mut all = numbers.clone();
        Wire::Bf16.round(&mut all);
        assert!(all.iter().zip(&numbers).all(|(all, one)| all.to_bits() == to_bf16(*one).to_bits()));
        let mut same = numbers.clone();
        Wire::F32.round(&mut same);
        assert!(same.iter().zip(&numbers).all(|(same, one)| same.to_bits() == one.to_bits()));
    }

    #[test]
    fn what_is_too_great_becomes_infinite_and_what_is_small_keeps_its_sign() {
        assert_eq!(to_bf16(f32::MAX), f32::INFINITY);
        assert_eq!(to_bf16(f32::MIN), f32::NEG_INFINITY);
        assert_eq!(to_bf16(f32::from_bits(0x7f7f_7fff)), f32::from_bits(0x7f7f_0000));
        assert_eq!(to_bf16(-f32::from_bits(1)).to_bits(), 1 << 31);
        assert_eq!(to_bf16(f32::from_bits(0x8000)).to_bits(), 0, "a tie among denormals");
        assert_eq!(to_bf16(f32::from_bits(0x1_8000)).to_bits(), 0x2_0000);
    }

    proptest! {
        #[test]
        fn any_number_is_rounded_once_and_then_stays(bits: u32) {
            let (x, once) = (f32::from_bits(bits), to_bf16(f32::from_bits(bits)));
            prop_assert_eq!(to_bf16(once).to_bits(), once.to_bits());
            prop_assert!(x.is_nan() || once.to_bits() == by_distance(x).to_bits());
        }
    }
}
