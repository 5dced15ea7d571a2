//! Fork and join: a few threads that wait spinning for a moment, then sleep, and never allocate for a job.
//!
//! A job is a number of tasks that write disjoint parts of the outputs. Which thread runs which task is left to
//! chance; since a task's bits depend on its index alone, the result does not. One job runs at a time; a device that is
//! used from two threads at once serialises them.
//!
//! This file does not know what the tasks compute.

use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// A job of less work than this, in elements touched, stays on the caller's thread: a core does it in some 20 us, as
/// long as handing it over takes when the other threads sleep or the machine is busy.
pub(super) const FORK: usize = 1 << 18;

/// How often a thread looks for the next job before it sleeps: some 50 us, twice the price of a wake-up.
const SPINS: u32 = 2_000;

/// Buffers that one thread packs operands into; they grow at the first use of a shape and stay.
#[derive(Default)]
pub(super) struct Workspace {
    /// The broadcast operand of a product.
    pub(super) a: Buffer,
    /// The vector operand of a product.
    pub(super) b: Buffer,
    /// An image with its padding.
    pub(super) image: Buffer,
    /// Whatever else a kernel keeps for a moment.
    pub(super) rest: Buffer,
    /// Where the rows of an operand start.
    pub(super) offsets: Vec<usize>,
}

impl Workspace {
    fn buffers(&mut self) -> [&mut Buffer; 4] {
        [&mut self.a, &mut self.b, &mut self.image, &mut self.rest]
    }

    /// Grows what is smaller here than there.
    fn grow_like(&mut self, other: &mut Self) {
        for (mine, theirs) in self.buffers().into_iter().zip(other.buffers()) {
            if mine.0.len() < theirs.0.len() {
                mine.0.resize(theirs.0.len(), 0.0);
            }
        }
        let more = other.offsets.capacity().saturating_sub(self.offsets.len());
        self.offsets.reserve_exact(more);
    }
}

/// A buffer that starts on a cache line.
#[derive(Default)]
pub(super) struct Buffer(Vec<f32>);

impl Buffer {
    const LINE: usize = 16;

    /// The first `len` elements, with whatever was left in them.
    pub(super) fn take(&mut self, len: usize) -> &mut [f32] {
        if self.0.len() < len + Self::LINE {
            self.0.resize((len + Self::LINE).next_power_of_two(), 0.0);
        }
        let start = self.0.as_ptr().align_offset(4 * Self::LINE).min(Self::LINE);
        &mut self.0[start..start + len]
    }
}

