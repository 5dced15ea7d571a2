//! What a test of GPUs, or of NCCL between them, came to.
//!
//! It does not know the test, nor what follows from it.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a test came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestVerdict {
    /// All of it is right.
    Passed,
    /// This is not.
    Failed(String),
    /// It could not be judged, for this reason.
    Unknown(String),
}

/// A verdict, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// The verdict.
    pub verdict: TestVerdict,
    /// Where it is kept; the reason, where it could not be.
    pub kept: Result<PathBuf, String>,
}
