//! The thread that aborts a communicator, whatever its owner is doing.
//!
//! `ncclCommAbort` may take long or never come back, and whoever asks for an abort must not be held up by it. So one
//! thread a communicator sleeps until it is asked, aborts, and tells who waits with a deadline. If the library is stuck,
//! the thread stays behind with it: there is no way to end it but the end of the process.

use crate::NcclError;
use crate::pause::Deadline;
use crate::shared::Shared;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Asked,
    /// The communicator is gone: aborted, or destroyed in order.
    Over,
}

struct Post {
    state: Mutex<State>,
    changed: Condvar,
}

impl Post {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.state() = state;
        self.changed.notify_all();
    }

    fn wait_while(&self, state: State, deadline: Option<Deadline>) -> bool {
        let mut now = self.state();
        while *now == state {
            now = match deadline {
                None => self.changed.wait(now).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) if deadline.is_over() => return false,
                Some(deadline) => {
                    let waited = self.changed.wait_timeout(now, deadline.left());
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }
}

/// Stops a communicator from any thread. It does not keep it alive.
#[derive(Clone)]
pub struct CommunicatorAborter {
    shared: Arc<Shared>,
    post: Arc<Post>,
}

impl CommunicatorAborter {
    /// Asks for the abort and returns at once. From here on every call on the communicator is an error; the first reason
    /// stays. What it was doing ends on the device as soon as the library gets to it.
    pub fn abort(&self, reason: &str) {
        self.shared.flag.set(reason);
        let mut state = self.post.state();
        if *state == State::Waiting {
            *state = State::Asked;
            self.post.changed.notify_all();
        }
    }

    /// Waits for the end of an abort that was asked for. *Blocks* at most `within`.
    ///
    /// *Errors*: [`NcclError::Stuck`].
    pub fn wait(&self, within: Duration) -> Result<(), NcclError> {
        match self.post.wait_while(State::Asked, Some(Deadline::after(within))) {
            true => Ok(()),
            false => Err(NcclError::Stuck { within }),
        }
    }
}

impl std::fmt::Debug for CommunicatorAborter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CommunicatorAborter")
    }
}

/// A communicator's handle with its abort thread; dropping it aborts.
pub(crate) struct Owned {
    pub shared: Arc<Shared>,
    post: Arc<Post>,
    thread: Option<JoinHandle<()>>,
}

/// How long a drop waits for its abort before it leaves the thread behind.
const GRACE: Duration = Duration::from_secs(2);

impl Owned {
    /// Takes over a communicator. *Errors*: [`NcclError::NoThread`]; then it stays as it is.
    pub fn new(shared: Shared) -> Result<Self, NcclError> {
        let shared = Arc::new(shared);
        let post = Arc::new(Post { state: Mutex::new(State::Waiting), changed: Condvar::new() });
        let (its_shared, its_post) = (shared.clone(), post.clone());
        let work = move || {
            its_post.wait_while(State::Waiting, None);
            if *its_post.state() == State::Asked {
                abort(&its_shared);
                its_post.set(State::Over);
            }
        };
        let thread = std::thread::Builder::new().name("nccl-abort".to_owned()).spawn(work);
        let thread = thread.map_err(|error| NcclError::NoThread { what: error.to_string() })?;
        Ok(Self { shared, post, thread: Some(thread) })
    }

    pub fn aborter(&self) -> CommunicatorAborter {
        CommunicatorAborter { shared: self.shared.clone(), post: self.post.clone() }
    }

    /// Lets go of an abort that does not end, so that a drop does not wait for it once more.
    pub fn leave(mut self) {
        self.thread = None;
    }

    /// Notes that the communicator was destroyed in order: there is nothing to abort.
    pub fn is_destroyed(&self) {
        self.post.set(State::Over);
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let aborter = self.aborter();
        aborter.abort("its owner dropped it");
        let Some(thread) = self.thread.take() else { return };
        match aborter.wait(GRACE) {
            // It has done all that it does, and a panic in it would leave nothing to undo.
            Ok(()) => drop(thread.join()),
            Err(error) => tracing::warn!("a communicator is left behind: {error}"),
        }
    }
}

fn abort(shared: &Shared) {
    let Some(handle) = shared.take() else { return };
    let nccl = shared.library().raw();
    // SAFETY: the handle was taken out under the lock, so nobody else calls on it now or later.
    let code = unsafe { nccl.ncclCommAbort(handle.0) };
    // Freed or not, the handle is of no use any more; the reason is worth a line.
    if let Err(error) = shared.library().check("ncclCommAbort", code, std::ptr::null_mut()) {
        tracing::warn!("{error}");
    }
}
