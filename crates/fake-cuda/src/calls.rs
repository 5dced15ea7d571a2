//! The driver's functions.
//!
//! Each counts itself, fails if it was asked to, and looks whether the library was initialised, the thread has a context and
//! the device has not failed, as far as the real one does.

// The types of all of them are those of cuda.h; what a pointer has to point to is said there.
#![allow(clippy::missing_safety_doc, missing_docs)]

use crate::codes::{
    Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NO_DEVICE,
    NOT_FOUND, NOT_INITIALIZED, NOT_READY, OUT_OF_MEMORY, SUCCESS, words,
};
use crate::event::Event;
use crate::graph::{Graph, Node, Parameters, Ready};
use crate::knobs::{count, knobs};
use crate::memory::Kind;
use crate::module::{Launch, Module};
use crate::stream::Stream;
use crate::world::{
    Device, EVENTS, FUNCTIONS, GRAPHS, INITIALISED, MODULES, NODES, READY, STREAMS, complain, current,
    current_context, devices, set_current,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

type Answer = Result<(), Code>;

/// A flag of an event that keeps no time.
const DISABLE_TIMING: c_uint = 2;

fn code(answer: Answer) -> Code {
    answer.err().unwrap_or(SUCCESS)
}

fn ok_if(holds: bool, otherwise: Code) -> Answer {
    if holds { Ok(()) } else { Err(otherwise) }
}

/// Of a function that needs nothing.
fn called(name: &str) -> Answer {
    match count(name) {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// Of a function that needs `cuInit`.
fn started(name: &str) -> Answer {
    called(name)?;
    ok_if(INITIALISED.load(Ordering::Acquire), NOT_INITIALIZED)
}

/// Of a function that needs a context.
fn here(name: &str) -> Result<&'static Device, Code> {
    started(name)?;
    let device = current().ok_or(INVALID_CONTEXT)?;
    ok_if(device.failure() == SUCCESS, device.failure())?;
    Ok(device)
}

fn device(index: c_int) -> Result<&'static Device, Code> {
    usize::try_from(index).ok().and_then(|index| devices().get(index)).ok_or(INVALID_DEVICE)
}

fn stream(device: &Device, handle: usize) -> Result<Arc<Stream>, Code> {
    let stream = STREAMS.get(handle).ok_or(INVALID_HANDLE)?;
    ok_if(stream.device.index == device.index, INVALID_HANDLE)?;
    Ok(stream)
}

/// Copies a text into a buffer of the caller.
///
/// # Safety
/// There are `room` bytes.
unsafe fn put_text(text: &str, to: *mut c_char, room: c_int) {
    let bytes = &text.as_bytes()[..text.len().min(room as usize - 1)];
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len());
        to.add(bytes.len()).write(0);
    }
}

/// Work of the host on a stream.
type HostFunction = unsafe extern "C" fn(*mut c_void);

macro_rules! driver {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> Code {
                // SAFETY: pointers are what cuda.h says; nothing is kept of them behind the call.
                #[allow(unused_unsafe)]
                let work = || -> Answer { unsafe { $body } };
                code(work())
            }
        )*
    };
}

