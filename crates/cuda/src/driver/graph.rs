//! Kernels in a row that the driver is given as one, again and again: a CUDA graph.
//!
//! It does not know which launches come again, or when a graph pays: see `repeats.rs`.

use super::context::Context;
use super::error::DriverError;
use super::gpu::Gpu;
use crate::launch::{KernelLaunch, MOST};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// A graph that is ready to run.
#[derive(Debug)]
pub(super) struct Graph {
    gpu: Arc<Gpu>,
    /// Nodes belong to it, so it lives as long.
    plan: Plan,
    ready: sys::CUgraphExec,
    /// What it does when it runs next.
    launches: Vec<KernelLaunch>,
}

/// What graphs are made ready from.
#[derive(Debug)]
struct Plan {
    context: Arc<Context>,
    raw: sys::CUgraph,
    nodes: Vec<sys::CUgraphNode>,
}

// SAFETY: the driver lets any thread use a graph as long as it is one at a time; whoever changes or runs it has it alone.
unsafe impl Send for Graph {}

impl Graph {
    /// Makes one of launches, each behind the one before it. *Errors*: the driver's.
    pub fn new(gpu: &Arc<Gpu>, launches: &[KernelLaunch]) -> Result<Self, DriverError> {
        let context = gpu.context();
        let mut raw = ptr::null_mut();
        // SAFETY: the place outlives the call.
        context.call("cuGraphCreate", || unsafe { sys::cuGraphCreate(&mut raw, 0) })?;
        let mut plan = Plan { context: context.clone(), raw, nodes: Vec::with_capacity(launches.len()) };
        for launch in launches {
            plan.add(gpu, launch)?;
        }
        let mut ready = ptr::null_mut();
        // SAFETY: the place outlives the call, the graph is whole.
        let make = || unsafe { sys::cuGraphInstantiateWithFlags(&mut ready, raw, 0) };
        context.call("cuGraphInstantiateWithFlags", make)?;
        Ok(Self { gpu: gpu.clone(), plan, ready, launches: launches.to_vec() })
    }

    /// What it does when it runs next.
    pub fn launches(&self) -> &[KernelLaunch] {
        &self.launches
    }

    /// Gives the launch at a place the arguments and the number of blocks of another one of its kernel, if they differ.
    ///
    /// What was begun before keeps its own. *Errors*: the driver's; then it is as it was, or has failed for good.
    pub fn set_launch(&mut self, at: usize, launch: &KernelLaunch) -> Result<(), DriverError> {
        if self.launches[at].is_same(launch) {
            return Ok(());
        }
        let (ready, node) = (self.ready, self.plan.nodes[at]);
        let changed = with_parameters(&self.gpu, launch, |parameters| {
            let call = || {
                // SAFETY: the node is one of the graph that this was made ready from; the driver copies the arguments before
                // it returns, which are those of the kernel.
                unsafe { sys::cuGraphExecKernelNodeSetParams_v2(ready, node, parameters) }
            };
            self.gpu.context().call("cuGraphExecKernelNodeSetParams_v2", call)
        });
        changed?;
        self.launches[at] = *launch;
        Ok(())
    }

    /// Puts all of it on a stream. *Errors*: the driver's.
    ///
    /// # Safety
    /// The stream is alive. The memory in the arguments is as it was promised to whoever made the launches.
    pub unsafe fn run(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the caller's promise; the graph is alive.
        self.gpu.context().call("cuGraphLaunch", || unsafe { sys::cuGraphLaunch(self.ready, stream) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; whoever drops it has waited for it.
        self.gpu.context().give_back("cuGraphExecDestroy", || unsafe { sys::cuGraphExecDestroy(self.ready) });
    }
}

impl Plan {
    fn add(&mut self, gpu: &Gpu, launch: &KernelLaunch) -> Result<(), DriverError> {
        let (mut node, before) = (ptr::null_mut(), self.nodes.last().map_or(&[][..], std::slice::from_ref));
        with_parameters(gpu, launch, |parameters| {
            let call = || {
                // SAFETY: places and lists outlive the call; the node before is one of this graph.
                unsafe {
                    let count = before.len();
                    sys::cuGraphAddKernelNode_v2(&mut node, self.raw, before.as_ptr(), count, parameters)
                }
            };
            self.context.call("cuGraphAddKernelNode_v2", call)
        })?;
        self.nodes.push(node);
        Ok(())
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; what was made ready from it does not need it.
        self.context.give_back("cuGraphDestroy", || unsafe { sys::cuGraphDestroy(self.raw) });
    }
}

/// Where the arguments of a launch lie, as the driver wants them.
pub(super) fn values(launch: &KernelLaunch) -> [*mut c_void; MOST] {
    let mut values = [ptr::null_mut::<c_void>(); MOST];
    for (value, argument) in values.iter_mut().zip(launch.arguments()) {
        *value = argument.value().cast_mut();
    }
    values
}

/// A launch as a node of a graph has it, for as long as `call` takes.
fn with_parameters<T>(
    gpu: &Gpu,
    launch: &KernelLaunch,
    call: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS_v2) -> T,
) -> T {
    let mut values = values(launch);
    let parameters = sys::CUDA_KERNEL_NODE_PARAMS_v2 {
        func: gpu.function(launch.kernel),
        gridDimX: launch.blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: launch.kernel.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: values.as_mut_ptr(),
        extra: ptr::null_mut(),
        kern: ptr::null_mut(),
        ctx: ptr::null_mut(),
    };
    call(&parameters)
}
