//! What cuDNN does on a device: which operations these are is data ([`Pins`](crate::libraries::pins::Pins)), and everything else is done by
//! this crate's kernels.
//!
//! A device may also note what it would ask the library for, so that somebody can choose before a run begins. It does not know how a choice
//! is made, nor what the operations read and write.

use crate::libraries::attention::AttentionKey;
use crate::libraries::convolution::ConvolutionKey;
use crate::libraries::cudnn::{CudnnHandle, PlannedAttention, PlannedConvolution};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What has fewer operations is not worth a call of a library, which takes it out of a graph: a few microseconds.
const LEAST: u64 = 1 << 28;

/// What the library is asked for, of one kind of operation.
#[derive(Debug)]
pub(super) enum Asked<K, P> {
    /// Nothing: shapes that it might be asked for are noted, if they have so many operations.
    Noted(BTreeSet<K>, u64),
    /// Nothing, ever.
    Own,
    /// What these plans are for.
    Planned(CudnnHandle, BTreeMap<K, P>),
}

/// What an operation takes.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    /// Multiplications and additions.
    pub operations: u64,
    /// Memory beside its operands that the library has at most. *Units*: bytes.
    pub room: u64,
}

/// The operations of one kind that are not a device's own kernels'.
#[derive(Debug)]
pub(super) struct ByCudnn<K, P> {
    asked: Mutex<Asked<K, P>>,
}

/// The convolutions of a device that are not its own kernels'.
pub(super) type Convolutions = ByCudnn<ConvolutionKey, PlannedConvolution>;
/// The attention of a device that is not its own kernels'.
pub(super) type Attentions = ByCudnn<AttentionKey, PlannedAttention>;

impl<K: Ord + Copy, P> Default for ByCudnn<K, P> {
    fn default() -> Self {
        Self::noting(LEAST)
    }
}

impl<K: Ord + Copy, P> ByCudnn<K, P> {
    /// None, and those of so many operations are noted.
    pub fn noting(least: u64) -> Self {
        Self { asked: Mutex::new(Asked::Noted(BTreeSet::new(), least)) }
    }

    /// Those of these plans, by this library.
    pub fn planned(handle: CudnnHandle, planned: BTreeMap<K, P>) -> Self {
        Self { asked: Mutex::new(Asked::Planned(handle, planned)) }
    }

    /// None at all.
    pub fn own() -> Self {
        Self { asked: Mutex::new(Asked::Own) }
    }

    /// Those that were noted.
    pub fn noted(&self) -> Vec<K> {
        match &*self.asked() {
            Asked::Noted(keys, _) => keys.iter().copied().collect(),
            Asked::Own | Asked::Planned(..) => Vec::new(),
        }
    }

    pub fn asked(&self) -> MutexGuard<'_, Asked<K, P>> {
        // Whoever panicked over a failed device leaves nothing half done here.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
