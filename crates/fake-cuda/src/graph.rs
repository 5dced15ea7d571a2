//! Graphs: kernels in a row, each behind the one before it. Nothing else can be a node here.

use crate::codes::{Code, SUCCESS};
use crate::module::Launch;
use crate::world::Device;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// What cuda.h has for the parameters of a kernel's node, since CUDA 12.
#[repr(C)]
pub struct Parameters {
    pub function: usize,
    pub blocks: [c_uint; 3],
    pub threads: [c_uint; 3],
    pub shared: c_uint,
    pub arguments: *const *const c_void,
    pub extra: *const *const c_void,
    pub kernel: usize,
    pub context: usize,
}

/// A node, by its place in the graph.
pub(crate) struct Node {
    pub graph: usize,
    pub place: usize,
}

/// What is being built: nodes are handles, launches what they do.
pub(crate) struct Graph {
    pub parts: Mutex<(Vec<usize>, Vec<Arc<Launch>>)>,
}

/// What runs: its launches are its own, and may be changed between two runs.
pub(crate) struct Ready {
    /// The graph it was made from.
    pub graph: usize,
    pub launches: Mutex<Vec<Arc<Launch>>>,
}

impl Graph {
    pub fn launches(&self) -> Vec<Arc<Launch>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

impl Ready {
    /// What one run does: what is changed from now on is for the next one.
    pub fn work(&self, device: &'static Device) -> crate::stream::Work {
        let launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let run = move || -> Code {
            let mut codes = launches.iter().map(|launch| launch.run(device));
            codes.find(|code| *code != SUCCESS).unwrap_or(SUCCESS)
        };
        Box::new(run)
    }
}