driver! {
    cuInit(flags: c_uint) {
        called("cuInit")?;
        ok_if(flags == 0, INVALID_VALUE)?;
        ok_if(knobs().devices > 0, NO_DEVICE)?;
        INITIALISED.store(true, Ordering::Release);
        Ok(())
    }

    cuDriverGetVersion(version: *mut c_int) {
        called("cuDriverGetVersion")?;
        *version = knobs().version;
        Ok(())
    }

    cuGetErrorName(error: Code, text: *mut *const c_char) {
        *text = words(error).ok_or(INVALID_VALUE)?.0.as_ptr();
        Ok(())
    }

    cuGetErrorString(error: Code, text: *mut *const c_char) {
        *text = words(error).ok_or(INVALID_VALUE)?.1.as_ptr();
        Ok(())
    }

    cuDeviceGetCount(to: *mut c_int) {
        started("cuDeviceGetCount")?;
        *to = knobs().devices as c_int;
        Ok(())
    }

    cuDeviceGet(to: *mut c_int, ordinal: c_int) {
        started("cuDeviceGet")?;
        *to = device(ordinal)?.index as c_int;
        Ok(())
    }

    cuDeviceGetName(name: *mut c_char, room: c_int, index: c_int) {
        started("cuDeviceGetName")?;
        device(index)?;
        put_text("Fake CUDA device", name, room);
        Ok(())
    }

    cuDeviceGetAttribute(to: *mut c_int, attribute: c_uint, index: c_int) {
        started("cuDeviceGetAttribute")?;
        device(index)?;
        *to = match attribute {
            // Multiprocessors, major, minor.
            16 => 4,
            75 => knobs().capability[0],
            76 => knobs().capability[1],
            _ => return Err(INVALID_VALUE),
        };
        Ok(())
    }

    cuDeviceTotalMem_v2(to: *mut usize, index: c_int) {
        started("cuDeviceTotalMem_v2")?;
        *to = device(index)?.memory.room()[1];
        Ok(())
    }

    cuDevicePrimaryCtxRetain(context: *mut usize, index: c_int) {
        started("cuDevicePrimaryCtxRetain")?;
        let device = device(index)?;
        device.retained.fetch_add(1, Ordering::AcqRel);
        *context = device.context();
        Ok(())
    }

    cuDevicePrimaryCtxRelease_v2(index: c_int) {
        started("cuDevicePrimaryCtxRelease_v2")?;
        let device = device(index)?;
        let less = device.retained.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| held.checked_sub(1));
        less.map(drop).map_err(|_| INVALID_CONTEXT)
    }

    cuCtxSetCurrent(context: usize) {
        started("cuCtxSetCurrent")?;
        ok_if(set_current(context), INVALID_CONTEXT)
    }

    cuCtxGetCurrent(context: *mut usize) {
        started("cuCtxGetCurrent")?;
        *context = current_context();
        Ok(())
    }

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let [left, all] = here("cuMemGetInfo_v2")?.memory.room();
        (*free, *total) = (left, all);
        Ok(())
    }

    cuMemAlloc_v2(to: *mut usize, bytes: usize) {
        let device = here("cuMemAlloc_v2")?;
        ok_if(bytes > 0, INVALID_VALUE)?;
        *to = device.memory.allocate(bytes, Kind::Device).ok_or(OUT_OF_MEMORY)?;
        Ok(())
    }

    cuMemFree_v2(address: usize) {
        let device = here("cuMemFree_v2")?;
        // As the real one does: nobody can free what a kernel still works on.
        device.rest();
        ok_if(device.memory.free(address, Kind::Device), INVALID_VALUE)
    }

    cuMemHostAlloc(to: *mut usize, bytes: usize, _flags: c_uint) {
        let device = here("cuMemHostAlloc")?;
        ok_if(bytes > 0, INVALID_VALUE)?;
        *to = device.memory.allocate(bytes, Kind::Pinned).ok_or(OUT_OF_MEMORY)?;
        Ok(())
    }

    cuMemFreeHost(address: usize) {
        let device = here("cuMemFreeHost")?;
        device.rest();
        ok_if(device.memory.free(address, Kind::Pinned), INVALID_VALUE)
    }

    cuMemcpyAsync(to: usize, from: usize, bytes: usize, handle: usize) {
        let device = here("cuMemcpyAsync")?;
        let stream = stream(device, handle)?;
        let known = [to, from].iter().all(|address| device.memory.has(*address, bytes, None));
        ok_if(known, INVALID_VALUE)?;
        stream.give(Box::new(move || {
            if ![to, from].iter().all(|address| device.memory.has(*address, bytes, None)) {
                complain(format!("a copy of {bytes} bytes meets memory that was freed before it was done"));
                return crate::codes::ILLEGAL_ADDRESS;
            }
            // SAFETY: both ranges were looked up just now.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            SUCCESS
        }));
        Ok(())
    }

    cuMemsetD32Async(to: usize, value: c_uint, words: usize, handle: usize) {
        let device = here("cuMemsetD32Async")?;
        let stream = stream(device, handle)?;
        ok_if(device.memory.has(to, words * 4, Some(Kind::Device)) && to.is_multiple_of(4), INVALID_VALUE)?;
        stream.give(Box::new(move || {
            // SAFETY: it is memory of the device, aligned; blocks are never given back to the system.
            unsafe { std::slice::from_raw_parts_mut(to as *mut u32, words) }.fill(value);
            SUCCESS
        }));
        Ok(())
    }

    cuStreamCreate(to: *mut usize, _flags: c_uint) {
        let device = here("cuStreamCreate")?;
        *to = STREAMS.add(Stream::start(device).ok_or(OUT_OF_MEMORY)?);
        Ok(())
    }

    cuStreamDestroy_v2(handle: usize) {
        here("cuStreamDestroy_v2")?;
        STREAMS.remove(handle).ok_or(INVALID_HANDLE)?.close();
        Ok(())
    }

    cuStreamSynchronize(handle: usize) {
        let device = here("cuStreamSynchronize")?;
        stream(device, handle)?.finish();
        ok_if(device.failure() == SUCCESS, device.failure())
    }

    cuLaunchHostFunc(handle: usize, function: HostFunction, argument: *mut c_void) {
        let device = here("cuLaunchHostFunc")?;
        let argument = argument as usize;
        stream(device, handle)?.give(Box::new(move || {
            // SAFETY: the caller's promise holds until the stream has passed this.
            unsafe { function(argument as *mut c_void) };
            SUCCESS
        }));
        Ok(())
    }

    cuStreamWaitEvent(handle: usize, event: usize, _flags: c_uint) {
        let device = here("cuStreamWaitEvent")?;
        let (stream, event) = (stream(device, handle)?, EVENTS.get(event).ok_or(INVALID_HANDLE)?);
        if let Some((other, upto)) = event.place().filter(|(other, _)| !Arc::ptr_eq(other, &stream)) {
            stream.give_wait(other, upto);
        }
        Ok(())
    }

    cuEventCreate(to: *mut usize, flags: c_uint) {
        here("cuEventCreate")?;
        let event = if flags & DISABLE_TIMING == 0 { Event::timed() } else { Event::untimed() };
        *to = EVENTS.add(Arc::new(event));
        Ok(())
    }

    cuEventDestroy_v2(event: usize) {
        here("cuEventDestroy_v2")?;
        EVENTS.remove(event).map(drop).ok_or(INVALID_HANDLE)
    }

    cuEventRecord(event: usize, handle: usize) {
        let device = here("cuEventRecord")?;
        EVENTS.get(event).ok_or(INVALID_HANDLE)?.record(stream(device, handle)?);
        Ok(())
    }

    cuEventElapsedTime(milliseconds: *mut f32, from: usize, to: usize) {
        here("cuEventElapsedTime")?;
        let [from, to] = [from, to].map(|event| EVENTS.get(event).filter(|event| event.timed));
        let (from, to) = (from.ok_or(INVALID_HANDLE)?, to.ok_or(INVALID_HANDLE)?);
        let (from, to) = (from.reached().ok_or(NOT_READY)?, to.reached().ok_or(NOT_READY)?);
        *milliseconds = (to - from).as_secs_f32() * 1e3;
        Ok(())
    }

    cuEventQuery(event: usize) {
        let device = here("cuEventQuery")?;
        let place = EVENTS.get(event).ok_or(INVALID_HANDLE)?.place();
        let done = place.is_none_or(|(stream, upto)| stream.want(upto));
        ok_if(device.failure() == SUCCESS, device.failure())?;
        ok_if(done, NOT_READY)
    }

    cuEventSynchronize(event: usize) {
        let device = here("cuEventSynchronize")?;
        if let Some((stream, upto)) = EVENTS.get(event).ok_or(INVALID_HANDLE)?.place() {
            stream.reach(upto);
        }
        ok_if(device.failure() == SUCCESS, device.failure())
    }

    cuModuleLoadData(to: *mut usize, image: *const c_void) {
        here("cuModuleLoadData")?;
        *to = MODULES.add(Arc::new(Module::load(image.cast()).ok_or(INVALID_IMAGE)?));
        Ok(())
    }

    cuModuleUnload(module: usize) {
        here("cuModuleUnload")?;
        MODULES.remove(module).map(drop).ok_or(INVALID_HANDLE)
    }

    cuModuleGetFunction(to: *mut usize, module: usize, name: *const c_char) {
        here("cuModuleGetFunction")?;
        let module = MODULES.get(module).ok_or(INVALID_HANDLE)?;
        let function = module.function(&CStr::from_ptr(name).to_string_lossy()).ok_or(NOT_FOUND)?;
        *to = FUNCTIONS.add(Arc::new(function));
        Ok(())
    }
}

