//! This host as a device: a stream is a thread that works off jobs in their order.
//!
//! Work is done behind the caller's back as on a GPU, so whatever forgets to wait for an event is wrong here too. A
//! library that takes a [`HostStream`] for a CUDA stream puts its jobs between ours.

use dtrain_collective::{Arena, BLOCK, Geometry, SumOrder, sum_block};
use dtrain_nccl::{Address, Device, DeviceArena, DeviceError, MemoryPlace, Stream};
use dtrain_types::{DeviceMemory, Wire};
use nccl_sys::HostStream;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes in a cache line.
const LINE: usize = 64;
/// How long a drop waits for what is left in the stream.
const END: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce() + Send>;

/// The stream's end that others see; its address is the stream.
#[repr(C)]
struct Queue {
    stream: HostStream,
    jobs: Mutex<Sender<Job>>,
}

impl Queue {
    fn put(&self, job: Job) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.send(job).expect("the stream's thread lives as long as its queue");
    }
}

/// The argument of a job from outside.
struct Argument(*mut c_void);

// SAFETY: by the agreement of `HostStream` the job may run on the stream's thread.
unsafe impl Send for Argument {}

/// What the library calls to put its work on the stream.
unsafe extern "C" fn enqueue(
    stream: *mut HostStream,
    job: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    // SAFETY: the stream is the first field of a queue, whose address was given out as a stream.
    let queue = unsafe { &*stream.cast::<Queue>() };
    let argument = Argument(argument);
    queue.put(Box::new(move || {
        let argument = argument;
        // SAFETY: by the agreement of `HostStream` job and argument belong together and run once.
        unsafe { job(argument.0) }
    }));
}

/// A host with a stream of its own.
pub struct HostDevice {
    /// Boxed, because its address is known to others; `None` in drop.
    queue: Option<Box<Queue>>,
    thread: Option<JoinHandle<()>>,
    /// The last mark of the stream, for the end.
    end: HostEvent,
}

/// A mark in a [`HostDevice`]'s stream.
#[derive(Debug, Default)]
pub struct HostEvent {
    recorded: AtomicU64,
    happened: Arc<AtomicU64>,
}

/// Floats that are added in a given order.
pub struct HostSum(Arc<PlannedSum>);

struct PlannedSum {
    order: SumOrder,
    leaves: Vec<Address>,
    out: Address,
    floats: usize,
}

impl HostDevice {
    /// Starts the stream. *Errors*: the kernel has no thread to give.
    pub fn new() -> Result<Self, DeviceError> {
        let (sender, receiver): (Sender<Job>, Receiver<Job>) = channel();
        let work = move || receiver.into_iter().for_each(|job| job());
        let thread = std::thread::Builder::new().name("host-stream".to_owned()).spawn(work);
        let thread = thread.map_err(|error| DeviceError(format!("no thread for a stream: {error}")))?;
        let queue = Queue { stream: HostStream { enqueue }, jobs: Mutex::new(sender) };
        Ok(Self { queue: Some(Box::new(queue)), thread: Some(thread), end: HostEvent::default() })
    }

    fn queue(&self) -> &Queue {
        self.queue.as_ref().expect("only a drop takes it")
    }
}

impl Drop for HostDevice {
    fn drop(&mut self) {
        let passed = self.record(&self.end).and_then(|()| {
            // Work of a communicator that was aborted ends at once; only a library that is stuck does not.
            let begun = Instant::now();
            while !self.has_happened(&self.end)? && begun.elapsed() < END {
                std::thread::yield_now();
            }
            self.has_happened(&self.end)
        });
        let queue = self.queue.take();
        if passed == Ok(true) {
            drop(queue);
            if let Some(thread) = self.thread.take() {
                let _ended = thread.join();
            }
        } else {
            // The thread is inside a job that does not end; its stream must stay where it is.
            std::mem::forget(queue);
        }
    }
}

// SAFETY: memory is allocated once and never moved; jobs run one after the other on one thread, and a mark is a job.
unsafe impl Device for HostDevice {
    type Arena = HostSlots;
    type Memory = HostMemory;
    type Event = HostEvent;
    type Sum = HostSum;

    fn describe(&self) -> String {
        "host memory".to_owned()
    }

    fn stream(&self) -> Stream {
        Stream(std::ptr::from_ref(self.queue()).cast_mut().cast())
    }

    fn allocate(&self, _place: MemoryPlace, bytes: usize) -> Result<HostMemory, DeviceError> {
        Ok(HostMemory::new(bytes))
    }

    fn share(&self, floats: usize) -> Result<DeviceMemory, DeviceError> {
        Ok(DeviceMemory::new((HostMemory::new(floats * size_of::<f32>()), floats)))
    }

    fn reach(&self, memory: &DeviceMemory) -> Option<(Address, usize)> {
        let (memory, floats) = memory.of::<(HostMemory, usize)>()?;
        Some((Address(memory.base.as_ptr()), *floats))
    }

    fn address(&self, memory: &HostMemory) -> Address {
        Address(memory.base.as_ptr())
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        self.queue().put(Box::new(move || {
            let (from, to) = (from, to);
            // SAFETY: the caller vouches for both until the stream has passed this.
            unsafe { std::ptr::copy_nonoverlapping(from.0, to.0, bytes) };
        }));
        Ok(())
    }

