//! The primary context of one device, and the failure that sticks to it.

use super::error::{DriverError, sticks};
use super::library::{Driver, told};
use super::paper::{ALIGNED, Paper, Tally};
use cudarc::driver::sys;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// What is known of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its number among those that this process sees.
    pub ordinal: usize,
    /// What it is called.
    pub name: String,
    /// Compute capability: major and minor.
    pub capability: [u32; 2],
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// Its memory. *Units*: bytes.
    pub memory: u64,
}

impl About {
    /// What kernels have to be compiled for.
    #[must_use]
    pub fn architecture(&self) -> String {
        let [major, minor] = self.capability;
        // What Hopper alone has is behind an `a`; machine code is for one kind of GPU in any case.
        format!("sm_{major}{minor}{}", if self.capability == [9, 0] { "a" } else { "" })
    }
}

/// Holds launches back.
pub(super) trait Submit: Send + Sync + std::fmt::Debug {
    /// Puts on its stream what is held back. *Errors*: the driver's.
    fn submit(&self) -> Result<(), DriverError>;
}

/// The primary context of a device: shared with everybody in this process who uses the device.
#[derive(Debug)]
pub struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
    about: About,
    failure: OnceLock<DriverError>,
    /// In front of streams that hold launches back.
    holders: Mutex<Vec<Weak<dyn Submit>>>,
    /// In place of a driver.
    paper: Option<Paper>,
    /// What was asked for and not given back, and the most of it. *Units*: bytes.
    held: AtomicU64,
    peak: AtomicU64,
}

// SAFETY: a context may be used by any thread that makes it current, which every call here does first.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what it has to.
unsafe impl Sync for Context {}