driver! {
    cuGraphCreate(to: *mut usize, flags: c_uint) {
        here("cuGraphCreate")?;
        ok_if(flags == 0, INVALID_VALUE)?;
        *to = GRAPHS.add(Arc::new(Graph { parts: Mutex::default() }));
        Ok(())
    }

    cuGraphAddKernelNode_v2(
        to: *mut usize,
        graph: usize,
        before: *const usize,
        count: usize,
        parameters: *const Parameters
    ) {
        here("cuGraphAddKernelNode_v2")?;
        let handle = graph;
        let graph = GRAPHS.get(handle).ok_or(INVALID_HANDLE)?;
        let mut parts = graph.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let (nodes, launches) = &mut *parts;
        // Whoever wants another shape has to teach it to this library.
        let follows = (0..count).map(|i| *before.add(i)).eq(nodes.last().copied());
        ok_if(follows, INVALID_VALUE)?;
        launches.push(Arc::new(of_node(&*parameters)?));
        nodes.push(NODES.add(Arc::new(Node { graph: handle, place: nodes.len() })));
        *to = nodes[nodes.len() - 1];
        Ok(())
    }

    cuGraphInstantiateWithFlags(to: *mut usize, graph: usize, flags: u64) {
        here("cuGraphInstantiateWithFlags")?;
        ok_if(flags == 0, INVALID_VALUE)?;
        let launches = GRAPHS.get(graph).ok_or(INVALID_HANDLE)?.launches();
        *to = READY.add(Arc::new(Ready { graph, launches: Mutex::new(launches) }));
        Ok(())
    }

    cuGraphExecKernelNodeSetParams_v2(ready: usize, node: usize, parameters: *const Parameters) {
        here("cuGraphExecKernelNodeSetParams_v2")?;
        let (ready, node) = (READY.get(ready).ok_or(INVALID_HANDLE)?, NODES.get(node).ok_or(INVALID_HANDLE)?);
        ok_if(node.graph == ready.graph, INVALID_VALUE)?;
        let launch = of_node(&*parameters)?;
        let mut launches = ready.launches.lock().unwrap_or_else(PoisonError::into_inner);
        // The real one lets some kernels take the place of others, and not all.
        ok_if(Arc::ptr_eq(&launches[node.place].function, &launch.function), INVALID_VALUE)?;
        launches[node.place] = Arc::new(launch);
        Ok(())
    }

    cuGraphLaunch(ready: usize, handle: usize) {
        let device = here("cuGraphLaunch")?;
        let stream = stream(device, handle)?;
        stream.give(READY.get(ready).ok_or(INVALID_HANDLE)?.work(device));
        Ok(())
    }

    cuGraphExecDestroy(ready: usize) {
        here("cuGraphExecDestroy")?;
        READY.remove(ready).map(drop).ok_or(INVALID_HANDLE)
    }

    cuGraphDestroy(graph: usize) {
        here("cuGraphDestroy")?;
        let gone = GRAPHS.remove(graph).ok_or(INVALID_HANDLE)?;
        for node in &gone.parts.lock().unwrap_or_else(PoisonError::into_inner).0 {
            NODES.remove(*node).ok_or(INVALID_HANDLE)?;
        }
        Ok(())
    }
}

