//! The driver's library: found, whole, new enough.

use super::error::DriverError;
use crate::driver::DriverVersion;
use crate::driver::version::LEAST;
use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::ptr;

/// Every function that this crate calls. The bindings panic on one that is not there.
const FUNCTIONS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphAddKernelNode_v2",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyAsync",
    "cuMemsetD32Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// The driver, open and initialised.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: DriverVersion,
}

impl Driver {
    /// Opens the driver: the library at `path`, or the one that the dynamic linker finds.
    ///
    /// A process has one driver: the first that was opened.
    ///
    /// *Errors*: there is none, another one, an old one, none with a device. *Blocks* while the driver starts.
    pub fn open(path: Option<&Path>) -> Result<Self, DriverError> {
        let wanted = path.map(first_function).transpose()?;
        // SAFETY: looks for the library by its names; the one opened above answers to one of them.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverError::NoDriver { what: None });
        }
        for function in FUNCTIONS {
            // SAFETY: the library is there, and its symbols are only looked up.
            let found = unsafe { sys::culib().get::<*const c_void>(function.as_bytes()) };
            let found = *found.map_err(|_| DriverError::Lacks { function })?;
            if let (&"cuInit", Some(wanted), Some(path)) = (function, wanted, path)
                && found as usize != wanted
            {
                return Err(DriverError::AnotherDriver { path: path.to_owned() });
            }
        }
        let mut version = 0;
        // SAFETY: the function is there, and the place outlives the call.
        told("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
        let version = DriverVersion(version.unsigned_abs());
        if version < LEAST {
            return Err(DriverError::TooOld { has: version });
        }
        // SAFETY: the function is there; it may be called again and again.
        told("cuInit", unsafe { sys::cuInit(0) })?;
        Ok(Self { version })
    }

    /// What it serves.
    #[must_use]
    pub fn version(&self) -> DriverVersion {
        self.version
    }

    /// How many devices there are.
    ///
    /// *Errors*: the driver's.
    pub fn count(&self) -> Result<usize, DriverError> {
        let mut count = 0;
        // SAFETY: the driver is initialised, and the place outlives the call.
        told("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }
}

/// Opens a library for good, and says where its `cuInit` is.
fn first_function(path: &Path) -> Result<usize, DriverError> {
    let no_driver = |error: libloading::Error| {
        let what = match error {
            // The linker's own words, without those around them.
            libloading::Error::DlOpen { source } => source.to_string(),
            other => other.to_string(),
        };
        DriverError::NoDriver { what: Some(what) }
    };
    // SAFETY: whoever names a driver trusts it; every program that uses CUDA runs its code.
    let library = unsafe { libloading::Library::new(path) }.map_err(no_driver)?;
    // SAFETY: the symbol is only looked up.
    let address = unsafe { library.get::<*const c_void>(b"cuInit\0") };
    let address = address.map_err(|_| DriverError::Lacks { function: "cuInit" })?.addr();
    // It stays open: a driver does not bear being unloaded.
    std::mem::forget(library);
    Ok(address)
}

/// A call's result as an error with the driver's words.
pub(crate) fn told(call: &'static str, code: sys::CUresult) -> Result<(), DriverError> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let words = |ask: unsafe fn(sys::CUresult, *mut *const c_char) -> sys::CUresult| {
        let mut text = ptr::null();
        // SAFETY: both functions that are asked for give a constant text, or none for a code that they do not know.
        unsafe {
            let _known = ask(code, &mut text);
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        }
    };
    let (name, text) = (words(sys::cuGetErrorName), words(sys::cuGetErrorString));
    Err(DriverError::Call { call, code: code as u32, name, text })
}
