//! Launches on their way to a stream: gathered, and given to the driver as a graph where they come again and again.
//!
//! A training step launches the same kernels as the one before it, with few other arguments. Launches are therefore held back
//! until something else is done with the stream, or there are many. What was gathered is compared, launch by launch, with the
//! graphs that are known: where kernels are the same, arguments that differ are changed in the graph, and it runs with one call.
//! Nothing is assumed about what comes again, so no graph can be out of date.
//!
//! Whoever frees memory submits what is held back first: see [`Context::submit_all`](super::Context::submit_all).

use super::context::Submit;
use super::error::DriverError;
use super::gpu::Gpu;
use super::graph::{Graph, values};
use super::times::Clock;
use crate::launch::KernelLaunch;
use cudarc::driver::sys;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many launches are held back: the device should begin before the host has found all that it has to do.
const MOST_HELD: usize = 1024;
/// Fewer launches are given one by one.
const FEWEST: usize = 4;
/// Graphs for the same kernels, which differ in most of their arguments: passes into several gradients take turns.
const MOST_ALIKE: usize = 4;
/// Graphs in all. One that was not used for longest makes room.
const MOST_GRAPHS: usize = 32;
/// Of rows of kernels that came once so many are remembered.
const MOST_SEEN: usize = 64;

/// What lies between a stream and those who launch.
#[derive(Debug)]
pub(crate) struct Repeats {
    gpu: Arc<Gpu>,
    raw: sys::CUstream,
    giving: Giving,
    state: Mutex<State>,
}

/// What becomes of launches.
#[derive(Debug)]
pub(super) enum Giving {
    /// The driver has each at once.
    OneByOne,
    /// The same, and each is timed.
    Timed(Clock),
    /// They are held back.
    Gathered,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<KernelLaunch>,
    /// The last used one is the last.
    graphs: Vec<Graph>,
    /// Kernels that came once, oldest first.
    seen: VecDeque<u64>,
    /// The driver would not make a graph, or change one.
    without: bool,
    /// The stream is gone.
    closed: bool,
}

// SAFETY: the driver lets any thread use a stream, and locks what it has to; graphs are behind the lock.
unsafe impl Send for Repeats {}
// SAFETY: as above.
unsafe impl Sync for Repeats {}

/// How what was gathered is given to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    OneByOne,
    /// With a new graph.
    New,
    /// With this one.
    Known(usize),
}

impl Submit for Repeats {
    fn submit(&self) -> Result<(), DriverError> {
        self.submit_held(&mut self.state())
    }
}

impl Repeats {
    /// In front of a stream of this device.
    ///
    /// # Safety
    /// The stream lives until [`Repeats::close`] has returned.
    pub(super) unsafe fn new(gpu: &Arc<Gpu>, raw: sys::CUstream, giving: Giving) -> Self {
        Self { gpu: gpu.clone(), raw, giving, state: Mutex::default() }
    }

    /// What times launches, if anything does.
    pub(super) fn clock(&self) -> Option<&Clock> {
        match &self.giving {
            Giving::Timed(clock) => Some(clock),
            Giving::OneByOne | Giving::Gathered => None,
        }
    }