/// What a node does, in one dimension and without dynamic shared memory.
///
/// # Safety
/// As cuda.h says of `kernelParams`.
unsafe fn of_node(parameters: &Parameters) -> Result<Launch, Code> {
    let Parameters { function, blocks, threads, shared, arguments, extra, kernel, context } = *parameters;
    let ours = extra.is_null() && kernel == 0 && context == 0;
    ok_if(ours, INVALID_VALUE)?;
    // SAFETY: the caller's promise.
    unsafe { launch(function, blocks, threads, shared, arguments) }
}

/// A launch, looked at.
///
/// # Safety
/// As cuda.h says of `kernelParams`.
unsafe fn launch(
    function: usize,
    [blocks, blocks_y, blocks_z]: [c_uint; 3],
    [threads, threads_y, threads_z]: [c_uint; 3],
    shared: c_uint,
    arguments: *const *const c_void,
) -> Result<Launch, Code> {
    let function = FUNCTIONS.get(function).ok_or(INVALID_HANDLE)?;
    let flat = [blocks_y, blocks_z, threads_y, threads_z] == [1; 4] && shared == 0;
    ok_if(flat && blocks > 0 && (1..=1024).contains(&threads), INVALID_VALUE)?;
    // SAFETY: the caller's promise.
    unsafe { Launch::new(function, [blocks, threads], arguments) }.ok_or(INVALID_VALUE)
}

/// Of a launch, in one dimension and without dynamic shared memory.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    blocks: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared: c_uint,
    handle: usize,
    arguments: *const *const c_void,
    extra: *const *const c_void,
) -> Code {
    let work = || -> Answer {
        let device = here("cuLaunchKernel")?;
        let stream = stream(device, handle)?;
        ok_if(extra.is_null(), INVALID_VALUE)?;
        let (blocks, threads) = ([blocks, blocks_y, blocks_z], [threads, threads_y, threads_z]);
        // SAFETY: as cuda.h says of `kernelParams`.
        let launch = unsafe { launch(function, blocks, threads, shared, arguments) }?;
        stream.give(Box::new(move || launch.run(device)));
        Ok(())
    };
    code(work())
}