/// An output that task `t` gets elements `t * each ..` of, at most `each`.
pub(super) struct Cut<'a, T = f32> {
    data: *mut T,
    len: usize,
    each: usize,
    life: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]`, which is Send; shared, it only hands out disjoint parts (see `Cut::part`).
unsafe impl<T: Send> Sync for Cut<'_, T> {}

impl<'a, T> Cut<'a, T> {
    /// `data` in parts of `each` elements.
    pub(super) fn new(data: &'a mut [T], each: usize) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), each, life: std::marker::PhantomData }
    }

    /// The part of one task.
    ///
    /// SAFETY: no two live parts may have the same `task`.
    #[allow(
        clippy::mut_from_ref,
        reason = "it stands for a unique borrow, of which each task gets its own part"
    )]
    unsafe fn part(&self, task: usize) -> &mut [T] {
        let start = (task * self.each).min(self.len);
        let len = self.each.min(self.len - start);
        // SAFETY: inside the slice it was made of, and parts of different tasks do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }
}

/// The system gives no more threads.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {threads} compute threads: {cause}")]
pub struct PoolError {
    /// How many were wanted.
    pub threads: usize,
    /// What the system said.
    pub cause: std::io::Error,
}

/// The threads of a device.
///
/// *Determinism*: what a task makes may depend on its number alone, so that it does not matter which thread has it.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Who holds it may start a job and use the workspaces.
    caller: Mutex<()>,
}

type Job = dyn Fn(usize) + Sync;

struct Shared {
    /// What to run; written between two rounds only.
    job: UnsafeCell<Option<*const Job>>,
    /// Counts jobs: a worker runs once for each new value.
    round: AtomicU64,
    /// Workers that have not finished this round.
    busy: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    asleep: Box<[AtomicBool]>,
    spaces: Box<[UnsafeCell<Workspace>]>,
}

// SAFETY: `job` is written by the holder of `caller` while no worker is busy and published by `round`; workspace `i`
// is touched by thread `i` alone during a round.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to a `Sync` closure and is read only during a round, while its owner waits.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, of which the caller is one; 0 counts as 1.
    ///
    /// *Errors*: [`PoolError`].
    pub fn new(threads: usize) -> Result<Self, PoolError> {
        let mut pool = Self::idle(threads.max(1) - 1);
        for worker in 1..threads {
            let shared = pool.shared.clone();
            let thread = Builder::new().name(format!("kernel-{worker}")).spawn(move || shared.work(worker));
            pool.workers.push(thread.map_err(|cause| PoolError { threads, cause })?);
        }
        Ok(pool)
    }

    /// Room for so many threads beside the caller's, of which none was started.
    fn idle(extra: usize) -> Self {
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            round: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            asleep: (0..extra).map(|_| AtomicBool::new(false)).collect(),
            spaces: (0..=extra).map(|_| UnsafeCell::new(Workspace::default())).collect(),
        });
        Self { shared, workers: Vec::new(), caller: Mutex::new(()) }
    }

    /// How many threads run a job.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(t, parts, workspace)` for each `t` in `0..tasks`; parts are those of task `t`. `work` is that of all
    /// tasks, in elements.
    pub(super) fn run<const N: usize>(
        &self,
        work: usize,
        tasks: usize,
        outputs: [Cut<'_>; N],
        task: impl Fn(usize, [&mut [f32]; N], &mut Workspace) + Sync,
    ) {
        let _caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
        self.share(work, tasks, |thread, t| {
            // SAFETY: thread `thread` alone runs this with this index during a round, and the holder of `caller`
            // is thread 0.
            let workspace = unsafe { &mut *self.shared.spaces[thread].get() };
            // SAFETY: every `t` comes once.
            task(t, std::array::from_fn(|i| unsafe { outputs[i].part(t) }), workspace);
        });
        self.shared.level();
    }

    /// Fills memory: `fill(t, part)` gets elements `t * each ..`, at most `each`. *Blocks* until it is full, and while another thread
    /// has the pool. Little memory is filled by the caller alone.
    ///
    /// *Panics* if `each` is 0, and if a task does.
    pub fn fill<T: Send>(&self, memory: &mut [T], each: usize, fill: impl Fn(usize, &mut [T]) + Sync) {
        let (bytes, tasks) = (size_of_val(memory), memory.len().div_ceil(each));
        let memory = Cut::new(memory, each);
        let _caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
        // A core copies a byte in the time in which it computes something of an element.
        // SAFETY: every `t` comes once.
        self.share(bytes, tasks, |_, t| fill(t, unsafe { memory.part(t) }));
    }

    /// Runs `task(thread, t)` once for each `t` in `0..tasks`, by the holder of `caller`.
    fn share(&self, work: usize, tasks: usize, task: impl Fn(usize, usize) + Sync) {
        let next = AtomicUsize::new(0);
        let on_thread = |thread: usize| {
            loop {
                let t = next.fetch_add(1, Ordering::Relaxed);
                if t >= tasks {
                    break;
                }
                task(thread, t);
            }
        };
        if tasks <= 1 || work < FORK || self.workers.is_empty() {
            on_thread(0);
        } else {
            self.fork(&on_thread);
        }
    }

    /// Runs `job` on every thread and waits for all, also when one panics.
    fn fork(&self, job: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: no worker is busy, so nobody reads `job`; the pointer outlives the round because this function
        // returns or unwinds only after `busy` has come back to 0.
        unsafe {
            *shared.job.get() = Some(std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const Job>(job))
        };
        shared.busy.store(self.workers.len(), Ordering::Relaxed);
        shared.round.fetch_add(1, Ordering::SeqCst);
        for (asleep, worker) in shared.asleep.iter().zip(&self.workers) {
            if asleep.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        let mut spins = 0u32;
        while shared.busy.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!panicked, "a kernel panicked on another thread");
    }
}

