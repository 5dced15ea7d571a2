//! Handles: numbers that stand for what was handed out. What was given back, or never was, is found out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What is handed out of one kind.
pub(crate) struct Handles<T> {
    /// The first handle: another for each kind, so that kinds are not mixed up.
    first: usize,
    table: Mutex<(usize, BTreeMap<usize, Arc<T>>)>,
}

impl<T> Handles<T> {
    pub const fn new(first: usize) -> Self {
        Self { first, table: Mutex::new((0, BTreeMap::new())) }
    }

    pub fn add(&self, it: Arc<T>) -> usize {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.0 += 1;
        let handle = self.first + table.0;
        table.1.insert(handle, it);
        handle
    }

    pub fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).1.get(&handle).cloned()
    }

    pub fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&handle)
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).1.values().cloned().collect()
    }
}
