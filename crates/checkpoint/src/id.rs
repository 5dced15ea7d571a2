//! The name of a checkpoint: the generation that wrote it and the step it holds.
//!
//! Generation numbers are never used twice in a run, so the name is unique and the greatest one is the newest. The
//! name does not say whether the checkpoint is whole.

use dtrain_types::{Generation, Step};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A checkpoint's name, written `g3-s001200`.
///
/// *Order*: by generation, then by step; the greatest is the newest of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CheckpointId {
    /// The generation that wrote it.
    pub generation: Generation,
    /// The updates it holds.
    pub step: Step,
}

/// A text that is not the name of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not the name of a checkpoint, such as g3-s001200")]
pub struct IdError(pub String);

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}-s{:06}", self.generation.0, self.step.0)
    }
}

impl FromStr for CheckpointId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let (generation, step) = text.strip_prefix('g')?.split_once("-s")?;
            Some(Self { generation: Generation(generation.parse().ok()?), step: Step(step.parse().ok()?) })
        };
        // Only the spelling that we write is a name: two folders must never mean one checkpoint.
        parse().filter(|id| id.to_string() == text).ok_or_else(|| IdError(text.to_owned()))
    }
}

impl From<CheckpointId> for String {
    fn from(id: CheckpointId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for CheckpointId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_is_read_back_as_it_was_written(generation: u64, step: u64) {
            let id = CheckpointId { generation: Generation(generation), step: Step(step) };
            prop_assert_eq!(id.to_string().parse::<CheckpointId>(), Ok(id));
        }
    }

    #[test]
    fn only_the_one_spelling_is_a_name() {
        let id = CheckpointId { generation: Generation(3), step: Step(1200) };
        assert_eq!(id.to_string(), "g3-s001200");
        for bad in [
            "",
            "g3",
            "g3-s1200",
            "g03-s001200",
            "g3-s+01200",
            "G3-s001200",
            "g3-s001200/",
            ".tmp-g3-s001200",
        ] {
            assert_eq!(bad.parse::<CheckpointId>(), Err(IdError(bad.to_owned())));
        }
    }

    #[test]
    fn a_later_generation_is_newer_than_a_later_step() {
        let [a, b, c] =
            ["g2-s000900", "g3-s000100", "g3-s1000000"].map(|t| t.parse::<CheckpointId>().unwrap());
        assert!(a < b && b < c);
    }
}
