//! What the environment asks for, read once, and how often each function was called.

use dtrain_fake_common::knobs::{Calls, number, word};
use dtrain_fake_common::wrong::Wrong;
use std::sync::LazyLock;

pub(crate) struct Knobs {
    pub version: usize,
    pub none: bool,
    pub fail_at: Option<u64>,
    pub wrong: Option<Wrong>,
    pub unsteady: bool,
}

/// How often each function was called.
pub(crate) static CALLS: Calls = Calls::new();

static KNOBS: LazyLock<Knobs> = LazyLock::new(|| Knobs {
    version: number("FAKE_CUBLASLT_VERSION").unwrap_or(130_100) as usize,
    none: word("FAKE_CUBLASLT_NONE").is_some(),
    fail_at: number("FAKE_CUBLASLT_FAIL_AT"),
    wrong: Wrong::asked_by("FAKE_CUBLASLT_WRONG"),
    unsteady: word("FAKE_CUBLASLT_UNSTEADY").is_some(),
});

pub(crate) fn knobs() -> &'static Knobs {
    &KNOBS
}
