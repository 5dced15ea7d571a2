//! Streams and events: what is done one after another, and what waits for what.

use super::context::Context;
use super::error::DriverError;
use super::gpu::Gpu;
use super::repeats::{Giving, Repeats};
use super::times::{Clock, KernelTime};
use crate::driver::Event;
use crate::driver::context::Submit;
use crate::launch::{KernelLaunch, Queue};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Weak};

/// A queue of work on a device, which runs beside other streams.
///
/// One that gathers may keep launches for a while, to give them to the driver together: until anything else is asked of it, until
/// there are many, or until [`Stream::submit`].
#[derive(Debug)]
pub struct Stream {
    gpu: Arc<Gpu>,
    raw: sys::CUstream,
    repeats: Arc<Repeats>,
}

// SAFETY: the driver lets any thread use a stream, and locks what it has to.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream, which gives every launch to the driver at once. *Errors*: the driver's.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, DriverError> {
        Self::open(gpu, Giving::OneByOne)
    }

    /// A new stream that gathers launches, and gives those that come again and again as one. *Errors*: the driver's.
    pub fn gathering(gpu: &Arc<Gpu>) -> Result<Self, DriverError> {
        Self::open(gpu, Giving::Gathered)
    }

    /// A new stream that gives every launch to the driver at once, with a mark before and behind it: see
    /// [`Stream::take_times`]. *Errors*: the driver's.
    pub fn timing(gpu: &Arc<Gpu>) -> Result<Self, DriverError> {
        Self::open(gpu, Giving::Timed(Clock::new(gpu.context())?))
    }

    fn open(gpu: &Arc<Gpu>, giving: Giving) -> Result<Self, DriverError> {
        let gathers = matches!(giving, Giving::Gathered);
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the place outlives the call.
        gpu.context().call("cuStreamCreate", || unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        // SAFETY: the stream is destroyed behind `close`.
        let repeats = Arc::new(unsafe { Repeats::new(gpu, raw, giving) });
        if gathers {
            let holder: Weak<Repeats> = Arc::downgrade(&repeats);
            gpu.context().submits(holder);
        }
        Ok(Self { gpu: gpu.clone(), raw, repeats })
    }

    /// Its device.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// As other libraries take it, behind everything that was given. Whoever keeps it for longer launches nothing here meanwhile.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        if let Err(error) = self.submit() {
            self.context().fail(error);
        }
        self.raw.cast()
    }

    /// Puts what another library does on the stream, behind everything that was given: `give` is called with this context, and with the
    /// stream as other libraries take it. *Errors*: the driver's, and those of `give`.
    pub fn give_foreign(
        &self,
        name: &'static str,
        give: impl FnOnce(*mut c_void) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        self.submit()?;
        self.context().enter()?;
        self.repeats.around(name, || give(self.raw.cast()))
    }

    /// Lets the device begin with everything that was given. *Errors*: the driver's.
    pub fn submit(&self) -> Result<(), DriverError> {
        self.repeats.submit()
    }

    /// What kernels took since this was asked last, longest first; nothing of a stream that does not time them.
    ///
    /// *Blocks* until they are done. *Errors*: what the device failed in.
    pub fn take_times(&self) -> Result<Vec<KernelTime>, DriverError> {
        self.repeats.clock().map_or(Ok(Vec::new()), Clock::take)
    }

    fn context(&self) -> &Context {
        self.gpu.context()
    }

    /// Puts a copy on the stream, between memory of the device and pinned memory in any direction.
    ///
    /// # Safety
    /// Both are that many bytes of this device's or pinned memory and do not overlap; until the stream has passed this they
    /// live, and nobody else touches them.
    ///
    /// *Errors*: the driver's.
    pub unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), DriverError> {
        if bytes == 0 {
            return self.context().check();
        }
        self.submit()?;
        // SAFETY: the caller's promise; the stream is alive.
        self.context().call("cuMemcpyAsync", || unsafe { sys::cuMemcpyAsync(to, from, bytes, self.raw) })
    }

    /// Puts on the stream that words become `value`.
    ///
    /// # Safety
    /// They are words of this device's memory, aligned; until the stream has passed this they live, and nobody else touches
    /// them.
    ///
    /// *Errors*: the driver's.
    pub unsafe fn fill(&self, at: u64, words: usize, value: u32) -> Result<(), DriverError> {
        if words == 0 {
            return self.context().check();
        }
        self.submit()?;
        // SAFETY: the caller's promise; the stream is alive.
        self.context()
            .call("cuMemsetD32Async", || unsafe { sys::cuMemsetD32Async(at, value, words, self.raw) })
    }

    /// Puts a mark here. *Errors*: the driver's.
    pub fn record(&self, event: &Event) -> Result<(), DriverError> {
        self.submit()?;
        // SAFETY: both are alive, and of one context.
        self.context().call("cuEventRecord", || unsafe { sys::cuEventRecord(event.raw, self.raw) })
    }

    /// What is given from now on begins when everything before a mark is done, where the mark was put last.
    ///
    /// *Errors*: the driver's.
    pub fn wait_for(&self, event: &Event) -> Result<(), DriverError> {
        self.submit()?;
        // SAFETY: both are alive.
        self.context().call("cuStreamWaitEvent", || unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }

    /// *Blocks* until everything that was given is done. *Errors*: what the device failed in, now or before.
    pub fn finish(&self) -> Result<(), DriverError> {
        self.submit()?;
        // SAFETY: the stream is alive.
        self.context().call("cuStreamSynchronize", || unsafe { sys::cuStreamSynchronize(self.raw) })
    }
}

// SAFETY: a stream runs what it is given in that order.
unsafe impl Queue for Stream {
    /// After a failure nothing is launched any more; who waits is told.
    fn launch(&self, launch: &KernelLaunch) {
        if let Err(error) = self.repeats.launch(launch) {
            self.context().fail(error);
        }
    }

    fn multiprocessors(&self) -> usize {
        self.context().about().multiprocessors as usize
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.repeats.close();
        // SAFETY: created once, destroyed once. The driver does what was given before, without waiting here.
        self.context().give_back("cuStreamDestroy_v2", || unsafe { sys::cuStreamDestroy_v2(self.raw) });
    }
}