    /// Has something put on the stream by somebody else, timed where launches are. *Errors*: the driver's, and those of `give`.
    pub(super) fn around(
        &self,
        name: &'static str,
        give: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        match &self.giving {
            // SAFETY: the stream is alive until it is closed, and nobody launches behind that.
            Giving::Timed(clock) => unsafe { clock.around(name, self.raw, give) },
            Giving::OneByOne | Giving::Gathered => give(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is held back is whole after every line.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more launch. *Errors*: those of launches that were held back until now.
    pub fn launch(&self, launch: &KernelLaunch) -> Result<(), DriverError> {
        if let Some(paper) = self.gpu.context().paper() {
            paper.launch(launch);
        }
        match &self.giving {
            Giving::OneByOne => return self.give(launch),
            // SAFETY: the stream is alive until it is closed, and nobody launches behind that.
            Giving::Timed(clock) => unsafe {
                return clock.around(launch.kernel.name, self.raw, || self.give(launch));
            },
            Giving::Gathered => {}
        }
        self.gpu.context().check()?;
        let mut state = self.state();
        state.held.push(*launch);
        if state.held.len() == MOST_HELD { self.submit_held(&mut state) } else { Ok(()) }
    }

    /// The same for the last time; then graphs go. *Blocks* until none of them runs.
    pub fn close(&self) {
        let mut state = self.state();
        if let Err(error) = self.submit_held(&mut state) {
            self.gpu.context().fail(error);
        }
        state.closed = true;
        if !state.graphs.is_empty() {
            let finish = || {
                // SAFETY: the stream is alive.
                unsafe { sys::cuStreamSynchronize(self.raw) }
            };
            self.gpu.context().give_back("cuStreamSynchronize", finish);
            state.graphs.clear();
        }
    }

    fn submit_held(&self, state: &mut State) -> Result<(), DriverError> {
        if state.held.is_empty() || state.closed {
            return Ok(());
        }
        let held = std::mem::take(&mut state.held);
        let given = self.give_all(state, &held);
        // Its room is used again.
        state.held = held;
        state.held.clear();
        given
    }

    fn give_all(&self, state: &mut State, launches: &[KernelLaunch]) -> Result<(), DriverError> {
        let graph = match state.way(launches) {
            Way::OneByOne => None,
            Way::Known(at) => Some(state.graphs.remove(at)),
            Way::New => match self.make(state, launches) {
                Ok(graph) => Some(graph),
                Err(error) => {
                    self.do_without(state, &error)?;
                    None
                }
            },
        };
        let Some(mut graph) = graph else {
            return launches.iter().try_for_each(|launch| self.give(launch));
        };
        let set = launches.iter().enumerate().try_for_each(|(at, launch)| graph.set_launch(at, launch));
        if let Err(error) = set {
            // It knows what was changed, and goes with the others.
            state.graphs.push(graph);
            self.do_without(state, &error)?;
            return launches.iter().try_for_each(|launch| self.give(launch));
        }
        // SAFETY: the stream is alive until it is closed; memory was promised by whoever launched, and is freed only after
        // what was held back was submitted.
        let given = unsafe { graph.run(self.raw) };
        state.graphs.push(graph);
        given
    }

    /// The driver refuses a graph: from here on launches go one by one, which works as well and wants no memory. It is told once.
    ///
    /// *Errors*: what the device has failed in for good.
    fn do_without(&self, state: &mut State, error: &DriverError) -> Result<(), DriverError> {
        self.gpu.context().check()?;
        if !state.without {
            let name = &self.gpu.context().about().name;
            tracing::warn!(%error, gpu = %name, "the driver refuses a graph: kernels are launched one by one, which is slower");
        }
        state.without = true;
        Ok(())
    }

    /// A new graph, for which the oldest one may have to go.
    fn make(&self, state: &mut State, launches: &[KernelLaunch]) -> Result<Graph, DriverError> {
        if state.graphs.len() == MOST_GRAPHS {
            let finish = || {
                // SAFETY: the stream is alive until it is closed.
                unsafe { sys::cuStreamSynchronize(self.raw) }
            };
            self.gpu.context().call("cuStreamSynchronize", finish)?;
            state.graphs.remove(0);
        }
        Graph::new(&self.gpu, launches)
    }

    /// Puts one launch on the stream.
    fn give(&self, launch: &KernelLaunch) -> Result<(), DriverError> {
        let mut values = values(launch);
        let function = self.gpu.function(launch.kernel);
        let (blocks, threads) = (launch.blocks, launch.kernel.threads);
        // SAFETY: the function is that of the kernel, whose parameters the launch was compared with; the driver copies the
        // arguments before it returns. Memory was promised by whoever made the slices.
        self.gpu.context().call("cuLaunchKernel", || unsafe {
            let none = ptr::null_mut();
            sys::cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, self.raw, values.as_mut_ptr(), none)
        })
    }
}

impl State {
    /// What is best for these launches.
    fn way(&mut self, launches: &[KernelLaunch]) -> Way {
        if self.without || launches.len() < FEWEST {
            return Way::OneByOne;
        }
        let (mut best, mut alike) = (None, 0);
        for (at, graph) in self.graphs.iter().enumerate() {
            let Some(differ) = differences(graph.launches(), launches) else { continue };
            alike += 1;
            best = Some(best.map_or((differ, at), |best: (usize, usize)| best.min((differ, at))));
        }
        match best {
            // A change costs a part of what a launch does.
            Some((differ, at)) if differ <= launches.len() / 8 => Way::Known(at),
            Some(_) if alike < MOST_ALIKE => Way::New,
            Some((differ, at)) if differ <= launches.len() / 2 => Way::Known(at),
            Some(_) => Way::OneByOne,
            None if self.was_seen(launches) => Way::New,
            None => Way::OneByOne,
        }
    }

    /// Whether these kernels came before, in this order. From now on they did.
    fn was_seen(&mut self, launches: &[KernelLaunch]) -> bool {
        let mut hasher = DefaultHasher::new();
        launches.iter().for_each(|launch| ptr::from_ref(launch.kernel).hash(&mut hasher));
        let row = hasher.finish();
        if self.seen.contains(&row) {
            return true;
        }
        if self.seen.len() == MOST_SEEN {
            self.seen.pop_front();
        }
        self.seen.push_back(row);
        false
    }
}

/// How many launches are not the same; none if the kernels are others.
fn differences(known: &[KernelLaunch], launches: &[KernelLaunch]) -> Option<usize> {
    if known.len() != launches.len() {
        return None;
    }
    known.iter().zip(launches).try_fold(0, |differ, (known, launch)| {
        ptr::eq(known.kernel, launch.kernel).then(|| differ + usize::from(!known.is_same(launch)))
    })
}
