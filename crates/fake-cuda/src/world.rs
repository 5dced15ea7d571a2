//! The devices of this process, what was handed out, and what was noticed.

use crate::codes::{Code, SUCCESS};
use crate::event::Event;
use crate::graph::{Graph, Node, Ready};
use crate::handles::Handles;
use crate::knobs::knobs;
use crate::memory::Memory;
use crate::module::{Function, Module};
use crate::stream::Stream;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// A device, and its primary context.
pub(crate) struct Device {
    pub index: usize,
    pub memory: Memory,
    /// How often its primary context is held.
    pub retained: AtomicUsize,
    /// The code that sticks.
    failed: AtomicU32,
}

pub(crate) static INITIALISED: AtomicBool = AtomicBool::new(false);
pub(crate) static STREAMS: Handles<Stream> = Handles::new(0x5712_0000);
pub(crate) static EVENTS: Handles<Event> = Handles::new(0x0e7e_0000);
pub(crate) static MODULES: Handles<Module> = Handles::new(0x40d0_0000);
pub(crate) static GRAPHS: Handles<Graph> = Handles::new(0x06a9_0000);
pub(crate) static READY: Handles<Ready> = Handles::new(0x0eec_0000);
/// They go with their graph.
pub(crate) static NODES: Handles<Node> = Handles::new(0x70de_0000);
/// Never given back: the driver has no call for that.
pub(crate) static FUNCTIONS: Handles<Function> = Handles::new(0x0f2c_0000);

static WRONG: Mutex<Vec<String>> = Mutex::new(Vec::new());
static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let device = |index| Device {
        index,
        memory: Memory::new(knobs().memory),
        retained: AtomicUsize::new(0),
        failed: AtomicU32::new(SUCCESS),
    };
    (0..knobs().devices).map(device).collect()
});

/// The first context handle; that of device 0.
const FIRST_CONTEXT: usize = 0x0c7c_0000;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn devices() -> &'static [Device] {
    &DEVICES
}

/// Something was done that a real driver would not have noticed.
pub(crate) fn complain(what: String) {
    WRONG.lock().unwrap_or_else(PoisonError::into_inner).push(what);
}

pub(crate) fn complaints() -> Vec<String> {
    WRONG.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Device {
    pub fn context(&self) -> usize {
        FIRST_CONTEXT + self.index
    }

    /// Keeps the first failure.
    pub fn fail(&self, code: Code) {
        let _first_stays = self.failed.compare_exchange(SUCCESS, code, Ordering::AcqRel, Ordering::Acquire);
    }

    pub fn failure(&self) -> Code {
        self.failed.load(Ordering::Acquire)
    }

    /// *Blocks* until all streams have done what they were given.
    pub fn rest(&self) {
        for stream in STREAMS.all().iter().filter(|stream| stream.device.index == self.index) {
            stream.finish();
        }
    }
}

pub(crate) fn current_context() -> usize {
    CURRENT.get()
}

/// Whether there is such a context.
pub(crate) fn set_current(context: usize) -> bool {
    let known = context == 0 || devices().iter().any(|device| device.context() == context);
    if known {
        CURRENT.set(context);
    }
    known
}

/// The device of this thread's context, as long as that is held.
pub(crate) fn current() -> Option<&'static Device> {
    let device = devices().iter().find(|device| device.context() == CURRENT.get())?;
    (device.retained.load(Ordering::Acquire) > 0).then_some(device)
}
