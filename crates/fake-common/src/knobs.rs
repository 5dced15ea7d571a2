//! What the environment asks for, and how often each function was called.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What a variable says, if it asks for something: empty and `0` do not.
pub fn word(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty() && value != "0")
}

/// The number of a variable, if it asks for something.
///
/// *Panics* if it is no number.
pub fn number(name: &str) -> Option<u64> {
    word(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value}")))
}

/// How often each function was called.
#[derive(Default)]
pub struct Calls(Mutex<BTreeMap<String, u64>>);

impl Calls {
    /// None yet.
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Counts a call: which one it is, from 1.
    pub fn count(&self, of: &str) -> u64 {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = match calls.get_mut(of) {
            Some(calls) => calls,
            None => calls.entry(of.to_owned()).or_default(),
        };
        *calls += 1;
        *calls
    }

    /// How many there were.
    pub fn of(&self, function: &str) -> u64 {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).get(function).unwrap_or(&0)
    }
}
