//! Numbers by which a receiver tells old from new.

use serde::{Deserialize, Serialize};

/// A number that a node draws at random when it starts; two lives of one node differ in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub u64);

/// The place of a message in the order of its sender; 0 is "none yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Number(pub u64);

impl Number {
    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