impl Context {
    /// Takes hold of a device.
    ///
    /// *Errors*: there is none of this number, or somebody else has it. *Blocks* while the driver sets it up.
    pub fn open(driver: &Driver, ordinal: usize) -> Result<Arc<Self>, DriverError> {
        let about = Self::look(driver, ordinal)?;
        let (mut device, mut raw) = (0, ptr::null_mut());
        // SAFETY: the driver is initialised; places outlive the calls.
        told("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) })?;
        // SAFETY: as above.
        told("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) })?;
        Ok(Arc::new(Self {
            raw,
            device,
            about,
            failure: OnceLock::new(),
            holders: Mutex::default(),
            paper: None,
            held: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }))
    }

    /// A device on paper: what it is asked for is counted, and not done.
    #[must_use]
    pub fn on_paper(about: About) -> Arc<Self> {
        let (raw, paper) = (ptr::null_mut(), Some(Paper::default()));
        let [held, peak] = [0, 0].map(AtomicU64::new);
        let (failure, holders) = (OnceLock::new(), Mutex::default());
        Arc::new(Self { raw, device: 0, about, failure, holders, paper, held, peak })
    }

    /// What a device on paper was asked for since this was taken last; nothing of another one.
    #[must_use]
    pub fn take_tally(&self) -> Option<Tally> {
        self.submit_all();
        let (held, peak) = (self.held.load(Ordering::Relaxed), self.peak_memory());
        self.paper.as_ref().map(|paper| Tally { held, peak, ..paper.tally() })
    }

    /// Whether there is no driver: what is asked for is counted.
    #[must_use]
    pub fn is_on_paper(&self) -> bool {
        self.paper.is_some()
    }

    /// What is there in place of a driver.
    pub(super) fn paper(&self) -> Option<&Paper> {
        self.paper.as_ref()
    }

    /// What a device is, without taking hold of it.
    ///
    /// *Errors*: there is none of this number.
    pub fn look(driver: &Driver, ordinal: usize) -> Result<About, DriverError> {
        let count = driver.count()?;
        if ordinal >= count {
            return Err(DriverError::NoDevice { ordinal, count });
        }
        let mut device = 0;
        // SAFETY: the driver is initialised; the place outlives the call.
        told("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) })?;
        about(device, ordinal)
    }

    /// The most memory that was held at once in this context, since it was opened or [`Context::forget_peak`]; what others of its
    /// device hold is not in it, nor what the driver keeps for itself. *Units*: bytes.
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The peak begins with what is held now.
    pub fn forget_peak(&self) {
        self.peak.store(self.held.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// So many bytes were taken.
    pub(super) fn note_taken(&self, bytes: usize) {
        let bytes = (bytes as u64).next_multiple_of(ALIGNED);
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
    }

    /// So many bytes are free again.
    pub(super) fn note_given_back(&self, bytes: usize) {
        self.held.fetch_sub((bytes as u64).next_multiple_of(ALIGNED), Ordering::Relaxed);
    }

    /// What the device is.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// What has gone wrong with the device for good.
    #[must_use]
    pub fn failure(&self) -> Option<&DriverError> {
        self.failure.get()
    }

    /// *Errors*: the failure that stuck.
    pub fn check(&self) -> Result<(), DriverError> {
        self.failure().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Keeps a failure of work whose result nobody was waiting for. The first one stays.
    pub(crate) fn fail(&self, error: DriverError) {
        let _first_stays = self.failure.set(error);
    }

    /// Remembers who holds launches back, for as long as it lives.
    pub(super) fn submits(&self, holder: Weak<dyn Submit>) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.retain(|known| known.strong_count() > 0);
        holders.push(holder);
    }

    /// Lets the device begin with everything that was given to any stream: memory that it needs is about to be freed.
    pub(super) fn submit_all(&self) {
        let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for holder in holders.iter().filter_map(Weak::upgrade) {
            if let Err(error) = holder.submit() {
                self.fail(error);
            }
        }
    }

    /// Calls the driver with this context, unless it has failed.
    ///
    /// *Errors*: the failure that stuck, or what this call said; one that sticks is kept.
    pub(crate) fn call(
        &self,
        name: &'static str,
        function: impl FnOnce() -> sys::CUresult,
    ) -> Result<(), DriverError> {
        self.check()?;
        if let Some(paper) = &self.paper {
            paper.call(name);
            return Ok(());
        }
        self.bind()?;
        self.keep(told(name, function()))
    }

    /// As [`Context::call`], of something that may not be ready: whether it is.
    pub(crate) fn ask(
        &self,
        name: &'static str,
        function: impl FnOnce() -> sys::CUresult,
    ) -> Result<bool, DriverError> {
        self.check()?;
        if self.paper.is_some() {
            return Ok(true);
        }
        self.bind()?;
        match function() {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => self.keep(told(name, code)).map(|()| true),
        }
    }

    /// Gives something back, unless the device has failed: then the driver may never answer, and the process is near its
    /// end. What the driver says is kept for the next who asks.
    pub(crate) fn give_back(&self, name: &'static str, function: impl FnOnce() -> sys::CUresult) {
        if let Err(error) = self.call(name, function) {
            self.fail(error);
        }
    }

    fn keep(&self, result: Result<(), DriverError>) -> Result<(), DriverError> {
        if let Err(error @ DriverError::Call { code, .. }) = &result
            && sticks(*code)
        {
            self.fail(error.clone());
        }
        result
    }

    /// Makes it this thread's context, for libraries that look for one. *Errors*: the failure that stuck, or the driver's.
    pub fn enter(&self) -> Result<(), DriverError> {
        self.check()?;
        self.bind()
    }

    /// Makes it this thread's context, if it is not.
    fn bind(&self) -> Result<(), DriverError> {
        if self.paper.is_some() {
            return Ok(());
        }
        let mut now = ptr::null_mut();
        // SAFETY: the driver is initialised; the place outlives the call.
        told("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut now) })?;
        if now == self.raw {
            return Ok(());
        }
        // SAFETY: the context is held until this is dropped.
        told("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.failure.get().is_none() && self.paper.is_none() {
            // SAFETY: taken once, given back once. Nobody is left to be told what it says.
            let _gone = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }
}

fn about(device: sys::CUdevice, ordinal: usize) -> Result<About, DriverError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSORS,
    };
    let attribute = |which| -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: the driver is initialised, the device came from it, and the place outlives the call.
        told("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) })?;
        Ok(value.unsigned_abs())
    };
    let (mut name, mut memory) = ([0; 256], 0);
    // SAFETY: as above; the last byte of the name stays 0.
    told("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 255, device) })?;
    // SAFETY: as above.
    told("cuDeviceTotalMem_v2", unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) })?;
    // SAFETY: the name ends at its last byte at the latest.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(About {
        ordinal,
        name,
        capability: [attribute(MAJOR)?, attribute(MINOR)?],
        multiprocessors: attribute(MULTIPROCESSORS)?,
        memory: memory as u64,
    })
}
