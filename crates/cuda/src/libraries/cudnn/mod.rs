//! Convolutions by cuDNN, each by an algorithm that is written down; attention by its graphs is in `attention.rs`.
//!
//! As for products ([`super::cublaslt`]): somebody asks the library once for a shape ([`CudnnHandle::candidates`]), its answers are plain
//! data ([`PinnedConvolution`]), and it is asked again before one is used ([`CudnnHandle::accept`]). Only algorithms that multiply what
//! they are given count (by transforms they would round once more), and of those the ones that the library itself calls deterministic.
//!
//! Tensors lie as the engine has them, N C (D) H W, or are copies of halves in which channels lie last (`channels_last.rs`). What they hold,
//! and how many images the library is told of at once, is in [`super::convolution`].
//!
//! This module does not know kernels of this crate, nor who owns memory.

mod attention;
mod channels_last;
mod choice;
mod convolution;
mod descriptors;
mod engines;
mod graph;
mod handle;
mod listed;
mod math;

pub use attention::{AttentionPlaces, PinnedAttention, PlannedAttention};
pub use choice::{ConvolutionChoice, Manner, PinnedConvolution};
pub use convolution::PlannedConvolution;
pub use descriptors::Tensors;
pub use engines::EngineChoice;
pub use handle::{CANDIDATES, Cudnn, CudnnHandle, version};
pub use math::Math;
