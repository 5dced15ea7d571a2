//! Products that a library does: which these are is data ([`ProductPins`]), and everything else is done by this crate's kernels.
//!
//! A device may also note which products it would ask a library for, so that somebody can choose before a run begins. It does not
//! know how a choice is made.

use super::placed::ALIGNED;
use crate::libraries::cublaslt::{CublasLt, PinnedAlgorithm, PlannedProduct};
use crate::libraries::pins::ProductPins;
use crate::libraries::product::{Finish, ProductKey};
use crate::libraries::{LibraryError, Numbers};
use crate::values::{Storage, Values};
use dtrain_engine::device::Product;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A product with fewer operations is not worth a call of a library, which takes it out of a graph: a few microseconds.
const LEAST: u64 = 1 << 30;

/// What a library is asked for.
#[derive(Debug)]
pub(super) enum AskedProducts {
    /// Nothing: shapes that it might be asked for are noted, if they have so many operations.
    Noted(BTreeSet<ProductKey>, u64),
    /// What these plans are for.
    Planned(BTreeMap<ProductKey, PlannedProduct>),
}

/// The products of a device that are not its own kernels'.
#[derive(Debug)]
pub(super) struct Products {
    asked: Mutex<AskedProducts>,
}

/// What is added to a product, and its activation.
#[derive(Clone, Copy, Default)]
pub(super) struct Finished<'a> {
    pub finish: Finish,
    pub bias: Option<Values<'a>>,
    pub plus: Option<Values<'a>>,
    /// Where the sum is kept beside what its activation makes of it.
    pub kept: Option<Values<'a>>,
}

impl Default for Products {
    fn default() -> Self {
        Self::noting(LEAST)
    }
}

impl Products {
    /// None, and those of so many operations are noted.
    pub fn noting(least: u64) -> Self {
        Self { asked: Mutex::new(AskedProducts::Noted(BTreeSet::new(), least)) }
    }

    /// Those that were pinned, by this library.
    ///
    /// *Errors*: an algorithm that the library does not take.
    pub fn pinned(pins: &ProductPins, library: &Arc<CublasLt>) -> Result<Self, LibraryError> {
        let plan = |pin: &PinnedAlgorithm| Ok((pin.key, library.accept(pin)?));
        let planned: Result<_, LibraryError> = pins.algorithms().map(plan).collect();
        Ok(Self { asked: Mutex::new(AskedProducts::Planned(planned?)) })
    }

    /// None at all.
    pub fn own() -> Self {
        Self { asked: Mutex::new(AskedProducts::Planned(BTreeMap::new())) }
    }

    pub fn asked(&self) -> MutexGuard<'_, AskedProducts> {
        // Whoever panicked over a failed device leaves nothing half done here.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shapes that were noted.
    pub fn noted(&self) -> Vec<ProductKey> {
        match &*self.asked() {
            AskedProducts::Noted(keys, _) => keys.iter().copied().collect(),
            AskedProducts::Planned(_) => Vec::new(),
        }
    }
}

/// The key of a product that reads such numbers, if a library may be asked for it.
pub(super) fn key_of(reads: Numbers, shape: &Product, result: Storage, finish: Finish) -> Option<ProductKey> {
    let numbers = if result == Storage::F32 { reads.summed() } else { reads };
    let key = ProductKey::of(shape, numbers, finish, ALIGNED as u32).ok()?;
    let layouts = key.layouts;
    let is_placed = |pitch: u64, storage: Storage| (pitch * storage.bytes() as u64).is_multiple_of(ALIGNED);
    let read = [layouts.left.pitch, layouts.right.pitch];
    let placed = read.iter().all(|pitch| is_placed(*pitch, reads.storage()));
    (placed && is_placed(layouts.out.pitch, result)).then_some(key)
}