impl Shared {
    /// Makes all workspaces as large as the largest. Which thread meets a shape first is left to chance; with this no
    /// thread that meets it later allocates. To be called between two rounds only.
    fn level(&self) {
        for pair in self.spaces.windows(2).chain(self.spaces.windows(2).rev()) {
            // SAFETY: between two rounds no worker touches its workspace, and the caller is the only thread here; the
            // two are different cells.
            let (left, right) = unsafe { (&mut *pair[0].get(), &mut *pair[1].get()) };
            right.grow_like(left);
            left.grow_like(right);
        }
    }

    /// The life of a worker.
    fn work(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_round(worker, seen);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: written before `round` was raised and not again before this worker leaves `busy`.
            let job = unsafe { (*self.job.get()).map(|job| &*job) };
            if catch_unwind(AssertUnwindSafe(|| job.map(|job| job(worker)))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.busy.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until the round is another than `seen`.
    ///
    /// No wake-up is lost: (1) the worker says that it sleeps, (2) looks at the round once more, (3) parks. The caller
    /// raises the round, then looks who sleeps. Either it sees (1) and unparks, or (2) sees the new round.
    fn wait_for_round(&self, worker: usize, seen: u64) -> u64 {
        for _ in 0..SPINS {
            let round = self.round.load(Ordering::Acquire);
            if round != seen {
                return round;
            }
            std::hint::spin_loop();
        }
        let asleep = &self.asleep[worker - 1];
        asleep.store(true, Ordering::SeqCst);
        loop {
            let round = self.round.load(Ordering::SeqCst);
            if round != seen {
                asleep.store(false, Ordering::Relaxed);
                return round;
            }
            std::thread::park();
        }
    }
}

impl Default for Pool {
    /// The caller's thread alone.
    fn default() -> Self {
        Self::idle(0)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.round.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its jobs, so there is none to pass on.
            let _ = worker.join();
        }
    }
}

/// Elements that one task of a point-wise kernel takes.
pub(super) const CHUNK: usize = 1 << 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_and_gets_its_part() {
        for threads in 1..=4 {
            let pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 7, 64] {
                let mut out = vec![0.0; tasks * 3];
                pool.run(FORK, tasks, [Cut::new(&mut out, 3)], |t, [part], _| {
                    part.iter_mut().for_each(|v| *v += t as f32 + 1.0);
                });
                let wanted: Vec<f32> = (0..tasks * 3).map(|i| (i / 3) as f32 + 1.0).collect();
                assert_eq!(out, wanted);
            }
        }
    }

    #[test]
    fn the_last_part_is_shorter() {
        let pool = Pool::new(2).unwrap();
        let mut out = vec![0.0; 7];
        pool.run(FORK, 3, [Cut::new(&mut out, 3)], |_, [part], _| {
            let len = part.len() as f32;
            part.fill(len);
        });
        assert_eq!(out, [3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 1.0]);
    }

    #[test]
    fn memory_is_filled_part_by_part() {
        for (threads, len) in [(1, 10), (3, 10), (3, FORK + 5), (4, 0)] {
            let mut bytes = vec![0u8; len];
            Pool::new(threads).unwrap().fill(&mut bytes, 4, |t, part| part.fill(t as u8));
            let wanted: Vec<u8> = (0..len).map(|i| (i / 4) as u8).collect();
            assert!(bytes == wanted, "{len} bytes on {threads} threads");
        }
    }

    #[test]
    fn a_panic_of_a_task_reaches_the_caller_and_the_pool_still_works() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..8 {
            let run = catch_unwind(AssertUnwindSafe(|| pool.run(FORK, 8, [], |t, [], _| assert_ne!(t, bad))));
            assert!(run.is_err());
        }
        let mut out = vec![0.0; 8];
        pool.run(FORK, 8, [Cut::new(&mut out, 1)], |_, [part], _| part[0] = 1.0);
        assert_eq!(out, [1.0; 8]);
    }
}
