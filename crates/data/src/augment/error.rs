//! What can be wrong with the text of an augmentation.
//!
//! Nothing is printed here; [`AugmentParseError::hint`] says what a user can do about it.

/// Why a text names no augmentation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AugmentParseError {
    /// A word that is none.
    #[error(
        "unknown augmentation {text:?}, expected none, flip, shift, shift:K, crop:S, crop:HxW, resized-crop:S, resized-crop:HxW, \
         rand-augment, rand-augment:N,M, jitter, jitter:B,C,S, erase, mixup, mixup:A, cutmix or cutmix:A, joined by +"
    )]
    Unknown {
        /// The word.
        text: String,
    },
    /// Numbers that an augmentation cannot have.
    #[error("augmentation {text:?} is no {expected}")]
    Numbers {
        /// The text.
        text: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Two that both say which part of a picture is taken.
    #[error("{one} and {other} both say which part of a picture is taken")]
    Both {
        /// One of them.
        one: &'static str,
        /// The other one.
        other: &'static str,
    },
}

impl AugmentParseError {
    /// What to do about it, in one sentence.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "such as [shift, flip]",
            Self::Numbers { .. } => {
                "such as [\"resized-crop:24\", \"rand-augment:2,9\", \"jitter:0.4,0.4,0.4\", \"mixup:0.2\"], in quotes"
            }
            Self::Both { .. } => "leave one of them out: resized-crop draws a place of its own",
        }
    }
}
