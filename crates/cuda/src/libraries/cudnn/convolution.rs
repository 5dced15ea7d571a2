//! Convolutions that can be run: what the library offers for one, and a choice that it is asked for once more.
//!
//! It does not know how an algorithm, or an engine, is asked.

use super::channels_last::ByEngine;
use super::choice::{ConvolutionChoice, PinnedConvolution};
use super::descriptors::Tensors;
use super::handle::{CudnnHandle, NAME};
use super::listed::Listed;
use crate::libraries::convolution::ConvolutionKey;
use crate::libraries::{LibraryError, Numbers};
use dtrain_engine::device::Write;
use std::fmt;

impl CudnnHandle {
    /// The algorithms for a convolution that keep the rules of this file, the one that the library thinks fastest first: at most
    /// [`super::CANDIDATES`].
    ///
    /// *Errors*: [`LibraryError::NoAlgorithm`], [`LibraryError::Call`].
    pub fn candidates(&self, key: &ConvolutionKey) -> Result<Vec<PlannedConvolution>, LibraryError> {
        let listed = self.algorithms_of(key)?.into_iter();
        // What is listed may be refused.
        let planned = |(by, workspace)| self.accept(&self.pin(key, by, workspace)).ok();
        unless_none(key, listed.filter_map(planned).collect())
    }

    /// Engines for the same over tensors in which channels lie last. The library's notes do not say of every engine that it gives the
    /// same bits each time. *Blocks* while the library prepares them.
    ///
    /// *Errors*: as [`CudnnHandle::candidates`].
    pub fn candidates_channels_last(
        &self,
        key: &ConvolutionKey,
    ) -> Result<Vec<PlannedConvolution>, LibraryError> {
        let planned = |(choice, workspace, engine)| PlannedConvolution {
            by: Planned::ByEngine(engine),
            pinned: self.pin(key, ConvolutionChoice::ChannelsLast(choice), workspace),
        };
        unless_none(key, self.engines_of(key)?.into_iter().map(planned).collect())
    }

    fn pin(&self, key: &ConvolutionKey, by: ConvolutionChoice, workspace: u64) -> PinnedConvolution {
        PinnedConvolution { key: *key, by, workspace, version: self.version }
    }

    /// A convolution by an algorithm that was pinned, here or elsewhere. *Blocks* while the library prepares an engine.
    ///
    /// *Errors*: [`LibraryError::Unfit`] if another version chose it, or if the library does not offer it.
    pub fn accept(&self, pinned: &PinnedConvolution) -> Result<PlannedConvolution, LibraryError> {
        let PinnedConvolution { key, by, workspace, version } = pinned;
        let unfit = |why| LibraryError::Unfit { shape: key.shown(), why };
        self.may_use(*version, *workspace, key.most_workspace()).map_err(unfit)?;
        let reads = Numbers::of(key.numbers.precision());
        let told = reads.and_then(|reads| ConvolutionKey::of(key.pass, reads, &key.shape()).ok());
        if told != Some(*key) {
            return Err(unfit("it is no convolution that can be told".to_owned()));
        }
        let by = match by {
            ConvolutionChoice::Listed { algorithm, math, manner } => {
                let told = (*algorithm, *math, *manner);
                Planned::Listed(Listed::accepted(self, key, told, *workspace)?.map_err(unfit)?)
            }
            ConvolutionChoice::ChannelsLast(choice) => {
                Planned::ByEngine(ByEngine::accepted(self, key, choice, *workspace)?.map_err(unfit)?)
            }
        };
        Ok(PlannedConvolution { by, pinned: pinned.clone() })
    }
}

fn unless_none(
    key: &ConvolutionKey,
    all: Vec<PlannedConvolution>,
) -> Result<Vec<PlannedConvolution>, LibraryError> {
    let none = || LibraryError::NoAlgorithm { library: NAME, shape: key.shown() };
    if all.is_empty() { Err(none()) } else { Ok(all) }
}

enum Planned {
    Listed(Listed),
    ByEngine(ByEngine),
}

/// A convolution that can be run, part by part.
pub struct PlannedConvolution {
    by: Planned,
    pinned: PinnedConvolution,
}

// SAFETY: descriptors are the library's own plain memory, and nobody changes them behind `accept`.
unsafe impl Send for PlannedConvolution {}

impl fmt::Debug for PlannedConvolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedConvolution").field("pinned", &self.pinned).finish_non_exhaustive()
    }
}

impl PlannedConvolution {
    /// How it was chosen.
    #[must_use]
    pub fn pinned(&self) -> &PinnedConvolution {
        &self.pinned
    }

    /// Puts one part on the handle's stream. A gradient of weights may be added to that of the parts before; an engine sets it.
    ///
    /// *Errors*: [`LibraryError::Call`].
    ///
    /// # Safety
    /// The tensors of the key lie at these addresses, in the form and the numbers that the library is told of, until the stream is through;
    /// nothing else uses what is written and the workspace until then. The handle is of the context that is current.
    pub unsafe fn run(&self, handle: &CudnnHandle, at: Tensors, write: Write) -> Result<(), LibraryError> {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.by {
                Planned::Listed(listed) => listed.run(handle, at, write),
                Planned::ByEngine(engine) => engine.run(handle, at),
            }
        }
    }
}
