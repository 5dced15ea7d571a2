//! Chance, from one seed: every draw of a simulation comes from here, so one number replays all of it.
//!
//! Streams of different purposes are apart, so that a change in how one of them is used does not move the others. This
//! file does not know what is drawn.
//!
//! *Source*: SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.

use dtrain_types::Seed;

/// One stream of random numbers.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The stream of one purpose of one seed.
    #[must_use]
    pub fn new(seed: Seed, purpose: u64) -> Self {
        let mut chance = Self(seed.0 ^ purpose.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        chance.draw();
        chance
    }

    /// 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number of `0..bound`. *Panics* if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing lies below 0");
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// A number of `low..high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }

    /// True in so many cases of a thousand.
    pub fn per_mille(&mut self, cases: u64) -> bool {
        cases > 0 && self.below(1000) < cases
    }

    /// One of these. *Panics* if there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_purpose_give_the_same_numbers_again_and_others_give_others() {
        let first = |seed, purpose| Chance::new(Seed(seed), purpose).draw();
        assert_eq!(first(1, 2), first(1, 2));
        assert_ne!(first(1, 2), first(1, 3));
        assert_ne!(first(1, 2), first(2, 2));
    }

    #[test]
    fn draws_stay_inside_their_bounds_and_reach_both_ends() {
        let mut chance = Chance::new(Seed(5), 0);
        let drawn: Vec<u64> = (0..200).map(|_| chance.between(3, 6)).collect();
        assert!(drawn.contains(&3) && drawn.contains(&5) && drawn.iter().all(|n| (3..6).contains(n)));
        assert!((0..100).all(|_| !chance.per_mille(0)) && (0..100).all(|_| chance.per_mille(1000)));
    }
}
