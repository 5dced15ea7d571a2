//! What the environment asks for, read once, and how often each function was called.

use crate::codes::{Code, SUCCESS};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// One failure that was asked for.
struct Failure {
    /// Of which function, or `kernel`, or which kernel.
    of: String,
    /// At which call, from 1.
    at: u64,
    code: Code,
}

pub(crate) struct Knobs {
    pub version: i32,
    pub devices: usize,
    pub capability: [i32; 2],
    pub memory: usize,
    pub order: u32,
    /// The kernel that computes wrong.
    pub wrong: Option<String>,
    failures: Vec<Failure>,
}

/// Whether streams that are created now are lazy.
static LAZY: AtomicBool = AtomicBool::new(false);
static CALLS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

static KNOBS: LazyLock<Knobs> = LazyLock::new(|| {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
    if number("FAKE_CUDA_LAZY").unwrap_or(0) > 0 {
        LAZY.store(true, Ordering::Relaxed);
    }
    let capability = number("FAKE_CUDA_CAPABILITY").unwrap_or(90) as i32;
    let asked = std::env::var("FAKE_CUDA_FAIL").unwrap_or_default();
    let failures = asked.split(',').filter(|part| !part.is_empty()).map(|part| {
        let mut words = part.split(':');
        let mut word = || words.next().unwrap_or_default();
        let (of, at, code) = (word().to_owned(), word().parse(), word().parse());
        let wrong = "FAKE_CUDA_FAIL is FUNCTION:CALL:CODE";
        Failure { of, at: at.expect(wrong), code: code.expect(wrong) }
    });
    Knobs {
        version: number("FAKE_CUDA_VERSION").unwrap_or(13_000) as i32,
        devices: number("FAKE_CUDA_DEVICES").unwrap_or(2),
        capability: [capability / 10, capability % 10],
        memory: number("FAKE_CUDA_MEMORY").unwrap_or(1 << 30),
        order: number("FAKE_CUDA_ORDER").unwrap_or(0) as u32,
        wrong: std::env::var("FAKE_CUDA_WRONG").ok(),
        failures: failures.collect(),
    }
});

pub(crate) fn knobs() -> &'static Knobs {
    &KNOBS
}

/// Counts a call. What it has to return, if it was asked to fail.
pub(crate) fn count(of: &str) -> Code {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let calls = match calls.get_mut(of) {
        Some(calls) => calls,
        None => calls.entry(of.to_owned()).or_default(),
    };
    *calls += 1;
    let asked = knobs().failures.iter().find(|failure| failure.of == of && failure.at == *calls);
    asked.map_or(SUCCESS, |failure| failure.code)
}

pub(crate) fn calls(of: &str) -> u64 {
    *CALLS.lock().unwrap_or_else(PoisonError::into_inner).get(of).unwrap_or(&0)
}

pub(crate) fn lazy() -> bool {
    let _read = knobs();
    LAZY.load(Ordering::Relaxed)
}

pub(crate) fn set_lazy() {
    let _read = knobs();
    LAZY.store(true, Ordering::Relaxed);
}

pub(crate) fn set_eager() {
    let _read = knobs();
    LAZY.store(false, Ordering::Relaxed);
}
