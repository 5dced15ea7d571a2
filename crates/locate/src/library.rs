//! The table of libraries: how their files are called, and how each is asked for its version.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A library of NVIDIA's, or AMD's in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Library {
    /// The driver's side of CUDA. Its version is the newest CUDA that the driver serves.
    Driver,
    /// Readings of GPUs. Its version is the driver's own (`580.65.06`).
    Nvml,
    /// The compiler for kernels at run time.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Convolutions and the like.
    Cudnn,
    /// Collectives between GPUs: NCCL, or RCCL with the same functions.
    Nccl,
}

/// How a library tells its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    /// `int f(int *version)`, 0 is success, in thousands.
    Thousands(&'static str),
    /// `int f(int *version)`, 0 is success, in hundreds.
    Hundreds {
        /// The function.
        function: &'static str,
        /// The first number that is spelled with five digits below the major version.
        first: u64,
    },
    /// `size_t f(void)`, in hundreds.
    Returned {
        /// The function.
        function: &'static str,
        /// The first number that is spelled with five digits below the major version.
        first: u64,
    },
    /// `int f(int *major, int *minor)`, 0 is success.
    Pair(&'static str),
    /// NVML: start, ask for a text, shut down.
    Nvml,
}

impl Library {
    /// All of them, those that others need first.
    pub const ALL: [Self; 6] =
        [Self::Driver, Self::Nvml, Self::Nvrtc, Self::CublasLt, Self::Cudnn, Self::Nccl];

    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "CUDA driver",
            Self::Nvml => "NVML",
            Self::Nvrtc => "NVRTC",
            Self::CublasLt => "cuBLASLt",
            Self::Cudnn => "cuDNN",
            Self::Nccl => "NCCL",
        }
    }

    /// Its name for programs, as in JSON.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Nvml => "nvml",
            Self::Nvrtc => "nvrtc",
            Self::CublasLt => "cublas_lt",
            Self::Cudnn => "cudnn",
            Self::Nccl => "nccl",
        }
    }

    /// The library of this key.
    #[must_use]
    pub fn from_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|library| library.key() == key)
    }

    /// What its files are called before `.so`, the preferred one first.
    #[must_use]
    pub fn stems(self) -> &'static [&'static str] {
        match self {
            Self::Driver => &["libcuda"],
            Self::Nvml => &["libnvidia-ml"],
            Self::Nvrtc => &["libnvrtc"],
            Self::CublasLt => &["libcublasLt"],
            Self::Cudnn => &["libcudnn"],
            Self::Nccl => &["libnccl", "librccl"],
        }
    }

    pub(crate) fn asks(self) -> Asks {
        match self {
            Self::Driver => Asks::Thousands("cuDriverGetVersion"),
            Self::Nvml => Asks::Nvml,
            Self::Nvrtc => Asks::Pair("nvrtcVersion"),
            Self::CublasLt => Asks::Returned { function: "cublasLtGetVersion", first: 100_000 },
            Self::Cudnn => Asks::Returned { function: "cudnnGetVersion", first: 90_000 },
            Self::Nccl => Asks::Hundreds { function: "ncclGetVersion", first: 10_000 },
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
