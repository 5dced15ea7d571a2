//! Events: moments in the work of a stream.

use crate::driver::{Context, DriverError};
use cudarc::driver::sys;
use std::ptr;
use std::sync::Arc;

/// A mark that can be put into streams again and again. It keeps no time, unless it is a clock's.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    pub(super) raw: sys::CUevent,
}

// SAFETY: as for a stream.
unsafe impl Send for Event {}

// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A mark that counts as reached until it is put somewhere.
    ///
    /// *Errors*: the driver's.
    pub fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        Self::create(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// One that keeps the time at which it was reached. *Errors*: the driver's.
    pub(super) fn timed(context: &Arc<Context>) -> Result<Self, DriverError> {
        Self::create(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn create(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Self, DriverError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the place outlives the call.
        context.call("cuEventCreate", || unsafe { sys::cuEventCreate(&mut raw, flags as u32) })?;
        Ok(Self { context: context.clone(), raw })
    }

    /// As the driver has it, for as long as this lives.
    pub(super) fn raw(&self) -> sys::CUevent {
        self.raw
    }

    /// Whether everything before it is done, where it was put last.
    ///
    /// *Errors*: what the device failed in.
    pub fn has_happened(&self) -> Result<bool, DriverError> {
        // SAFETY: the event is alive.
        self.context.ask("cuEventQuery", || unsafe { sys::cuEventQuery(self.raw) })
    }

    /// *Blocks* until everything before it is done. *Errors*: what the device failed in.
    pub fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive.
        self.context.call("cuEventSynchronize", || unsafe { sys::cuEventSynchronize(self.raw) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; the driver lets streams that wait for it go on.
        self.context.give_back("cuEventDestroy_v2", || unsafe { sys::cuEventDestroy_v2(self.raw) });
    }
}
