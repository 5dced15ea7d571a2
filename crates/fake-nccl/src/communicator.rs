//! One rank of a communicator: how it comes to be, what it is busy with, and how it ends.
//!
//! Handles are numbers and no addresses, so a handle that was freed is refused and never followed.

use crate::engine::{self, End};
use crate::last_error::{Failure, note};
use crate::operation::Operation;
use crate::queue;
use crate::segment::{MOST_RANKS, Segment};
use crate::stand;
use nccl_sys::{HostStream, ncclComm_t, ncclResult_t, ncclUniqueId};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// All communicators of this process, by handle.
static LIVE: Mutex<BTreeMap<usize, Arc<Communicator>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

/// What a communicator is doing that its caller must wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    Joining,
    /// The caller was told `ncclInProgress` and has not asked since.
    Posting,
    Finalizing,
}

#[derive(Debug, Default)]
struct Life {
    busy: Option<Busy>,
    error: Option<Failure>,
    finalized: bool,
    /// Groups that no stream has passed yet.
    queued: usize,
    /// Groups that move bytes right now.
    running: usize,
    /// Groups ever.
    groups: u64,
}

pub(crate) struct Communicator {
    pub rank: usize,
    pub world: usize,
    pub blocking: bool,
    segment: OnceLock<Segment>,
    /// Nothing may move any more: aborted or destroyed.
    stopped: AtomicBool,
    life: Mutex<Life>,
    changed: Condvar,
    /// One group at a time moves bytes, even if there are two streams.
    engine: Mutex<()>,
}

/// A number from the environment, for tests that hurt.
pub(crate) fn knob(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Work that a stream passes on to a communicator.
struct Job {
    communicator: Arc<Communicator>,
    operations: Vec<Operation>,
    fails: bool,
    stands: bool,
}

/// What a call does while its work is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// It waits.
    Block,
    /// It returns, and the caller polls.
    Return,
}

impl Communicator {
    /// Makes one that is about to join, and its handle.
    pub fn make(rank: usize, world: usize, calls: Calls) -> Result<(ncclComm_t, Arc<Self>), Failure> {
        if world == 0 || world > MOST_RANKS || rank >= world {
            return Err(Failure::argument(format!(
                "there is no rank {rank} of {world}, at most {MOST_RANKS}"
            )));
        }
        let communicator = Arc::new(Self {
            rank,
            world,
            blocking: calls == Calls::Block,
            segment: OnceLock::new(),
            stopped: AtomicBool::new(false),
            life: Mutex::new(Life { busy: Some(Busy::Joining), ..Life::default() }),
            changed: Condvar::new(),
            engine: Mutex::new(()),
        });
        let handle = NEXT.fetch_add(1, Ordering::Relaxed) as usize * 64;
        live().insert(handle, communicator.clone());
        Ok((handle as ncclComm_t, communicator))
    }

    /// The one with this handle. *Errors*: there is none, or none any more.
    pub fn find(handle: ncclComm_t) -> Result<Arc<Self>, Failure> {
        let gone = || Failure::argument(format!("{handle:?} is no communicator, or none any more"));
        live().get(&(handle as usize)).cloned().ok_or_else(gone)
    }

