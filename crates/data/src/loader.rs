//! Reads a rank's micro-batches ahead of the compute thread.
//!
//! Workers take micro-batches in the order of the run, one buffer each, and put them back at their ticket's place;
//! the consumer takes the tickets in order. So the number of workers changes when a batch is ready, never which
//! batch is next or what is in it.
//!
//! The loader does not know generations: a rank whose range changes drops it and starts another.

use crate::{Batch, DataError, Feed};
use dtrain_types::{MicroBatch, MicroRange, Step};
use std::any::Any;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// How many micro-batches may lie ready or be in work for each worker at least. Two let a worker go on while its last
/// batch waits.
pub const QUEUE_PER_WORKER: usize = 2;

/// Which micro-batches a rank computes, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderPlan {
    /// The rank's micro-batches of every step; those that a short step lacks are skipped.
    pub range: MicroRange,
    /// Of them every so-manieth, from the first; at least 1.
    pub every: u32,
    /// The first step.
    pub from: Step,
    /// The last step; `None` is "until dropped".
    pub until: Option<Step>,
}

/// The micro-batches of one rank, in order, read ahead.
pub struct Loader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    feed: Feed,
    state: Mutex<State>,
    /// Workers wait here for a buffer, room in the queue, or the end.
    work: Condvar,
    /// The consumer waits here for its ticket.
    ready: Condvar,
}

struct State {
    share: LoaderPlan,
    /// The next micro-batch to be taken by a worker, if there is one.
    next: Option<(Step, MicroBatch)>,
    /// Tickets taken by workers so far.
    taken: u64,
    /// Tickets handed to the consumer so far.
    given: u64,
    /// Finished tickets, at `ticket % queue.len()`. At most `queue.len()` tickets are between `given` and `taken`.
    queue: Vec<Option<Result<Batch, DataError>>>,
    free: Vec<Batch>,
    stopping: bool,
    /// A read has failed: no further ticket is taken.
    failed: bool,
    /// The consumer has been told so: later tickets that were already in work are not handed out.
    failure_told: bool,
}

/// What a worker does next.
struct Job {
    ticket: u64,
    step: Step,
    micro_batch: MicroBatch,
    batch: Batch,
}

impl Loader {
    /// Starts `workers` threads that read ahead; with 0 each batch is read when it is asked for.
    ///
    /// *Errors*: a thread cannot be started. *Panics* if `share.from` is 0, the state before the first step.
    pub fn start(feed: Feed, share: LoaderPlan, workers: usize) -> Result<Self, DataError> {
        Self::reading_ahead(feed, share, workers, 1)
    }

    /// The same for a consumer that takes `group` micro-batches at a stretch and then none for a while: so many may lie
    /// ready, however few the workers are.
    ///
    /// *Errors* and *panics*: as [`Loader::start`].
    pub fn reading_ahead(
        feed: Feed,
        share: LoaderPlan,
        workers: usize,
        group: usize,
    ) -> Result<Self, DataError> {
        // Without a worker nothing is read ahead.
        let depth = if workers == 0 { 1 } else { (workers * QUEUE_PER_WORKER).max(group) };
        // One more than the queue holds, for the batch that the consumer is computing on.
        let free = (0..=depth).map(|_| feed.batch()).collect();
        let state = State {
            share,
            next: first_at(&feed, &share, share.from),
            taken: 0,
            given: 0,
            queue: (0..depth).map(|_| None).collect(),
            free,
            stopping: false,
            failed: false,
            failure_told: false,
        };
        let shared =
            Arc::new(Shared { feed, state: Mutex::new(state), work: Condvar::new(), ready: Condvar::new() });
        // Made before the threads: if one cannot start, dropping it stops and joins the others.
        let mut loader = Self { shared, threads: Vec::with_capacity(workers) };
        for worker in 0..workers {
            let shared = Arc::clone(&loader.shared);
            let thread = std::thread::Builder::new()
                .name(format!("data-{worker}"))
                .spawn(move || shared.work())
                .map_err(|source| DataError::Thread { source })?;
            loader.threads.push(thread);
        }
        Ok(loader)
    }

    /// The next micro-batch of this rank if it has been read; `None` where it has not, where its read failed, and after the last
    /// one: [`Loader::next_batch`] knows which. Without a worker nothing is read ahead.
    pub fn ready_batch(&mut self) -> Option<LoanedBatch> {
        let mut state = self.shared.lock();
        let place = (state.given % state.queue.len() as u64) as usize;
        let batch = state.queue[place].take_if(|done| done.is_ok())?.ok();
        state.given += 1;
        drop(state);
        self.shared.work.notify_one();
        Some(LoanedBatch { batch, home: Arc::clone(&self.shared) })
    }

