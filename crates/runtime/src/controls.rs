//! The few words that pass from a rank's actors to its compute thread while it is inside a step.
//!
//! Orders travel in a queue; these are flags, because the compute thread looks at them between two micro-batches
//! and must not wait.

use dtrain_protocol::Activity;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};

/// Shared by the rank actor and the compute thread.
#[derive(Debug, Default)]
pub struct Controls {
    stop: AtomicU32,
    aborted: AtomicBool,
    activity: AtomicU8,
    paused: Mutex<bool>,
    gate: Condvar,
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
    /// Asks for the stop flag in the next trailer.
    pub fn ask_stop(&self) {
        self.stop.store(1, Ordering::Release);
    }

    /// The stop flag for the next trailer.
    pub fn stop_flag(&self) -> u32 {
        self.stop.load(Ordering::Acquire)
    }

    /// Makes the compute thread leave its work at the next micro-batch.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.pause(false);
    }

    /// Whether the work is to be left.
    pub fn aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Holds or frees the compute thread at the next step boundary.
    pub fn pause(&self, paused: bool) {
        *self.paused.lock().expect("no holder of the gate panics") = paused;
        self.gate.notify_all();
    }

    /// *Blocks* while paused and not aborted.
    pub fn wait_while_paused(&self) {
        let paused = self.paused.lock().expect("no holder of the gate panics");
        drop(self.gate.wait_while(paused, |paused| *paused && !self.aborted()));
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
