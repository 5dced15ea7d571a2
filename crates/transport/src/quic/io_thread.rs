//! The thread on which a process's links live: a current-thread tokio runtime of its own.
//!
//! The compute thread computes for long, and packets must be acknowledged meanwhile. But while it waits for the links it runs
//! their tasks itself ([`Lender`]): a frame is then used where it arrived and sent where it was filled, without a wake-up and
//! out of the same cache. This file does not know what the tasks do.
//!
//! 1. The thread runs the tasks until somebody asks for them, and then waits until all who asked have given them back.
//! 2. Whoever asks waits for what it wants as for any future; the runtime lets one thread at a time run the tasks, and when
//!    that one stops another goes on.

use std::future::Future;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;

/// A thread that runs tasks until it is dropped; then the tasks end where they stand, or with whoever runs them just then.
#[derive(Debug)]
pub struct IoThread {
    handle: Handle,
    tasks: Weak<Tasks>,
    lending: Arc<Lending>,
    thread: Option<JoinHandle<()>>,
}

/// The tasks. The thread owns them, and borrowers for as long as they run them.
#[derive(Debug)]
struct Tasks(Runtime);

/// Where the thread hears what others want of it.
#[derive(Debug, Default)]
struct Lending {
    wanted: Mutex<Wanted>,
    /// Wakes the thread while others run the tasks.
    returned: Condvar,
    /// Wakes the thread while it runs them.
    asked: Notify,
}

#[derive(Debug, Default)]
struct Wanted {
    /// Threads that want to run the tasks.
    borrowers: usize,
    stop: bool,
}

impl Wanted {
    fn is_lent(&self) -> bool {
        self.borrowers > 0 && !self.stop
    }
}

impl Lending {
    /// A thread that panicked holding the lock left nothing half done: each critical section is one assignment.
    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of the thread.
    fn serve(&self, tasks: &Tasks) {
        while !self.lock().stop {
            tasks.0.block_on(self.wait_until_wanted());
            let lent = self.returned.wait_while(self.lock(), |wanted| wanted.is_lent());
            drop(lent.unwrap_or_else(PoisonError::into_inner));
        }
    }

    async fn wait_until_wanted(&self) {
        let wanted = || {
            let wanted = self.lock();
            wanted.stop || wanted.borrowers > 0
        };
        while !wanted() {
            self.asked.notified().await;
        }
    }
}

/// Lets a thread that waits for the tasks of an [`IoThread`] run them itself meanwhile.
#[derive(Clone, Debug)]
pub struct Lender {
    tasks: Weak<Tasks>,
    lending: Arc<Lending>,
}

impl Lender {
    /// Asks for the tasks; none if they have ended.
    pub(super) fn borrow(&self) -> Option<Borrowed> {
        let tasks = self.tasks.upgrade()?;
        self.lending.lock().borrowers += 1;
        self.lending.asked.notify_one();
        Some(Borrowed { tasks, lending: self.lending.clone() })
    }
}

/// The tasks in the hands of another thread, which should run them or give them back soon: nobody else does.
#[derive(Debug)]
pub(super) struct Borrowed {
    tasks: Arc<Tasks>,
    lending: Arc<Lending>,
}

impl Borrowed {
    /// Runs the tasks until `done` is. *Panics* on a thread of a runtime.
    pub fn run_until<F: Future>(&self, done: F) -> F::Output {
        self.tasks.0.block_on(done)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.lending.lock().borrowers -= 1;
        self.lending.returned.notify_one();
    }
}

impl IoThread {
    /// Starts it. *Errors*: what the system says when it has no thread or no event queue left.
    pub fn start(name: &str) -> io::Result<Self> {
        let lending = Arc::new(Lending::default());
        let own = lending.clone();
        let (tell, told) = mpsc::channel();
        let run = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                // Nobody to tell means nobody waits for this thread.
                Err(error) => return drop(tell.send(Err(error))),
            };
            let tasks = Arc::new(Tasks(runtime));
            drop(tell.send(Ok((tasks.0.handle().clone(), Arc::downgrade(&tasks)))));
            drop(tell);
            own.serve(&tasks);
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        let (handle, tasks) =
            told.recv().map_err(|_| io::Error::other("the thread of the links ended"))??;
        Ok(Self { handle, tasks, lending, thread: Some(thread) })
    }

    /// Runs `future` on the thread. *Blocks* until it is done. *Panics* if it panics, or inside an asynchronous task.
    pub fn run<F>(&self, future: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        run_on(&self.handle, future)
    }

    /// For threads that wait for what the tasks do, and run them themselves meanwhile.
    #[must_use]
    pub fn lender(&self) -> Lender {
        Lender { tasks: self.tasks.clone(), lending: self.lending.clone() }
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
        self.lending.lock().stop = true;
        self.lending.asked.notify_one();
        self.lending.returned.notify_one();
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

    #[test]
    fn who_waits_for_the_tasks_runs_them_and_then_the_thread_does_again() {
        let io = IoThread::start("links-test").expect("a thread");
        let place = || io.handle().spawn(async { std::thread::current().id() });
        let own = io.run(async { std::thread::current().id() });
        for _ in 0..100 {
            let borrowed = io.lender().borrow().expect("it lives");
            // The thread gives the tasks up at its next look, and may run a few of them before that.
            while borrowed.run_until(place()).expect("no panic") == own {}
            let here = borrowed.run_until(place()).expect("no panic");
            assert_eq!(here, std::thread::current().id(), "the thread took its tasks back");
            drop(borrowed);
            assert_eq!(io.run(async { std::thread::current().id() }), own);
        }
    }

    #[test]
    fn several_threads_that_wait_at_once_all_get_what_they_wait_for() {
        let io = IoThread::start("links-test").expect("a thread");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..200 {
                        let borrowed = io.lender().borrow().expect("it lives");
                        let task = io.handle().spawn(async move {
                            tokio::task::yield_now().await;
                            turn
                        });
                        assert_eq!(borrowed.run_until(task).expect("no panic"), turn);
                    }
                });
            }
        });
        assert_eq!(io.run(async { 7 }), 7, "the thread has its tasks back");
    }

    #[test]
    fn a_thread_that_is_dropped_while_its_tasks_are_lent_leaves_them_to_the_borrower() {
        let io = IoThread::start("links-test").expect("a thread");
        let (lender, handle) = (io.lender(), io.handle().clone());
        let borrowed = lender.borrow().expect("it lives");
        drop(io);
        assert_eq!(borrowed.run_until(handle.spawn(async { 7 })).expect("no panic"), 7);
        drop(borrowed);
        assert!(lender.borrow().is_none(), "the tasks have ended");
    }
}
