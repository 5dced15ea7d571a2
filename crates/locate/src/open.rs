//! Opens a library and asks it for its version. This is the only place of the crate that is `unsafe`: a library runs code
//! of its own when it is opened, and its functions are what its maker says they are.

use crate::elf::{self, Kind};
use crate::library::Asks;
use crate::{Library, Version};
use libloading::os::unix::{Library as Handle, RTLD_LAZY, RTLD_LOCAL};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::Path;

/// Why a file is not the library that is looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Refusal {
    /// The system does not let this process read it.
    #[error("cannot be read: {error}")]
    Unreadable {
        /// What the system says.
        error: String,
    },
    /// It is no shared object.
    #[error("is no shared library")]
    NoLibrary,
    /// It was made for another processor.
    #[error("is for {machine}")]
    OtherMachine {
        /// Which.
        machine: String,
    },
    /// It was cut off, as by a download that broke.
    #[error("is torn: {has} bytes of at least {needs}")]
    Torn {
        /// Its length. *Units*: bytes.
        has: u64,
        /// What its own head says. *Units*: bytes.
        needs: u64,
    },
    /// It lies among the stubs of a toolkit, against which programs are linked and which do nothing.
    #[error("is a stub to link against, not the library")]
    Stub,
    /// The dynamic linker refuses it.
    #[error("cannot be opened: {error}")]
    DoesNotOpen {
        /// What the linker says.
        error: String,
    },
    /// What it makes is for newer drivers.
    #[error("is {version}, newer than the driver, which serves CUDA {newest}")]
    TooNew {
        /// What it says of itself.
        version: String,
        /// The newest major version of CUDA that the driver serves.
        newest: u32,
    },
    /// It lacks the function that tells its version.
    #[error("has no function {function}")]
    NoVersion {
        /// Which.
        function: String,
    },
    /// That function failed.
    #[error("{function} returns {code}{}", said(.says))]
    Failed {
        /// Which.
        function: String,
        /// What it returned.
        code: i32,
        /// What this number means, where the library tells.
        says: Option<String>,
    },
    /// It works, but lacks what newer ones have.
    #[error("is version {version}, at least {least} is needed")]
    TooOld {
        /// Its version.
        version: Version,
        /// What is needed.
        least: Version,
    },
    /// It ended the process that asked.
    #[error("ends the process that asks it: {how}")]
    Deadly {
        /// How: a signal, or no answer in time.
        how: String,
    },
}

fn said(says: &Option<String>) -> String {
    says.as_ref().map_or(String::new(), |says| format!(" ({says})"))
}

/// Opens a file and asks its version. If that is at least `least` the library stays open as long as the process lives, so
/// that whoever asks for its bare name is given this one; else it is closed, so that the next one may have the name.
///
/// *Errors*: why it does not do. *Blocks* while the library starts.
pub(crate) fn open(library: Library, path: &Path, least: Option<&Version>) -> Result<Version, Refusal> {
    if path.parent().is_some_and(|folder| folder.ends_with("stubs")) {
        return Err(Refusal::Stub);
    }
    match elf::kind(path) {
        Err(error) => return Err(Refusal::Unreadable { error: error.to_string() }),
        Ok(Kind::Other) => return Err(Refusal::NoLibrary),
        Ok(Kind::Foreign(machine)) => return Err(Refusal::OtherMachine { machine: machine.to_owned() }),
        Ok(Kind::Torn { has, needs }) => return Err(Refusal::Torn { has, needs }),
        Ok(Kind::Ours) => {}
    }
    // SAFETY: the start-up code of the library runs. The user, the system or a package manager put this file where
    // NVIDIA's library of this name belongs, and any CUDA program would run the same code.
    let handle = unsafe { Handle::open(Some(path), RTLD_LAZY | RTLD_LOCAL) };
    let handle = handle.map_err(|error| Refusal::DoesNotOpen { error: reason(&error) })?;
    let version = ask(&handle, library.asks())?;
    match least {
        Some(least) if version < *least => Err(Refusal::TooOld { version, least: least.clone() }),
        _ => {
            // On purpose: NVIDIA's libraries start threads and register handlers, and do not bear being unloaded.
            let _stays = handle.into_raw();
            Ok(version)
        }
    }
}

/// The linker's own words, without those around them.
fn reason(error: &libloading::Error) -> String {
    match error {
        libloading::Error::DlOpen { source } => source.to_string(),
        other => other.to_string(),
    }
}

