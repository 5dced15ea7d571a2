//! NVIDIA's libraries as a device may use them: products by cuBLASLt, convolutions and attention by cuDNN, each by an algorithm that is
//! written down.
//!
//! A library picks an algorithm by heuristics, which differ between versions and with what it sees of a machine. So the
//! choice is data here: it is made once ([`choosing`]), all ranks are told ([`pins`]), a run keeps it, and the library is asked
//! whether it agrees before it is used. Where a library is not there, the kernels of this crate are ([`crate::operations`]).
//!
//! cudarc's functions panic where a library is missing, so that is asked first. It looks for bare names: whoever wants one
//! file among several opens that before (`dtrain-locate` does). Results are enums of Rust there: a status that is newer than
//! the bindings is one that this crate cannot tell.
//!
//! This module does not know who chooses, nor how a choice travels.

pub mod attention;
pub mod choosing;
pub mod choosing_attention;
pub mod choosing_convolutions;
pub mod convolution;
pub mod cublaslt;
pub mod cudnn;
pub mod layouts;
mod near;
mod opened;
pub mod pins;
pub mod product;
mod timing;

pub use opened::{Libraries, Wanted};

use crate::operations::Precision;
use crate::values::Storage;
use serde::{Deserialize, Serialize};

/// Why a library could not do something.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// It is not there.
    #[error(
        "{library} is not here\nhint: `dtrain doctor` says where it is looked for; without it dtrain's own kernels are used"
    )]
    Missing {
        /// Its name.
        library: &'static str,
    },
    /// A call failed.
    #[error("{call} returned {status}\nhint: kernels=own does without the library")]
    Call {
        /// The function.
        call: &'static str,
        /// What it returned.
        status: String,
    },
    /// The library has no algorithm for a shape under the rules of this crate.
    #[error("{library} has no algorithm for {shape} that adds up in one order")]
    NoAlgorithm {
        /// Its name.
        library: &'static str,
        /// For what.
        shape: String,
    },
    /// A choice that was written down is not one for this machine.
    #[error(
        "the algorithm that was pinned for {shape} cannot be used: {why}\nhint: kernels=own does without the library; the bits will differ"
    )]
    Unfit {
        /// For what.
        shape: String,
        /// The reason.
        why: String,
    },
    /// A shape that the library cannot be told.
    #[error("{shape} cannot be told to {library}: {why}")]
    Shape {
        /// Its name.
        library: &'static str,
        /// What was asked for.
        shape: String,
        /// The reason.
        why: &'static str,
    },
}

/// What numbers an operation reads and how it multiplies them. Sums are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numbers {
    /// f32 throughout.
    F32,
    /// f32 in memory, cut to 10 bits of mantissa before they are multiplied. Only where it is asked for.
    Tf32,
    /// bf16 in, bf16 out.
    Bf16,
    /// bf16 in, f32 out.
    Bf16ToF32,
    /// f16 in, f16 out.
    F16,
    /// f16 in, f32 out.
    F16ToF32,
}

impl Numbers {
    /// What a library may multiply in this precision; nothing where its order would not be the CPU's.
    #[must_use]
    pub fn of(precision: Precision) -> Option<Self> {
        match precision {
            Precision::F32 => None,
            Precision::Tf32 => Some(Self::Tf32),
            Precision::Bf16 => Some(Self::Bf16),
            Precision::F16 => Some(Self::F16),
        }
    }

    /// The same operands, with a result in f32.
    #[must_use]
    pub fn summed(self) -> Self {
        match self {
            Self::Bf16 | Self::Bf16ToF32 => Self::Bf16ToF32,
            Self::F16 | Self::F16ToF32 => Self::F16ToF32,
            Self::F32 | Self::Tf32 => self,
        }
    }

    /// The precision of a device that has it multiplied.
    #[must_use]
    pub fn precision(self) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::Tf32 => Precision::Tf32,
            Self::Bf16 | Self::Bf16ToF32 => Precision::Bf16,
            Self::F16 | Self::F16ToF32 => Precision::F16,
        }
    }

    /// How operands lie.
    #[must_use]
    pub fn storage(self) -> Storage {
        self.precision().storage()
    }

    /// Whether the result is f32.
    #[must_use]
    pub fn into_floats(self) -> bool {
        !matches!(self, Self::Bf16 | Self::F16)
    }
}
