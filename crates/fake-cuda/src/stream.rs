//! A stream: a queue of work with a thread of its own.

use crate::codes::{Code, SUCCESS};
use crate::knobs::lazy;
use crate::world::Device;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) type Work = Box<dyn FnOnce() -> Code + Send>;

enum Job {
    Work(Work),
    /// Waits until another stream has done so much.
    Wait(Arc<Stream>, u64),
}

struct State {
    jobs: VecDeque<Job>,
    /// Jobs that were given, that are done, that somebody waits for.
    given: u64,
    done: u64,
    wanted: u64,
    closing: bool,
}

pub(crate) struct Stream {
    pub device: &'static Device,
    /// Works only when somebody waits.
    lazy: bool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Stream {
    /// Starts one, lazy if the knob says so. Nothing if there is no thread.
    pub fn start(device: &'static Device) -> Option<Arc<Self>> {
        let lazy = lazy();
        let state = State { jobs: VecDeque::new(), given: 0, done: 0, wanted: 0, closing: false };
        let stream = Arc::new(Self { device, lazy, state: Mutex::new(state), changed: Condvar::new() });
        let thread = std::thread::Builder::new().name("fake-cuda-stream".to_owned());
        let own = stream.clone();
        thread.spawn(move || own.live()).ok()?;
        Some(stream)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Works jobs off until the stream is closed and empty.
    fn live(&self) {
        let mut state = self.lock();
        loop {
            let may = !self.lazy || state.closing || state.done < state.wanted;
            match state.jobs.pop_front() {
                Some(job) if may => {
                    drop(state);
                    self.run(job);
                    state = self.lock();
                    state.done += 1;
                    self.changed.notify_all();
                }
                Some(job) => {
                    state.jobs.push_front(job);
                    state = self.wait(state);
                }
                None if state.closing => return,
                None => state = self.wait(state),
            }
        }
    }

    /// What comes after a failure is not done.
    fn run(&self, job: Job) {
        match job {
            Job::Wait(other, upto) => other.reach(upto),
            Job::Work(work) if self.device.failure() == SUCCESS => match work() {
                SUCCESS => {}
                code => self.device.fail(code),
            },
            Job::Work(_) => {}
        }
    }

    fn put(&self, job: Job) {
        let mut state = self.lock();
        state.jobs.push_back(job);
        state.given += 1;
        self.changed.notify_all();
    }

    pub fn give(&self, work: Work) {
        self.put(Job::Work(work));
    }

    /// Everything given from now on comes after what `other` was given up to there.
    pub fn give_wait(&self, other: Arc<Stream>, upto: u64) {
        self.put(Job::Wait(other, upto));
    }

    /// How much it was given so far.
    pub fn given(&self) -> u64 {
        self.lock().given
    }

    /// Somebody waits for so much: whether it is done.
    pub fn want(&self, upto: u64) -> bool {
        let mut state = self.lock();
        state.wanted = state.wanted.max(upto);
        self.changed.notify_all();
        state.done >= upto
    }

    /// *Blocks* until so much is done.
    pub fn reach(&self, upto: u64) {
        let _done = self.want(upto);
        let mut state = self.lock();
        while state.done < upto {
            state = self.wait(state);
        }
    }

    /// *Blocks* until all that was given so far is done.
    pub fn finish(&self) {
        self.reach(self.given());
    }

    /// Its thread ends when the queue is empty.
    pub fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }
}
