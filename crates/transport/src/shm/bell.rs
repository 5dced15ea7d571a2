//! A word in shared memory on which other processes sleep until it is rung.

use rustix::thread::futex;

use std::sync::atomic::{AtomicU32, Ordering};

/// What ranks sleep on while they wait for a word beside it.
#[repr(C)]
pub(super) struct Bell {
    /// Futex word: rises when somebody who sleeps here must look again.
    pub rung: AtomicU32,
    /// Not 0 when somebody may be asleep.
    pub sleepers: AtomicU32,
}

impl Bell {
    /// Wakes whoever sleeps here, after the word that they wait for has changed.
    pub fn answer(&self) {
        // The race with a rank that falls asleep, where `word` is what it waits for:
        // 1. we have changed `word`, then read `sleepers`; it stores `sleepers`, then reads `word` again; all four in one
        //    total order, so at least one of us sees the other;
        // 2. if it sees us, it does not sleep;
        // 3. if we see it, we clear `sleepers`, move `rung` and wake: either it read `rung` before, and the kernel
        //    refuses the sleep or ends it, or after, and then its second look at `word` came later still.
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.sleepers.store(0, Ordering::SeqCst);
            self.ring();
        }
    }

    /// Wakes all, whether the word has changed or not.
    pub fn ring(&self) {
        ring(&self.rung);
    }
}

/// Moves a futex word and wakes all who sleep on it, in every process.
pub(super) fn ring(bell: &AtomicU32) {
    bell.fetch_add(1, Ordering::SeqCst);
    // Shared between processes, so not a private futex. It can only fail for a bad address, which this is not.
    let _woken = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
}
