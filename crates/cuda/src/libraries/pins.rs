//! Algorithms of libraries that were written down: what a run keeps and all of its ranks read.
//!
//! It does not know who chose them, nor where they are kept.

use super::attention::AttentionKey;
use super::convolution::ConvolutionKey;
use super::cublaslt::PinnedAlgorithm;
use super::cudnn::{PinnedAttention, PinnedConvolution};
use super::product::ProductKey;
use serde::{Deserialize, Serialize};

/// The products that cuBLASLt does in a run.
pub type ProductPins = Pins<ProductKey, PinnedAlgorithm>;
/// The convolutions that cuDNN does in a run.
pub type ConvolutionPins = Pins<ConvolutionKey, PinnedConvolution>;
/// The attention that cuDNN does in a run.
pub type AttentionPins = Pins<AttentionKey, PinnedAttention>;

/// What a library does in a run, each shape by its algorithm; everything else is done by dtrain's own kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pins<K, A> {
    /// The model of GPU that they were chosen on.
    pub gpu: String,
    /// The library's version.
    pub version: u64,
    /// In the order of their keys. A key without an algorithm is one for which dtrain's own kernel is as fast.
    pub chosen: Vec<Pin<K, A>>,
}

/// What was chosen for a shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin<K, A> {
    /// The shape.
    pub key: K,
    /// The library's algorithm; nothing where dtrain's own kernel is used.
    pub algorithm: Option<A>,
    /// How long the library took when it was chosen, and dtrain's own kernel; for people. *Units*: microseconds.
    pub took: [u64; 2],
}

impl<K: Ord + Copy, A: Clone + Serialize> Pins<K, A> {
    /// Of a model of GPU and a version of the library, without any yet.
    #[must_use]
    pub fn new(gpu: &str, version: u64) -> Self {
        Self { gpu: gpu.to_owned(), version, chosen: Vec::new() }
    }

    /// Whether they are as [`Pins::put`] leaves them: what was read from a file may be anything.
    #[must_use]
    pub fn is_in_order(&self) -> bool {
        self.chosen.is_sorted_by(|a, b| a.key < b.key)
    }

    /// What was chosen for a shape, if anything was.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&Pin<K, A>> {
        let at = self.chosen.binary_search_by(|pin| pin.key.cmp(key)).ok()?;
        Some(&self.chosen[at])
    }

    /// Those of these keys that nothing was chosen for.
    #[must_use]
    pub fn lacking(&self, keys: &[K]) -> Vec<K> {
        keys.iter().filter(|key| self.get(key).is_none()).copied().collect()
    }

    /// One more choice, in the place of an older one.
    pub fn put(&mut self, pin: Pin<K, A>) {
        match self.chosen.binary_search_by(|known| known.key.cmp(&pin.key)) {
            Ok(at) => self.chosen[at] = pin,
            Err(at) => self.chosen.insert(at, pin),
        }
    }

    /// Those that were chosen for these keys.
    #[must_use]
    pub fn of(&self, keys: &[K]) -> Self {
        let mut chosen = Self::new(&self.gpu, self.version);
        keys.iter().filter_map(|key| self.get(key)).for_each(|pin| chosen.put(pin.clone()));
        chosen
    }

    /// Whether the library does nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.algorithms().next().is_none()
    }

    /// The algorithms of the library.
    pub fn algorithms(&self) -> impl Iterator<Item = &A> {
        self.chosen.iter().filter_map(|pin| pin.algorithm.as_ref())
    }

    /// A word that differs where the bits of what the library does may: 16 digits of a digest over library, GPU and algorithms.
    #[must_use]
    pub fn word(&self) -> String {
        let algorithms: Vec<_> = self.algorithms().collect();
        let text = serde_json::to_string(&(&self.gpu, self.version, algorithms)).expect("plain data");
        blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libraries::Numbers;
    use crate::libraries::product::Finish;
    use dtrain_engine::device::{Product, Strides, Write};

    fn key(rows: usize) -> ProductKey {
        let (a, b) = (Strides::rows(64), Strides::transposed(64));
        let shape = Product { m: rows, n: 128, k: 64, a, b, c_row: 128, write: Write::Set };
        ProductKey::of(&shape, Numbers::Bf16, Finish::Bias, 16).expect("rows are contiguous")
    }

    fn pin(rows: usize, word: u64) -> Pin<ProductKey, PinnedAlgorithm> {
        let key = key(rows);
        let algorithm = PinnedAlgorithm { key, algorithm: [word; 8], workspace: 0, version: 130_100 };
        Pin { key, algorithm: Some(algorithm), took: [3, 9] }
    }

    #[test]
    fn a_choice_is_found_again_and_the_word_follows_what_was_chosen() {
        let mut pins = ProductPins::new("H200", 130_100);
        assert!(pins.is_empty());
        for rows in [64, 16, 32] {
            pins.put(pin(rows, 1));
        }
        assert_eq!(pins.lacking(&[key(16), key(48), key(64)]), [key(48)]);
        assert_eq!(pins.of(&[key(64), key(48)]).chosen, [pin(64, 1)]);
        let word = pins.word();
        let slower = Pin { took: [4, 10], ..pin(32, 1) };
        pins.put(slower);
        assert_eq!((pins.chosen.len(), pins.word()), (3, word.clone()), "how long it took is no choice");
        pins.put(pin(32, 2));
        assert_ne!(pins.word(), word);
        let own = Pin { algorithm: None, ..pin(32, 2) };
        pins.put(own);
        assert_eq!(pins.algorithms().count(), 2);
        let text = serde_json::to_string(&pins).expect("plain data");
        assert_eq!(serde_json::from_str::<ProductPins>(&text).expect("what was written"), pins);
    }
}