type OneOut = unsafe extern "C" fn(*mut c_int) -> c_int;
type TwoOut = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type Size = unsafe extern "C" fn() -> usize;
type NoArgument = unsafe extern "C" fn() -> c_int;
type TextOut = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;

/// The address of a function, as a function of type `F`.
///
/// # Safety
/// `F` is the type of the library's function of this name, and the address is not used after the library is closed.
unsafe fn function<F: Copy>(handle: &Handle, name: &'static str) -> Result<F, Refusal> {
    // SAFETY: the caller answers for the type. libloading refuses an `F` that is not of a pointer's size.
    let symbol = unsafe { handle.get::<F>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|_| Refusal::NoVersion { function: name.to_owned() })
}

fn succeeded(function: &'static str, code: c_int) -> Result<(), Refusal> {
    if code == 0 { Ok(()) } else { Err(Refusal::Failed { function: function.to_owned(), code, says: None }) }
}

fn ask(handle: &Handle, asks: Asks) -> Result<Version, Refusal> {
    let positive = |number: c_int| u32::try_from(number).unwrap_or(0);
    match asks {
        Asks::Thousands(name) => Ok(Version::from_thousands(positive(one(handle, name)?))),
        Asks::Hundreds { function: name, first } => {
            Ok(Version::from_hundreds(positive(one(handle, name)?).into(), first))
        }
        Asks::Returned { function: name, first } => {
            // SAFETY: `size_t cudnnGetVersion(void)` and `size_t cublasLtGetVersion(void)` in their headers.
            let version = unsafe { function::<Size>(handle, name)?() };
            Ok(Version::from_hundreds(version as u64, first))
        }
        Asks::Pair(name) => {
            let (mut major, mut minor) = (0, 0);
            // SAFETY: `nvrtcResult nvrtcVersion(int *major, int *minor)` in nvrtc.h; both places outlive the call.
            succeeded(name, unsafe { function::<TwoOut>(handle, name)?(&mut major, &mut minor) })?;
            Ok(Version::new(&[positive(major), positive(minor)]))
        }
        Asks::Nvml => nvml(handle),
    }
}

/// Asks a function that gives one number.
fn one(handle: &Handle, name: &'static str) -> Result<c_int, Refusal> {
    let mut version = 0;
    // SAFETY: `CUresult cuDriverGetVersion(int *)` in cuda.h and `ncclResult_t ncclGetVersion(int *)` in nccl.h; neither
    // needs the library to be initialised, and the place outlives the call.
    succeeded(name, unsafe { function::<OneOut>(handle, name)?(&mut version) })?;
    Ok(version)
}

/// NVML tells the driver's version only between its start and its end.
fn nvml(handle: &Handle) -> Result<Version, Refusal> {
    let explained = |refusal| match refusal {
        Refusal::Failed { function, code, .. } => {
            Refusal::Failed { function, code, says: nvml_error(handle, code) }
        }
        other => other,
    };
    let mut text: [c_char; 96] = [0; 96];
    // SAFETY: `nvmlInit_v2(void)`, `nvmlSystemGetDriverVersion(char *, unsigned int)` and `nvmlShutdown(void)` in nvml.h;
    // the buffer has the length that is given, and one byte more that stays 0.
    let told = unsafe {
        let [start, end] = ["nvmlInit_v2", "nvmlShutdown"];
        let (init, shutdown) = (function::<NoArgument>(handle, start)?, function::<NoArgument>(handle, end)?);
        let version = function::<TextOut>(handle, "nvmlSystemGetDriverVersion")?;
        succeeded(start, init()).map_err(explained)?;
        let told = succeeded("nvmlSystemGetDriverVersion", version(text.as_mut_ptr(), 95));
        shutdown();
        told
    };
    told.map_err(explained)?;
    // SAFETY: the buffer ends with a byte that nobody wrote.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    let failed = || Refusal::NoVersion {
        function: format!("nvmlSystemGetDriverVersion that gives a version, but {text:?}"),
    };
    Version::parse(&text).ok_or_else(failed)
}

/// NVML's own words for a code.
fn nvml_error(handle: &Handle, code: c_int) -> Option<String> {
    // SAFETY: `const char *nvmlErrorString(nvmlReturn_t)` in nvml.h works without a start and gives a constant text.
    unsafe {
        let text = function::<ErrorText>(handle, "nvmlErrorString").ok()?(code);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}