    unsafe fn fill(&self, at: Address, floats: usize, value: f32) -> Result<(), DeviceError> {
        self.queue().put(Box::new(move || {
            let at = at;
            // SAFETY: the caller vouches for the floats until the stream has passed this.
            unsafe { std::slice::from_raw_parts_mut(at.0.cast::<f32>(), floats) }.fill(value);
        }));
        Ok(())
    }

    unsafe fn add_to(&self, from: Address, into: Address, floats: usize) -> Result<(), DeviceError> {
        self.queue().put(Box::new(move || {
            let (from, into) = (from, into);
            // SAFETY: the caller vouches for both until the stream has passed this.
            unsafe {
                let from = std::slice::from_raw_parts(from.0.cast::<f32>(), floats);
                let into = std::slice::from_raw_parts_mut(into.0.cast::<f32>(), floats);
                dtrain_collective::add_to(Wire::F32, into, from);
            }
        }));
        Ok(())
    }

    fn plan_sum(
        &self,
        order: &SumOrder,
        leaves: &[Address],
        out: Address,
        floats: usize,
    ) -> Result<HostSum, DeviceError> {
        Ok(HostSum(Arc::new(PlannedSum { order: order.clone(), leaves: leaves.to_vec(), out, floats })))
    }

    unsafe fn add(&self, sum: &HostSum) -> Result<(), DeviceError> {
        let sum = sum.0.clone();
        // SAFETY: the caller vouches for the addresses until the stream has passed this.
        self.queue().put(Box::new(move || unsafe { sum.run() }));
        Ok(())
    }

    fn event(&self) -> Result<HostEvent, DeviceError> {
        Ok(HostEvent::default())
    }

    fn record(&self, event: &HostEvent) -> Result<(), DeviceError> {
        let (turn, happened) = (event.recorded.load(Ordering::Relaxed) + 1, event.happened.clone());
        event.recorded.store(turn, Ordering::Relaxed);
        self.queue().put(Box::new(move || happened.store(turn, Ordering::Release)));
        Ok(())
    }

    fn has_happened(&self, event: &HostEvent) -> Result<bool, DeviceError> {
        Ok(event.happened.load(Ordering::Acquire) == event.recorded.load(Ordering::Relaxed))
    }
}

impl PlannedSum {
    /// # Safety
    /// The addresses are floats that nobody else touches meanwhile.
    unsafe fn run(&self) {
        let mut stack = vec![0.0f32; self.order.depth() * BLOCK];
        for start in (0..self.floats).step_by(BLOCK) {
            let n = BLOCK.min(self.floats - start);
            // SAFETY: the caller vouches for the leaves; slot 0 may be one of them, and is written after all were read.
            let leaf = |leaf: usize| unsafe {
                std::slice::from_raw_parts(self.leaves[leaf].float(start).0.cast::<f32>(), n)
            };
            sum_block(&self.order, Wire::F32, n, &mut stack, leaf);
            // SAFETY: the caller vouches for the target.
            unsafe {
                std::ptr::copy_nonoverlapping(stack.as_ptr(), self.out.float(start).0.cast::<f32>(), n);
            }
        }
    }
}

/// Bytes that stay where they are.
pub struct HostMemory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its bytes; who follows an address to them answers for that.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(LINE), LINE).expect("less than the address space");
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Self { base, layout }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Gradient buffers of a [`HostDevice`].
pub struct HostSlots {
    geometry: Geometry,
    memory: HostMemory,
    /// Bytes from slot to slot.
    stride: usize,
}

impl HostSlots {
    /// Zeroed slots.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        let stride = (geometry.len * size_of::<f32>()).next_multiple_of(LINE);
        Self { geometry, memory: HostMemory::new(stride * geometry.slots()), stride }
    }

    fn floats(&self, slot: usize) -> *mut f32 {
        self.address(slot).0.cast()
    }
}

impl DeviceArena for HostSlots {
    fn address(&self, slot: usize) -> Address {
        assert!(slot < self.geometry.slots(), "slot {slot} of {}", self.geometry.slots());
        Address(self.memory.base.as_ptr()).plus(slot * self.stride)
    }
}

impl Arena for HostSlots {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn lease(&mut self, slot: usize) -> &mut [f32] {
        // SAFETY: the slot lies inside the memory, which is this value's own, zeroed at first, and lent once at a time; a
        // backend lends it only while its stream does not touch it.
        unsafe { std::slice::from_raw_parts_mut(self.floats(slot), self.geometry.len) }
    }

    fn lease_pair(&mut self, left: usize, right: usize) -> (&mut [f32], &mut [f32]) {
        assert!(left != right, "slots {left} and {right} of {}", self.geometry.slots());
        let len = self.geometry.len;
        // SAFETY: as above; different slots do not overlap.
        unsafe {
            (
                std::slice::from_raw_parts_mut(self.floats(left), len),
                std::slice::from_raw_parts_mut(self.floats(right), len),
            )
        }
    }
}
