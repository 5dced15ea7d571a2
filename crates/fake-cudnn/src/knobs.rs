//! What the environment asks for, read once, and how often each function was called.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// What counts the convolutions of all kinds.
pub(crate) const CONVOLUTIONS: &str = "convolutions";

/// How a convolution is wrong.
#[derive(Clone, Copy)]
pub(crate) enum Wrong {
    Visible,
    Bit,
}

pub(crate) struct Knobs {
    pub version: usize,
    pub none: bool,
    pub fail_at: Option<u64>,
    pub wrong: Option<Wrong>,
}

static CALLS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

static KNOBS: LazyLock<Knobs> = LazyLock::new(|| {
    let word = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty() && value != "0");
    let number = |name: &str| {
        word(name)
            .map(|value| value.parse::<u64>().unwrap_or_else(|_| panic!("{name} is no number: {value}")))
    };
    Knobs {
        version: number("FAKE_CUDNN_VERSION").unwrap_or(91_900) as usize,
        none: word("FAKE_CUDNN_NONE").is_some(),
        fail_at: number("FAKE_CUDNN_FAIL_AT"),
        wrong: word("FAKE_CUDNN_WRONG").map(|how| if how == "bit" { Wrong::Bit } else { Wrong::Visible }),
    }
});

pub(crate) fn knobs() -> &'static Knobs {
    &KNOBS
}

/// Counts a call: which one it is, from 1.
pub(crate) fn count(of: &str) -> u64 {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let calls = calls.entry(of.to_owned()).or_default();
    *calls += 1;
    *calls
}

pub(crate) fn calls(of: &str) -> u64 {
    *CALLS.lock().unwrap_or_else(PoisonError::into_inner).get(of).unwrap_or(&0)
}
