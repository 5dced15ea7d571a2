//! How a rank waits for a word that another process changes: poll, then yield, then sleep, and never for a dead peer.
//!
//! It does not know what the word means.

use super::abort::ShmAbort;
use crate::shm::bell::Bell;
use dtrain_collective::CollectiveError;
use rustix::thread::futex::{self, Timespec};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long to poll before the first yield, when every rank has a core: half a futex round trip.
///
/// A time and not a count: a polite poll takes 40 cycles on one processor and 140 on another, and while the core of a rank
/// is somebody else's for a moment, all polling is lost.
const SPIN: Duration = Duration::from_micros(20);
/// Polls between two looks at the clock: about a microsecond.
const POLLS: u32 = 16;
/// Yields between two looks at the clock: with more ranks than cores a yield lets the peer that we wait for run.
const YIELDS: u32 = 16;
/// How long to yield before sleeping. Where each rank has a core, a little: whoever is later than [`SPIN`] is late for a reason.
/// Where ranks share cores, for as long as a peer on this core adds up a large chunk: to be woken costs more than to be asked.
/// There anything from 20 us to 2 ms was equally fast on an idle machine; without a yield 4 KiB took three times as long.
const YIELDING: Duration = Duration::from_micros(50);
const YIELDING_WHERE_SHARED: Duration = Duration::from_millis(2);
/// The longest sleep before the abort word is read again, in case the wake-up died with its sender.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// How the ranks of a host are spread over its cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cores {
    /// Every rank has one, and polling costs nobody anything.
    OneEach,
    /// Some share one.
    Shared,
}

/// *Blocks* until `come` says so. It must read its word with `SeqCst`, and whoever changes the word answers `bell`.
///
/// *Errors*: `Aborted`, and those of `come`.
pub(super) fn wait_until(
    cores: Cores,
    abort: &ShmAbort,
    bell: &Bell,
    come: impl Fn() -> Result<bool, CollectiveError>,
) -> Result<(), CollectiveError> {
    if come()? || cores == Cores::OneEach && spin(&come)? {
        return Ok(());
    }
    abort.check()?;
    let begun = Instant::now();
    let patience = match cores {
        Cores::OneEach => YIELDING,
        Cores::Shared => YIELDING_WHERE_SHARED,
    };
    while begun.elapsed() < patience {
        for _ in 0..YIELDS {
            rustix::thread::sched_yield();
            if come()? {
                return Ok(());
            }
        }
    }
    sleep_until(abort, bell, come)
}

/// Polls for a while; tells whether it came meanwhile.
fn spin(come: impl Fn() -> Result<bool, CollectiveError>) -> Result<bool, CollectiveError> {
    // The clock is first read when the peer is known to be later than a few polls.
    let mut begun = None;
    loop {
        for _ in 0..POLLS {
            std::hint::spin_loop();
            if come()? {
                return Ok(true);
            }
        }
        if begun.get_or_insert_with(Instant::now).elapsed() >= SPIN {
            return Ok(false);
        }
    }
}

fn sleep_until(
    abort: &ShmAbort,
    bell: &Bell,
    come: impl Fn() -> Result<bool, CollectiveError>,
) -> Result<(), CollectiveError> {
    loop {
        bell.sleepers.store(1, Ordering::SeqCst);
        let rung = bell.rung.load(Ordering::SeqCst);
        if come()? {
            return Ok(());
        }
        abort.check()?;
        // Any answer, a signal or a timeout too, means: look again.
        let _woken = futex::wait(&bell.rung, futex::Flags::empty(), rung, Some(&NAP));
    }
}
