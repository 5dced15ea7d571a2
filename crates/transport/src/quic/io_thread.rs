//! The thread on which a process's links live: a current-thread tokio runtime of its own.
//!
//! The compute thread blocks for whole collectives, and packets must be acknowledged meanwhile. It does not know what
//! runs on it.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread that runs tasks until it is dropped; then the tasks end where they stand.
#[derive(Debug)]
pub struct IoThread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IoThread {
    /// Starts it. *Errors*: what the system says when it has no thread or no event queue left.
    pub fn start(name: &str) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let run = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                // Nobody to tell means nobody waits for this thread.
                Err(error) => return drop(tell.send(Err(error))),
            };
            drop(tell.send(Ok(runtime.handle().clone())));
            drop(tell);
            // Ends when `stop` is sent or dropped.
            let _stopped = runtime.block_on(stopped);
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        let handle = told.recv().map_err(|_| io::Error::other("the thread of the links ended"))??;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs `future` on the thread. *Blocks* until it is done. *Panics* if it panics, or inside an asynchronous task.
    pub fn run<F>(&self, future: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        run_on(&self.handle, future)
    }

    /// A handle for spawning tasks.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// Runs `future` on the runtime of `handle` and waits for it from a thread that runs no tasks.
pub(super) fn run_on<F>(handle: &Handle, future: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    assert!(Handle::try_current().is_err(), "a task must not block on the thread of the links");
    let (tell, told) = mpsc::channel();
    handle.spawn(async move {
        // Nobody to tell means the caller is gone.
        drop(tell.send(future.await));
    });
    told.recv().expect("the thread of the links outlives its callers")
}

impl Drop for IoThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the thread itself.
            let _panicked = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_the_named_thread_and_ends_with_it() {
        let io = IoThread::start("links-test").expect("a thread");
        let name = io.run(async { std::thread::current().name().map(str::to_owned) });
        assert_eq!(name.as_deref(), Some("links-test"));
        let (held, gone) = mpsc::channel::<()>();
        io.handle().spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        drop(io);
        assert_eq!(gone.recv(), Err(mpsc::RecvError), "the task outlived its thread");
    }
}
