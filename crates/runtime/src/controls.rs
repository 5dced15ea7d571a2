//! The few words that pass from a rank's actors to its compute thread while it is inside a step.
//!
//! Orders travel in a queue; these are flags, because the compute thread looks at them between two micro-batches
//! and must not wait.

use dtrain_protocol::{Activity, Signals, StopFlag};
use dtrain_types::Generation;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

/// Shared by the rank actor and the compute thread.
#[derive(Debug, Default)]
pub struct Controls {
    stop: AtomicU32,
    /// The work of every generation below this one is to be left.
    left: AtomicU64,
    activity: AtomicU8,
    signals: Mutex<Signals>,
    moved: Condvar,
}

const ACTIVITIES: [Activity; 7] = [
    Activity::Idle,
    Activity::Preparing,
    Activity::Loading,
    Activity::Computing,
    Activity::Reducing,
    Activity::Validating,
    Activity::Saving,
];

impl Controls {
    /// Asks for these bits of the stop flag in the next trailer.
    pub fn ask_stop(&self, bits: StopFlag) {
        self.stop.store(bits.0, Ordering::Release);
    }

    /// The stop flag for the next trailer.
    pub fn stop_flag(&self) -> u32 {
        self.stop.load(Ordering::Acquire)
    }

    /// Makes the compute thread leave the work of every generation below this one, at the next micro-batch.
    pub fn leave_below(&self, generation: Generation) {
        self.left.fetch_max(generation.0, Ordering::AcqRel);
        self.signal(|_| {});
    }

    /// Whether the work of this generation is to be left.
    pub fn must_leave(&self, generation: Generation) -> bool {
        generation.0 < self.left.load(Ordering::Acquire)
    }

    /// Changes what a task of the compute thread may wait for.
    pub fn signal(&self, change: impl FnOnce(&mut Signals)) {
        change(&mut self.signals.lock().expect("no holder of the signals panics"));
        self.moved.notify_all();
    }

    /// What the compute thread was told last.
    pub fn signals(&self) -> Signals {
        *self.signals.lock().expect("no holder of the signals panics")
    }

    /// *Blocks* until the signals are as they are wanted, or the work of `generation` is to be left; tells whether they are.
    pub fn wait_until(&self, generation: Generation, wanted: impl Fn(&Signals) -> bool) -> bool {
        let signals = self.signals.lock().expect("no holder of the signals panics");
        let waits = |signals: &mut Signals| !wanted(signals) && !self.must_leave(generation);
        wanted(&self.moved.wait_while(signals, waits).expect("no holder of the signals panics"))
    }

    /// Says what the compute thread does now.
    pub fn set_activity(&self, activity: Activity) {
        let index = ACTIVITIES.iter().position(|a| *a == activity).expect("every activity is listed");
        self.activity.store(index as u8, Ordering::Relaxed);
    }

    /// What the compute thread does now.
    pub fn activity(&self) -> Activity {
        ACTIVITIES[self.activity.load(Ordering::Relaxed) as usize]
    }
}
