//! Randomness without state: every number is a function of where it is used.
//!
//! A stream is keyed by `(seed, step, micro-batch, call site)`; the `i`-th number of a stream can be had without
//! the ones before it. Never by rank, thread or clock, so the numbers do not change when the work moves.
//!
//! *Source*: Philox 4x32-10, Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.

use crate::{Epoch, MicroBatch, Seed, Step};

/// Names the place in the program that draws: a layer, the initialisation of a parameter, an augmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site(pub u32);

/// One stream of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    key: [u32; 2],
    /// The upper three words of the counter; the lowest is the block's index.
    place: [u32; 3],
}

impl Key {
    /// The stream of one call site in one micro-batch of one step.
    #[must_use]
    pub fn new(seed: Seed, step: Step, micro_batch: MicroBatch, site: Site) -> Self {
        let high = (step.0 >> 32) as u32;
        let key = [seed.0 as u32, (seed.0 >> 32) as u32 ^ high.rotate_left(16)];
        Self { key, place: [site.0, micro_batch.0, step.0 as u32] }
    }

    /// The generator's key, and the upper three words of its counter: for a device that draws the blocks itself.
    #[must_use]
    pub fn words(&self) -> ([u32; 2], [u32; 3]) {
        (self.key, self.place)
    }

    /// Block `index` of the stream: four independent words.
    #[inline(always)]
    #[must_use]
    pub fn block(&self, index: u32) -> [u32; 4] {
        philox([index, self.place[0], self.place[1], self.place[2]], self.key)
    }

    /// Word `index` of the stream. For many in a row use [`Key::block`].
    #[must_use]
    pub fn bits(&self, index: u32) -> u32 {
        self.block(index / 4)[(index % 4) as usize]
    }

    /// Number `index` of the stream, uniform in `[0, 1)` with 24 bits.
    #[must_use]
    pub fn unit_f32(&self, index: u32) -> f32 {
        unit_of(self.bits(index))
    }

    /// An integer uniform in `0..bound` (multiply-shift; the bias is below `bound / 2^32`).
    ///
    /// *Panics* if `bound` is 0.
    #[must_use]
    pub fn below(&self, index: u32, bound: u32) -> u32 {
        assert!(bound > 0, "nothing lies below 0");
        ((u64::from(self.bits(index)) * u64::from(bound)) >> 32) as u32
    }
}

/// What a word of a stream is as a number uniform in `[0, 1)`: its upper 24 bits.
#[inline(always)]
#[must_use]
pub fn unit_of(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

#[inline(always)]
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let p0 = u64::from(counter[0]) * 0xD251_1F53;
        let p1 = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (p1 >> 32) as u32 ^ counter[1] ^ key[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ counter[3] ^ key[1],
            p0 as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// A permutation of `0..len` for one epoch, looked up in any order without a table.
///
/// A Feistel network over the next even power of two, walked until it lands below `len` (at most 4 expected
/// rounds of the network).
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    key: [u32; 2],
}

impl Permutation {
    const ROUNDS: u32 = 6;

    /// The order of the samples `0..len` in `epoch`.
    #[must_use]
    pub fn new(seed: Seed, epoch: Epoch, len: u64) -> Self {
        let bits = 64 - len.saturating_sub(1).leading_zeros();
        let key = philox([epoch.0, 0x5045_524D, 0, 0], [seed.0 as u32, (seed.0 >> 32) as u32]);
        Self { len, half_bits: bits.div_ceil(2).max(1), key: [key[0], key[1]] }
    }

    /// The sample at `place` of the epoch.
    ///
    /// *Panics* if `place` is not below the length.
    #[must_use]
    pub fn sample(&self, place: u64) -> u64 {
        assert!(place < self.len, "place {place} in an epoch of {} samples", self.len);
        let mut x = place;
        loop {
            x = self.network(x);
            if x < self.len {
                return x;
            }
        }
    }

    fn network(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for round in 0..Self::ROUNDS {
            let f = philox([right as u32, (right >> 32) as u32, round, 0], self.key);
            let mixed = left ^ ((u64::from(f[1]) << 32 | u64::from(f[0])) & mask);
            (left, right) = (right, mixed);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn philox_gives_the_published_numbers() {
        // Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    proptest! {
        #[test]
        fn a_permutation_meets_every_sample_once(len in 1u64..3000, seed: u64, epoch in 0u32..5) {
            let order = Permutation::new(Seed(seed), Epoch(epoch), len);
            let mut seen = vec![false; len as usize];
            for place in 0..len {
                let sample = order.sample(place) as usize;
                prop_assert!(!seen[sample]);
                seen[sample] = true;
            }
        }
    }

    #[test]
    fn another_epoch_and_another_seed_give_another_order() {
        let order = |seed, epoch| {
            let order = Permutation::new(Seed(seed), Epoch(epoch), 100);
            (0..100).map(|place| order.sample(place)).collect::<Vec<_>>()
        };
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn streams_of_different_places_differ() {
        let at = |step, micro, site| Key::new(Seed(9), Step(step), MicroBatch(micro), Site(site)).block(0);
        assert_ne!(at(1, 0, 0), at(2, 0, 0));
        assert_ne!(at(1, 0, 0), at(1, 1, 0));
        assert_ne!(at(1, 0, 0), at(1, 0, 1));
        assert_ne!(at(1, 0, 0), at(1 + (1 << 32), 0, 0));
    }
}
