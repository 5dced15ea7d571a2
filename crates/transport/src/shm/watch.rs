//! A thread that waits for the abort of a generation, for a rank that waits for something else than its peers here.
//!
//! A rank that sleeps in a transport does not look at the arena's abort word, and the process that aborts cannot reach
//! into that transport. This thread sleeps on the abort bell and calls the transport's waker. It does not know what it
//! wakes.

use super::abort::ShmAbort;
use super::bell::ring;
use dtrain_collective::Waker;
use rustix::thread::futex::{self, Timespec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The longest sleep before the abort word is read again, in case the bell's ringer died between word and bell.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Calls a waker once its generation is aborted; ends with its owner.
#[derive(Debug)]
pub(crate) struct AbortWatch {
    abort: Arc<ShmAbort>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl AbortWatch {
    /// Starts the thread. *Errors*: the kernel's, when it has no thread to give.
    pub fn start(abort: Arc<ShmAbort>, wake: Waker) -> std::io::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let (seen, ended) = (abort.clone(), over.clone());
        let watch = move || {
            let bell = seen.mapping().abort_bell();
            loop {
                // Read before the words that it announces, so that a ring between the look and the sleep ends the sleep.
                let rung = bell.load(Ordering::SeqCst);
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                if seen.check().is_err() {
                    return wake();
                }
                // Any answer, a signal or a timeout too, means: look again.
                let _woken = futex::wait(bell, futex::Flags::empty(), rung, Some(&NAP));
            }
        };
        let thread = std::thread::Builder::new().name("abort-watch".into()).spawn(watch)?;
        Ok(Self { abort, over, thread: Some(thread) })
    }
}

impl Drop for AbortWatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        ring(self.abort.mapping().abort_bell());
        if let Some(thread) = self.thread.take() {
            // It cannot panic, and if it did there would be nothing to undo.
            let _ended = thread.join();
        }
    }
}
