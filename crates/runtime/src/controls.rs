//! The few words that pass from a rank's actors to its compute thread while it is inside a step.
//!
//! Orders travel in a queue; these are flags, because the compute thread looks at them between two micro-batches
//! and must not wait.

use dtrain_protocol::{Activity, CheckpointId, StopFlag};
use dtrain_types::{Epoch, Generation};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

/// Shared by the rank actor and the compute thread.
#[derive(Debug, Default)]
pub struct Controls {
    stop: AtomicU32,
    /// The work of every generation below this one is to be left.
    left: AtomicU64,
    activity: AtomicU8,
    gate: Mutex<Gate>,
    moved: Condvar,
}

/// What the compute thread waits for between two steps.
#[derive(Debug, Default)]
struct Gate {
    paused: bool,
    /// All checkpoints up to this one are written or given up.
    settled: CheckpointId,
    /// All validations up to this epoch are recorded.
    validated: Option<Epoch>,
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
        self.pass(|_| {});
    }

    /// Whether the work of this generation is to be left.
    pub fn must_leave(&self, generation: Generation) -> bool {
        generation.0 < self.left.load(Ordering::Acquire)
    }

    /// Holds or frees the compute thread at the next step boundary.
    pub fn pause(&self, paused: bool) {
        self.pass(|gate| gate.paused = paused);
    }

    /// All checkpoints up to this one are written or given up.
    pub fn settle(&self, id: CheckpointId) {
        self.pass(|gate| gate.settled = id);
    }

    /// All validations up to this epoch are recorded.
    pub fn validated(&self, epoch: Epoch) {
        self.pass(|gate| gate.validated = Some(epoch));
    }

    /// *Blocks* while paused, unless the work of `generation` is to be left.
    pub fn wait_while_paused(&self, generation: Generation) {
        self.wait_while(generation, |gate| gate.paused);
    }

    /// *Blocks* until this checkpoint is written or given up, or the work of `generation` is to be left.
    pub fn wait_until_settled(&self, generation: Generation, id: CheckpointId) {
        self.wait_while(generation, |gate| gate.settled < id);
    }

    /// *Blocks* until the validation of this epoch is recorded, or the work of `generation` is to be left.
    pub fn wait_until_validated(&self, generation: Generation, epoch: Epoch) {
        self.wait_while(generation, |gate| gate.validated < Some(epoch));
    }

    fn pass(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut self.gate.lock().expect("no holder of the gate panics"));
        self.moved.notify_all();
    }

    fn wait_while(&self, generation: Generation, closed: impl Fn(&Gate) -> bool) {
        let gate = self.gate.lock().expect("no holder of the gate panics");
        drop(self.moved.wait_while(gate, |gate| closed(gate) && !self.must_leave(generation)));
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
