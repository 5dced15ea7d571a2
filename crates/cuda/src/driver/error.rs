//! What can go wrong with a device, with the driver's own words in it.

use crate::driver::version::{DriverVersion, LEAST};
use crate::libraries::LibraryError;
use crate::nvrtc::NvrtcError;
use std::path::PathBuf;

/// Why the driver did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// There is no driver.
    #[error(
        "no CUDA driver could be opened{}\nhint: install NVIDIA's driver (nvidia-smi shows whether it works), in a container pass the GPUs through, or use devices=cpu",
        .what.as_ref().map_or(String::new(), |what| format!(": {what}"))
    )]
    NoDriver {
        /// What the loader said.
        what: Option<String>,
    },
    /// Another library of that name is in the way.
    #[error(
        "{} was to be used, but the process has another libcuda open or finds it first\nhint: take folders named stubs out of LD_LIBRARY_PATH",
        path.display()
    )]
    AnotherDriver {
        /// The one that was asked for.
        path: PathBuf,
    },
    /// The driver lacks a function.
    #[error("the CUDA driver has no function {function}\nhint: install a newer driver")]
    Lacks {
        /// Which.
        function: &'static str,
    },
    /// The driver is too old.
    #[error("the CUDA driver serves CUDA {has}, at least {LEAST} is needed\nhint: install a newer driver")]
    TooOld {
        /// The newest CUDA that it serves.
        has: DriverVersion,
    },
    /// There is no device of this number.
    #[error(
        "there is no GPU {ordinal}: {count} are visible\nhint: look at CUDA_VISIBLE_DEVICES and nvidia-smi"
    )]
    NoDevice {
        /// The number.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The device has not so much memory left.
    #[error(
        "the GPU has no {wanted} bytes left: {free} of {total} are free\nhint: a smaller micro_batch needs less; nvidia-smi shows who else uses this GPU"
    )]
    OutOfMemory {
        /// What was asked for. *Units*: bytes.
        wanted: u64,
        /// What is left. *Units*: bytes.
        free: u64,
        /// What the device has. *Units*: bytes.
        total: u64,
    },
    /// A library of NVIDIA's refused, or failed.
    #[error("{0}")]
    Library(String),
    /// A call failed, or work that was given before it.
    #[error("{call} failed: {text} ({name}, code {code}){}", hint(*code))]
    Call {
        /// The function.
        call: &'static str,
        /// The driver's code.
        code: u32,
        /// Its name for that.
        name: String,
        /// Its words for that.
        text: String,
    },
}

impl From<LibraryError> for DriverError {
    fn from(error: LibraryError) -> Self {
        Self::Library(error.to_string())
    }
}

/// What to do about a code.
fn hint(code: u32) -> &'static str {
    match code {
        2 => "\nhint: nvidia-smi shows who else uses this GPU's memory",
        46 => "\nhint: another process may have this GPU for itself: see nvidia-smi and its compute mode",
        100 => "\nhint: no GPU is visible: look at CUDA_VISIBLE_DEVICES and nvidia-smi",
        200 | 209 | 222 | 223 => {
            "\nhint: the kernels are not for this GPU or driver: install a newer driver, or remove dtrain's cache of kernels"
        }
        214 | 220 => "\nhint: the GPU is broken or overheats: see nvidia-smi -q and the kernel's log",
        700 | 714..=719 => {
            "\nhint: a bug of dtrain, or a broken GPU: compute-sanitizer and the kernel's log (Xid) show more"
        }
        702 => "\nhint: a display may be driven by this GPU, which ends long kernels",
        802..=804 => {
            "\nhint: driver and libcuda do not belong together: restart after an update, or fix the container"
        }
        _ => "",
    }
}

/// Whether nothing works on the device after this code, for this process.
pub(crate) fn sticks(code: u32) -> bool {
    matches!(code, 4 | 46 | 214 | 220 | 700 | 702 | 709 | 710 | 714..=719 | 999)
}

/// Why a device could not be taken up.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The kernels could not be compiled.
    #[error("{0}\nhint: NVRTC 12 or newer is needed (on PyPI: nvidia-cuda-nvrtc)")]
    Compiler(#[from] NvrtcError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_numbers_and_say_what_to_do() {
        let error = DriverError::OutOfMemory { wanted: 7, free: 5, total: 9 }.to_string();
        assert!(error.contains("no 7 bytes left: 5 of 9") && error.contains("\nhint: a smaller micro_batch"));
        let error = DriverError::TooOld { has: DriverVersion(11_040) }.to_string();
        assert!(error.contains("CUDA 11.4, at least 12.0") && error.contains("\nhint: "), "{error}");
        let call =
            |code| DriverError::Call { call: "f", code, name: "N".into(), text: "t".into() }.to_string();
        assert_eq!(call(1), "f failed: t (N, code 1)");
        assert!(call(46).contains("\nhint: another process"));
    }
}
