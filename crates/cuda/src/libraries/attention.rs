//! Self-attention over halves, in the words of a library: what a choice is made for.
//!
//! This file does not know a library's functions.

use super::{LibraryError, Numbers};
use crate::operations::attention_half_is_there;
use dtrain_engine::device::{AttentionShape, Mask};
use serde::{Deserialize, Serialize};

/// The only library that is asked.
const NAME: &str = "cuDNN";
/// Elements of a tensor, at most: places in it are counted in 32 bits by some engines.
const MOST: u64 = i32::MAX as u64;
/// The library's workspace may be that, and the scores of all queries as halves: an engine that adds up in one order keeps them.
const WORKSPACE: u64 = 64 << 20;
/// Queries and keys of which such an engine keeps a tile, whole or not.
const TILE: u64 = 128;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionPass {
    /// The output, and the logarithm of each row's sum of exponentials.
    Forward,
    /// The gradient of queries, keys and values.
    Gradient,
}

/// What a choice is made for. Two ranks with the same key may share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttentionKey {
    /// Which of the two.
    pub pass: AttentionPass,
    /// What is read, and what the result is.
    pub numbers: Numbers,
    /// Sequences.
    pub batch: u32,
    /// Positions of a sequence.
    pub time: u32,
    /// Attention heads.
    pub heads: u32,
    /// Width of a head.
    pub head: u32,
    /// What each position sees; what was written before there was a choice is causal.
    #[serde(default)]
    pub mask: Mask,
}

impl AttentionKey {
    /// Of attention over such numbers. What dtrain's own tensor cores do not take, which it would be compared with, no library is asked for.
    ///
    /// *Errors*: [`LibraryError::Shape`] where the library cannot be told of it.
    pub fn of(pass: AttentionPass, reads: Numbers, shape: &AttentionShape) -> Result<Self, LibraryError> {
        let wrong = |why| LibraryError::Shape { library: NAME, shape: format!("{shape:?}"), why };
        if !matches!(reads, Numbers::Bf16 | Numbers::F16) {
            return Err(wrong("it is for halves"));
        }
        if !attention_half_is_there(shape) {
            return Err(wrong("only heads of up to 128 elements are told, a multiple of 8"));
        }
        let all = [shape.batch, shape.time, shape.heads, shape.head];
        if all.contains(&0) {
            return Err(wrong("there is nothing to compute"));
        }
        let elements = all.iter().try_fold(3u64, |product, n| product.checked_mul(*n as u64));
        if elements.is_none_or(|n| n > MOST) {
            return Err(wrong("it has more elements than 32 bits can count"));
        }
        let [batch, time, heads, head] = all.map(|n| n as u32);
        Ok(Self { pass, numbers: reads, batch, time, heads, head, mask: shape.mask })
    }

    /// The attention in the engine's words.
    #[must_use]
    pub fn shape(&self) -> AttentionShape {
        let [batch, time, heads, head] = [self.batch, self.time, self.heads, self.head].map(|n| n as usize);
        AttentionShape { batch, time, heads, head, mask: self.mask }
    }

    /// Multiplications and additions: two products of all queries with the keys that they see, for the gradient five.
    #[must_use]
    pub fn operations(&self) -> u64 {
        let products = if self.pass == AttentionPass::Forward { 2 } else { 5 };
        let rows = u64::from(self.batch) * u64::from(self.heads) * u64::from(self.time);
        let twice_the_seen = match self.mask {
            Mask::Causal => u64::from(self.time) + 1,
            Mask::None => 2 * u64::from(self.time),
        };
        products * rows.saturating_mul(u64::from(self.head) * twice_the_seen)
    }

    /// The largest workspace that the library may have. *Units*: bytes.
    #[must_use]
    pub fn most_workspace(&self) -> u64 {
        let time = u64::from(self.time).next_multiple_of(TILE);
        let scores = (u64::from(self.batch) * u64::from(self.heads)).saturating_mul(time.pow(2));
        if self.pass == AttentionPass::Forward {
            WORKSPACE
        } else {
            WORKSPACE.saturating_add(scores.saturating_mul(2))
        }
    }

    /// For people.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: AttentionShape =
        AttentionShape { batch: 2, time: 5, heads: 3, head: 16, mask: Mask::Causal };

    #[test]
    fn attention_is_the_same_in_the_library_s_words() {
        let key = AttentionKey::of(AttentionPass::Gradient, Numbers::F16, &SHAPE).expect("it fits");
        assert_eq!(key.shape(), SHAPE);
        // Of 5 queries the first sees one key, the last five.
        assert_eq!(key.operations(), 5 * 2 * (2 * 3 * 16) * (1 + 2 + 3 + 4 + 5));
        let text = serde_json::to_string(&key).expect("plain data");
        assert_eq!(serde_json::from_str::<AttentionKey>(&text).expect("what was written"), key);
        let older = text.replace(",\"mask\":\"causal\"", "");
        assert_ne!(older, text);
        assert_eq!(serde_json::from_str::<AttentionKey>(&older).expect("without a mask"), key);
        let of_all = AttentionShape { mask: Mask::None, ..SHAPE };
        let key = AttentionKey::of(AttentionPass::Forward, Numbers::F16, &of_all).expect("it fits");
        assert_eq!((key.shape(), key.operations()), (of_all, 2 * (2 * 3 * 16) * 2 * 5 * 5));
    }

    #[test]
    fn attention_that_cannot_be_told_is_a_typed_error() {
        let of = |reads, shape: AttentionShape| AttentionKey::of(AttentionPass::Forward, reads, &shape);
        for (reads, wrong, words) in [
            (Numbers::Tf32, SHAPE, "halves"),
            (Numbers::Bf16, AttentionShape { head: 12, ..SHAPE }, "a multiple of 8"),
            (Numbers::Bf16, AttentionShape { head: 136, ..SHAPE }, "128"),
            (Numbers::Bf16, AttentionShape { time: 0, ..SHAPE }, "nothing to compute"),
            (Numbers::Bf16, AttentionShape { batch: 1 << 23, ..SHAPE }, "32 bits"),
            (Numbers::Bf16, AttentionShape { batch: usize::MAX, ..SHAPE }, "32 bits"),
        ] {
            let error = of(reads, wrong).expect_err(words);
            let is_shape = matches!(error, LibraryError::Shape { .. });
            assert!(is_shape && error.to_string().contains(words), "{error}");
        }
    }
}
