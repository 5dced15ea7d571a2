//! Convolutions that cuDNN does: which these are is data ([`ConvolutionPins`]), and everything else is done by this crate's kernels.
//!
//! What the library does not do is done here around it: the bias in f32 and the activation, where no algorithm has them, and copies in f32
//! for the gradient of weights. A device may also note which convolutions it would ask a library for, so that somebody can choose before
//! a run begins. It does not know how a choice is made.

use crate::libraries::convolution::ConvolutionKey;
use crate::libraries::cudnn::{CudnnHandle, PlannedConvolution};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A convolution with fewer operations is not worth a call of a library, which takes it out of a graph: a few microseconds.
const LEAST: u64 = 1 << 28;

/// What a library is asked for.
#[derive(Debug)]
pub(super) enum AskedConvolutions {
    /// Nothing: shapes that it might be asked for are noted, if they have so many operations.
    Noted(BTreeSet<ConvolutionKey>, u64),
    /// Nothing, ever.
    Own,
    /// What these plans are for.
    Planned(CudnnHandle, BTreeMap<ConvolutionKey, PlannedConvolution>),
}

/// The convolutions of a device that are not its own kernels'.
#[derive(Debug)]
pub(super) struct Convolutions {
    asked: Mutex<AskedConvolutions>,
}

/// Addresses of a whole batch: of the input, of the weights, of the output, or of what their gradients become.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionPlaces {
    /// `x` or `dx`, as it is multiplied: halves, or f32.
    pub x: u64,
    /// `w` as it is multiplied, or `dw` in f32.
    pub w: u64,
    /// `y` or `dy`, as it is multiplied.
    pub y: u64,
    /// The bias as it is multiplied, and in f32; 0 where there is none.
    pub bias: [u64; 2],
}

impl Default for Convolutions {
    fn default() -> Self {
        Self::noting(LEAST)
    }
}

impl Convolutions {
    /// None, and those of so many operations are noted.
    pub fn noting(least: u64) -> Self {
        Self { asked: Mutex::new(AskedConvolutions::Noted(BTreeSet::new(), least)) }
    }

    /// Those of these plans, by this library.
    pub fn planned(handle: CudnnHandle, planned: BTreeMap<ConvolutionKey, PlannedConvolution>) -> Self {
        Self { asked: Mutex::new(AskedConvolutions::Planned(handle, planned)) }
    }

    /// None at all.
    pub fn own() -> Self {
        Self { asked: Mutex::new(AskedConvolutions::Own) }
    }

    pub fn asked(&self) -> MutexGuard<'_, AskedConvolutions> {
        // Whoever panicked over a failed device leaves nothing half done here.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
