//! The few words that pass from a rank's actors to its compute thread while it is inside a step.
//!
//! Orders travel in a queue; these are flags, because the compute thread looks at them between two micro-batches
//! and must not wait.

use dtrain_protocol::Activity;
use dtrain_types::Step;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};

/// Shared by the rank actor and the compute thread.
#[derive(Debug, Default)]
pub struct Controls {
    stop: AtomicU32,
    aborted: AtomicBool,
    activity: AtomicU8,
    gate: Mutex<Gate>,
    moved: Condvar,
}

/// What the compute thread waits for between two steps.
#[derive(Debug, Default)]
struct Gate {
    paused: bool,
    /// All checkpoints up to this step are written or given up.
    settled: Step,
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
        self.pass(|gate| gate.paused = false);
    }

    /// Whether the work is to be left.
    pub fn aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Holds or frees the compute thread at the next step boundary.
    pub fn pause(&self, paused: bool) {
        self.pass(|gate| gate.paused = paused);
    }

    /// All checkpoints up to this step are written or given up.
    pub fn settle(&self, step: Step) {
        self.pass(|gate| gate.settled = step);
    }

    /// *Blocks* while paused and not aborted.
    pub fn wait_while_paused(&self) {
        self.wait_while(|gate| gate.paused);
    }

    /// *Blocks* until the checkpoint of `step` is written or given up, or the work is aborted.
    pub fn wait_until_settled(&self, step: Step) {
        self.wait_while(|gate| gate.settled < step);
    }

    fn pass(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut self.gate.lock().expect("no holder of the gate panics"));
        self.moved.notify_all();
    }

    fn wait_while(&self, closed: impl Fn(&Gate) -> bool) {
        let gate = self.gate.lock().expect("no holder of the gate panics");
        drop(self.moved.wait_while(gate, |gate| closed(gate) && !self.aborted()));
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
