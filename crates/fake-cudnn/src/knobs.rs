//! What the environment asks for, read once, and how often each function was called.

use dtrain_fake_common::knobs::{Calls, number, word};
use dtrain_fake_common::wrong::Wrong;
use std::sync::LazyLock;

/// What counts the convolutions of all kinds, and graphs.
pub(crate) const CONVOLUTIONS: &str = "convolutions";

pub(crate) struct Knobs {
    pub version: usize,
    /// Whether algorithms of the list are offered, and engines of graphs.
    pub has: Offered,
    pub fail_at: Option<u64>,
    pub wrong: Option<Wrong>,
}

/// What is offered at all.
#[derive(Clone, Copy)]
pub(crate) struct Offered {
    pub algorithms: bool,
    pub engines: bool,
}

/// How often each function was called.
pub(crate) static CALLS: Calls = Calls::new();

static KNOBS: LazyLock<Knobs> = LazyLock::new(|| Knobs {
    version: number("FAKE_CUDNN_VERSION").unwrap_or(91_900) as usize,
    has: match word("FAKE_CUDNN_NONE").as_deref() {
        None => Offered { algorithms: true, engines: true },
        Some("listed") => Offered { algorithms: false, engines: true },
        Some(_) => Offered { algorithms: false, engines: false },
    },
    fail_at: number("FAKE_CUDNN_FAIL_AT"),
    wrong: Wrong::asked_by("FAKE_CUDNN_WRONG"),
});

pub(crate) fn knobs() -> &'static Knobs {
    &KNOBS
}