    /// Frees a handle.
    pub fn forget(handle: ncclComm_t) {
        live().remove(&(handle as usize));
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// The memory in which the ranks meet. *Errors*: it has not joined.
    pub fn segment(&self) -> Result<&Segment, Failure> {
        self.segment.get().ok_or_else(|| Failure::usage("the communicator has not joined"))
    }

    /// Meets the other ranks. *Blocks* until all are there, or it is stopped.
    pub fn join(&self, id: &ncclUniqueId) -> Result<(), Failure> {
        let result = Segment::open(id, self.world).and_then(|segment| {
            if knob("FAKE_NCCL_FAIL_JOIN") == Some(self.rank as u64) {
                let what = "no network interface, because FAKE_NCCL_FAIL_JOIN says so";
                return Err(Failure::new(ncclResult_t::ncclSystemError, what));
            }
            segment.join(self.rank)?;
            segment.wait(self.rank, || segment.all_joined() || self.is_stopped());
            let _first = self.segment.set(segment);
            Ok(())
        });
        match &result {
            Ok(()) => self.rest(Busy::Joining),
            Err(failure) => self.fail(failure),
        }
        result
    }

    /// Does `work` at once, or on a thread of its own for a caller who does not want to block.
    pub fn perform(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<(), Failure> + Send + 'static,
    ) -> Result<ncclResult_t, Failure> {
        if self.blocking {
            return work(self).map(|()| ncclResult_t::ncclSuccess);
        }
        let it = self.clone();
        // Nobody joins it: it ends with its work or when the communicator is stopped.
        let spawned = std::thread::Builder::new().name("fake-nccl".to_owned()).spawn(move || drop(work(&it)));
        spawned.map_err(|error| Failure::system("no thread", error))?;
        Ok(ncclResult_t::ncclInProgress)
    }

    /// Keeps the first error of what happens behind the caller's back.
    pub fn fail(&self, failure: &Failure) {
        note(failure);
        self.life().error.get_or_insert_with(|| failure.clone());
        self.changed.notify_all();
    }

    /// Begins something that the caller must wait for.
    ///
    /// *Errors*: it failed, or was asked for something else and not polled since.
    pub fn take_up(&self, busy: Busy) -> Result<(), Failure> {
        let mut life = self.life();
        self.may_be_called(&life)?;
        if life.finalized {
            return Err(Failure::usage(format!("{busy:?} on a communicator that was finalized")));
        }
        life.busy = Some(busy);
        Ok(())
    }

    fn may_be_called(&self, life: &Life) -> Result<(), Failure> {
        if let Some(Failure { code, text }) = &life.error {
            return Err(Failure::new(*code, format!("the communicator has failed before: {text}")));
        }
        match life.busy {
            None => Ok(()),
            Some(busy) => Err(Failure::usage(format!(
                "called while {busy:?}: ncclCommGetAsyncError has not answered ncclSuccess since"
            ))),
        }
    }

    /// Ends what was taken up.
    pub fn rest(&self, busy: Busy) {
        let mut life = self.life();
        if life.busy == Some(busy) {
            life.busy = None;
        }
        self.changed.notify_all();
    }

    /// What `ncclCommGetAsyncError` answers.
    pub fn poll(&self) -> ncclResult_t {
        let mut life = self.life();
        if let Some(Failure { code, .. }) = life.error {
            return code;
        }
        match life.busy {
            None => return ncclResult_t::ncclSuccess,
            Some(Busy::Posting) => life.busy = None,
            Some(Busy::Finalizing) => self.see_the_others_finalize(&mut life),
            Some(Busy::Joining) => {}
        }
        match (life.busy, life.finalized) {
            (None, true) => ncclResult_t::ncclSuccess,
            _ => ncclResult_t::ncclInProgress,
        }
    }

    fn see_the_others_finalize(&self, life: &mut Life) {
        let Some(segment) = self.segment.get().filter(|_| life.queued == 0) else { return };
        if segment.control(self.rank).finalized.swap(1, Ordering::SeqCst) == 0 {
            (0..self.world).for_each(|peer| segment.ring(peer));
        }
        let is_final = |rank| segment.control(rank).finalized.load(Ordering::SeqCst) == 1;
        if (0..self.world).all(is_final) {
            life.busy = None;
            life.finalized = true;
        }
    }

    /// Puts a group on a stream.
    pub fn post(
        self: &Arc<Self>,
        operations: Vec<Operation>,
        stream: *mut HostStream,
    ) -> Result<ncclResult_t, Failure> {
        self.take_up(Busy::Posting)?;
        let (fails, stands) = {
            let mut life = self.life();
            life.queued += 1;
            life.groups += 1;
            if self.blocking {
                life.busy = None;
            }
            (knob("FAKE_NCCL_FAIL_AT") == Some(life.groups), stand::is_at(self.rank, life.groups))
        };
        let job = Job { communicator: self.clone(), operations, fails, stands };
        if stream.is_null() {
            job.run();
        } else {
            let argument = Box::into_raw(Box::new(job));
            // SAFETY: the stream is the caller's promise; the argument is what the job takes.
            if let Err(failure) = unsafe { queue::put(stream, run_job, argument.cast()) } {
                // SAFETY: no stream has it.
                drop(unsafe { Box::from_raw(argument) });
                self.life().queued -= 1;
                return Err(failure);
            }
        }
        Ok(if self.blocking { ncclResult_t::ncclSuccess } else { ncclResult_t::ncclInProgress })
    }

    /// Ends everything that moves bytes or waits, and lets nothing new begin. *Blocks* until nothing moves.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(segment) = self.segment.get() {
            segment.ring(self.rank);
        }
        let mut life = self.life();
        while life.running > 0 {
            life = self.changed.wait(life).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for all ranks' end, as a destroy without a finalize does. *Blocks*.
    pub fn finalize_and_wait(&self) {
        {
            let mut life = self.life();
            if life.finalized || life.error.is_some() || life.busy == Some(Busy::Joining) {
                return;
            }
            life.busy = Some(Busy::Finalizing);
        }
        if let Some(segment) = self.segment.get() {
            segment.wait(self.rank, || self.poll() != ncclResult_t::ncclInProgress || self.is_stopped());
        }
    }
}

fn live() -> MutexGuard<'static, BTreeMap<usize, Arc<Communicator>>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Job {
    fn run(self) {
        let Self { communicator, operations, fails, stands } = self;
        let _alone = communicator.engine.lock().unwrap_or_else(PoisonError::into_inner);
        communicator.life().running += 1;
        let result = match communicator.segment() {
            // As with a link that breaks: the code tells of it, and the work on the stream never ends by itself.
            Ok(segment) if fails => {
                communicator.fail(&Failure::new(
                    ncclResult_t::ncclRemoteError,
                    "a link broke, because FAKE_NCCL_FAIL_AT says so",
                ));
                segment.wait(communicator.rank, || communicator.is_stopped());
                Ok(End::Stopped)
            }
            Ok(segment) if stands && stand::takes_its_turn() => {
                segment.wait(communicator.rank, || communicator.is_stopped());
                Ok(End::Stopped)
            }
            // SAFETY: the operands are the caller's promise, which holds until its stream has passed this job.
            Ok(segment) if !communicator.is_stopped() => unsafe {
                engine::run(segment, communicator.rank, &operations, || communicator.is_stopped())
            },
            Ok(_) => Ok(End::Stopped),
            Err(failure) => Err(failure),
        };
        if let Err(failure) = result {
            communicator.fail(&failure);
        }
        {
            let mut life = communicator.life();
            life.running -= 1;
            life.queued -= 1;
        }
        communicator.changed.notify_all();
    }
}

/// What a stream calls.
unsafe extern "C" fn run_job(argument: *mut c_void) {
    // SAFETY: `post` made it of a box, and a stream runs each job once.
    unsafe { Box::from_raw(argument.cast::<Job>()) }.run();
}
