//! The name of a checkpoint: which generation wrote it, and after how many updates. What it consists of is not known here.

use crate::ids::{Generation, Step};
use crate::text::Misspelt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A checkpoint's name: `g3-s001200` in text and in JSON, two numbers in messages.
///
/// *Order*: by generation, then by step; the greatest is the newest of its run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId {
    /// The generation that wrote it.
    pub generation: Generation,
    /// The updates it holds.
    pub step: Step,
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}-s{:06}", self.generation.0, self.step.0)
    }
}

impl FromStr for CheckpointId {
    type Err = Misspelt;

    fn from_str(text: &str) -> Result<Self, Misspelt> {
        let parse = || {
            let (generation, step) = text.strip_prefix('g')?.split_once("-s")?;
            Some(Self { generation: Generation(generation.parse().ok()?), step: Step(step.parse().ok()?) })
        };
        // Only the spelling that we write is a name: two folders must never mean one checkpoint.
        let id = parse().filter(|id| id.to_string() == text);
        id.ok_or_else(|| Misspelt::new(text, "the name of a checkpoint, such as g3-s001200"))
    }
}

impl Serialize for CheckpointId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => (self.generation, self.step).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for CheckpointId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom);
        }
        let (generation, step) = Deserialize::deserialize(deserializer)?;
        Ok(Self { generation, step })
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
            assert!(bad.parse::<CheckpointId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_later_generation_is_newer_than_a_later_step() {
        let [a, b, c] =
            ["g2-s000900", "g3-s000100", "g3-s1000000"].map(|t| t.parse::<CheckpointId>().unwrap());
        assert!(a < b && b < c);
    }
}
