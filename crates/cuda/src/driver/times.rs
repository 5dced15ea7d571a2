//! What each kernel takes: a mark before and behind every launch, for looking at a step.
//!
//! The marks are on the stream, so what is timed is the device's. Where the host is too slow to keep it busy, a kernel's time has
//! the wait for its launch in it: kernels of a few microseconds seem longer than they are. Copies and fills are not timed.
//!
//! It does not know what a step is.

use super::context::Context;
use super::error::DriverError;
use super::event::Event;
use super::library::told;
use cudarc::driver::sys;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many launches are timed before their marks are looked at.
const MOST_PENDING: usize = 4096;

/// What the launches of one kernel took.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// Its name.
    pub kernel: &'static str,
    /// How often it ran.
    pub launches: u64,
    /// How long, all of them together.
    pub time: Duration,
    /// Of the time of all kernels, from 0 to 1.
    pub share: f64,
}

/// `cuEventElapsedTime`, which every driver has; the bindings of CUDA 13 know its successor alone, which older ones lack.
type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// The times of what is put on one stream.
pub(super) struct Clock {
    context: Arc<Context>,
    elapsed: Elapsed,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Used again and again; those of `pending` are the first ones.
    marks: Vec<[Event; 2]>,
    /// What was launched since the marks were looked at last.
    pending: Vec<&'static str>,
    /// Launches and seconds.
    known: BTreeMap<&'static str, (u64, f64)>,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("pending", &self.state().pending.len()).finish_non_exhaustive()
    }
}

impl Clock {
    /// *Errors*: the driver cannot say how much time is between two marks.
    pub fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        // SAFETY: the driver is open; the type is that of cuda.h.
        let found = unsafe { sys::culib().get::<Elapsed>(b"cuEventElapsedTime\0") };
        let elapsed = *found.map_err(|_| DriverError::Lacks { function: "cuEventElapsedTime" })?;
        Ok(Self { context: context.clone(), elapsed, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a kernel on a stream, always the same one, by `launch`. *Blocks* now and then for what was launched before.
    ///
    /// *Errors*: the driver's.
    ///
    /// # Safety
    /// The stream is alive.
    pub unsafe fn around(
        &self,
        kernel: &'static str,
        stream: sys::CUstream,
        launch: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let mut state = self.state();
        if state.pending.len() == MOST_PENDING {
            self.look(&mut state)?;
        }
        let at = state.pending.len();
        if at == state.marks.len() {
            state.marks.push([Event::timed(&self.context)?, Event::timed(&self.context)?]);
        }
        let record = |event: &Event| {
            // SAFETY: the event is alive, and so is the stream by the caller's promise.
            self.context.call("cuEventRecord", || unsafe { sys::cuEventRecord(event.raw(), stream) })
        };
        record(&state.marks[at][0])?;
        launch()?;
        record(&state.marks[at][1])?;
        state.pending.push(kernel);
        Ok(())
    }

    /// Adds what is pending to what is known. *Blocks* until it is done.
    fn look(&self, state: &mut State) -> Result<(), DriverError> {
        let State { marks, pending, known } = state;
        for ([before, behind], kernel) in marks.iter().zip(pending.drain(..)) {
            behind.wait()?;
            let mut milliseconds = 0.0;
            // SAFETY: the place outlives the call; both marks keep time, and are reached.
            let code = unsafe { (self.elapsed)(&mut milliseconds, before.raw(), behind.raw()) };
            told("cuEventElapsedTime", code)?;
            let (launches, seconds) = known.entry(kernel).or_default();
            *launches += 1;
            *seconds += f64::from(milliseconds) / 1e3;
        }
        Ok(())
    }

    /// What all kernels took that were launched since this was asked last, longest first. *Blocks* until they are done.
    ///
    /// *Errors*: the driver's.
    pub fn take(&self) -> Result<Vec<KernelTime>, DriverError> {
        let mut state = self.state();
        self.look(&mut state)?;
        let known = std::mem::take(&mut state.known);
        let all: f64 = known.values().map(|(_, seconds)| seconds).sum();
        let time = |(kernel, (launches, seconds)): (&'static str, (u64, f64))| KernelTime {
            kernel,
            launches,
            time: Duration::from_secs_f64(seconds),
            share: if all > 0.0 { seconds / all } else { 0.0 },
        };
        let mut times: Vec<KernelTime> = known.into_iter().map(time).collect();
        times.sort_by_key(|one| Reverse(one.time));
        Ok(times)
    }
}
