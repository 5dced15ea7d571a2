//! Signals while there is no run to be stopped, before one begins or behind its end: the process ends, with the exit code of an
//! interruption.
//!
//! The system ends most processes that do not handle a signal, but not the first one of a container: a host that still waits for others
//! would have to be killed there.

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag::register_conditional_shutdown;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static EARLY: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// That of [`crate::error::Kind::Interrupted`].
const INTERRUPTED: i32 = 130;

/// From now on a signal ends this process, until [`no_longer`] is called.
///
/// *Errors*: of the system.
pub fn end_with_130() -> io::Result<()> {
    if let Some(early) = EARLY.get() {
        early.store(true, Ordering::SeqCst);
        return Ok(());
    }
    let early = EARLY.get_or_init(|| Arc::new(AtomicBool::new(true)));
    for signal in [SIGINT, SIGTERM, SIGUSR1] {
        register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(early))?;
    }
    Ok(())
}

/// The run has handlers of its own now, or gets them in an instant.
pub fn no_longer() {
    if let Some(early) = EARLY.get() {
        early.store(false, Ordering::SeqCst);
    }
}
