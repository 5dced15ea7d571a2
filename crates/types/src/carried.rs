//! Words among floats, where floats alone travel: they are moved, and nobody looks at what numbers they would be.

/// A word as two floats.
#[must_use]
pub fn word_to_floats(word: u64) -> [f32; 2] {
    [f32::from_bits(word as u32), f32::from_bits((word >> 32) as u32)]
}

/// The word that two floats carry. *Panics* unless there are two.
#[must_use]
pub fn word_of_floats(floats: &[f32]) -> u64 {
    let [low, high] = floats else { panic!("a word is two floats, not {}", floats.len()) };
    u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_comes_back_whatever_numbers_its_halves_would_be() {
        // A zero below zero, numbers that are none, and the least there are.
        for word in [0, 1, u64::MAX, 0x7FA0_0001_FFFF_FFFF, 0x8000_0000_0000_0001, f64::NAN.to_bits()] {
            assert_eq!(word_of_floats(&word_to_floats(word)), word);
        }
    }
}
