//! A driver on paper: it counts what it is asked for, and does nothing. For plans of what a step costs, on any machine.
//!
//! Reads give zeros. It does not know what a step is, nor how fast a GPU is.

use crate::kernels::Kernel;
use crate::launch::{KernelLaunch, Work};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What memory begins on a multiple of, as a driver's does. *Units*: bytes.
pub const ALIGNED: u64 = 256;
/// Where memory on paper begins: no address is none.
const FIRST: u64 = 1 << 40;

/// What the launches of one kernel come to.
#[derive(Clone, Copy, Debug)]
pub struct KernelTally {
    /// Which.
    pub kernel: &'static Kernel,
    /// How often it was launched.
    pub launches: u64,
    /// Blocks of the launch that had the fewest: a GPU has room for hundreds at once.
    pub fewest: u32,
    /// What they cost together.
    pub work: Work,
}

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Launches by kernel, in the order of their names.
    pub kernels: BTreeMap<&'static str, KernelTally>,
    /// Each launch, in order.
    pub launches: Vec<(&'static Kernel, Work)>,
    /// Launches that were given before the host waited, for each time that it did.
    pub waits: Vec<usize>,
    /// Memory that is held. *Units*: bytes.
    pub held: u64,
    /// The most that was held. *Units*: bytes.
    pub peak: u64,
}

/// See the file's comment.
#[derive(Debug, Default)]
pub(super) struct Paper {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tally: Tally,
    /// What was ever handed out.
    handed_out: u64,
}

impl Paper {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call of this function.
    pub fn call(&self, function: &'static str) {
        if ["cuEventSynchronize", "cuStreamSynchronize"].contains(&function) {
            let mut state = self.state();
            let given = state.tally.launches.len();
            state.tally.waits.push(given);
        }
    }

    /// A launch.
    pub fn launch(&self, launch: &KernelLaunch) {
        let mut state = self.state();
        let (kernel, work) = (launch.kernel, launch.work);
        state.tally.launches.push((kernel, work));
        let none = KernelTally { kernel, launches: 0, fewest: launch.blocks, work: Work::default() };
        let all = state.tally.kernels.entry(kernel.name).or_insert(none);
        all.launches += 1;
        all.fewest = all.fewest.min(launch.blocks);
        all.work.bytes += work.bytes;
        all.work.operations += work.operations;
        all.work.plain_operations += work.plain_operations;
    }

    /// An address for so many bytes.
    pub fn take(&self, bytes: usize) -> u64 {
        let bytes = (bytes as u64).next_multiple_of(ALIGNED);
        let mut state = self.state();
        let address = FIRST + state.handed_out;
        state.handed_out += bytes;
        address
    }

    /// What was asked for since this was taken last, without memory.
    pub fn tally(&self) -> Tally {
        std::mem::take(&mut self.state().tally)
    }
}