    /// The next micro-batch of this rank; `None` after the last one.
    ///
    /// Dropping the loan gives its buffers back. Holding several loans is allowed: each one more than the queue was
    /// made for costs one more buffer.
    ///
    /// *Errors*: the first error that a read met, in the order of the run, then [`DataError::LoaderStopped`].
    /// *Blocks* until the batch has been read.
    pub fn next_batch(&mut self) -> Result<Option<LoanedBatch>, DataError> {
        let mut state = self.shared.lock();
        loop {
            if state.failure_told {
                return Err(DataError::LoaderStopped);
            }
            let place = (state.given % state.queue.len() as u64) as usize;
            if let Some(done) = state.queue[place].take() {
                state.given += 1;
                state.failure_told = done.is_err();
                drop(state);
                self.shared.work.notify_one();
                return done
                    .map(|batch| Some(LoanedBatch { batch: Some(batch), home: Arc::clone(&self.shared) }));
            }
            if state.given == state.taken {
                if state.next.is_none() {
                    return Ok(None);
                }
                // Nothing is in work, and nothing could be if the consumer held every buffer.
                if state.free.is_empty() {
                    state.free.push(self.shared.feed.batch());
                    self.shared.work.notify_one();
                }
            }
            if self.threads.is_empty() {
                let job = state.take_job(&self.shared.feed).expect("a free buffer and an empty queue");
                drop(state);
                self.shared.run(job);
                state = self.shared.lock();
            } else {
                state = self.shared.ready.wait(state).expect("no thread panics while it holds the state");
            }
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A worker catches the panics of a data set, so there is no other outcome to tell.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the state")
    }

    /// A worker's life: take the next micro-batch with a buffer, read it, put it at its place.
    fn work(&self) {
        let mut state = self.lock();
        while !state.stopping {
            match state.take_job(&self.feed) {
                Some(job) => {
                    drop(state);
                    self.run(job);
                    state = self.lock();
                }
                None => state = self.work.wait(state).expect("no thread panics while it holds the state"),
            }
        }
    }

    fn run(&self, mut job: Job) {
        // A data set may be the user's code: its panic must reach the consumer as an error, or it would wait forever.
        let read = catch_unwind(AssertUnwindSafe(|| {
            self.feed.read_micro_batch(job.step, job.micro_batch, &mut job.batch)
        }))
        .unwrap_or_else(|panic| {
            Err(DataError::ReadPanicked {
                step: job.step,
                micro_batch: job.micro_batch,
                message: panic_message(&*panic),
            })
        });
        let mut state = self.lock();
        let place = (job.ticket % state.queue.len() as u64) as usize;
        debug_assert!(state.queue[place].is_none(), "ticket {} has its place to itself", job.ticket);
        state.queue[place] = Some(match read {
            Ok(()) => Ok(job.batch),
            Err(error) => {
                state.failed = true;
                state.free.push(job.batch);
                Err(error)
            }
        });
        drop(state);
        self.ready.notify_one();
    }
}

impl State {
    /// Takes the next micro-batch together with a buffer, so that every ticket taken can be finished.
    fn take_job(&mut self, feed: &Feed) -> Option<Job> {
        let room = self.taken - self.given < self.queue.len() as u64;
        let (step, micro_batch) = self.next.filter(|_| room && !self.failed && !self.stopping)?;
        let batch = self.free.pop()?;
        let ticket = self.taken;
        self.taken += 1;
        self.next = after(feed, &self.share, step, micro_batch);
        Some(Job { ticket, step, micro_batch, batch })
    }
}

/// The first micro-batch of the share in `step` or later.
///
/// Only the last step of an epoch is short, and the step after it begins an epoch. So if neither this step nor the
/// next holds any of the range, every step is as short as these and none ever will.
fn first_at(feed: &Feed, share: &LoaderPlan, step: Step) -> Option<(Step, MicroBatch)> {
    let plan = feed.plan();
    let within = |step: &Step| share.until.is_none_or(|last| *step <= last);
    [step, step.next()]
        .into_iter()
        .take_while(within)
        .find(|step| share.range.lo < share.range.hi.min(plan.step(*step).micro_batches))
        .map(|step| (step, MicroBatch(share.range.lo)))
}

/// The micro-batch of the share that follows this one.
fn after(feed: &Feed, share: &LoaderPlan, step: Step, micro_batch: MicroBatch) -> Option<(Step, MicroBatch)> {
    let next = MicroBatch(micro_batch.0 + share.every);
    let end = share.range.hi.min(feed.plan().step(step).micro_batches);
    if next.0 < end { Some((step, next)) } else { first_at(feed, share, step.next()) }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

/// A micro-batch on loan from the loader; dropping it gives the buffers back.
pub struct LoanedBatch {
    /// Taken only by `drop`.
    batch: Option<Batch>,
    home: Arc<Shared>,
}

impl LoanedBatch {
    /// Gives the buffers back to the loader; the same as dropping the loan.
    pub fn recycle(self) {}
}

impl Deref for LoanedBatch {
    type Target = Batch;
    fn deref(&self) -> &Batch {
        self.batch.as_ref().expect("a loan holds its batch until it is dropped")
    }
}

impl Drop for LoanedBatch {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.home.lock().free.push(batch);
            self.home.work.notify_one();
        }
    }
}
