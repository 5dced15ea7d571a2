//! Reads GPUs every few seconds on a thread of its own, so that no step waits for a driver.
//!
//! Whoever wants the newest readings takes them, and never waits. It does not know what is done with them.

use crate::{GpuReadings, Gpus};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a run reads its GPUs. A reading costs about a millisecond a GPU, and utilisation is a mean of the last second.
pub const GPU_INTERVAL: Duration = Duration::from_secs(5);

/// One round of readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuSample {
    /// Counts the rounds, from 1; 0 is before the first.
    pub round: u64,
    /// The GPUs that answered, with their numbers on this host, in the order in which they were asked for.
    pub gpus: Vec<(u32, GpuReadings)>,
}

/// A thread that reads GPUs until it is dropped.
pub struct GpuWatch {
    newest: Arc<(Mutex<GpuSample>, Condvar)>,
    /// Nothing is ever sent: that it is gone ends the thread.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl GpuWatch {
    /// Begins to read these GPUs, at once and then once an interval.
    ///
    /// *Errors*: the system gives no thread.
    pub fn start(gpus: Gpus, wanted: Vec<u32>, interval: Duration) -> std::io::Result<Self> {
        let newest = Arc::new((Mutex::new(GpuSample::default()), Condvar::new()));
        let (alive, ended) = channel::<()>();
        let told = Arc::clone(&newest);
        let work = move || {
            let mut silent = Vec::new();
            for round in 1.. {
                let sample = GpuSample { round, gpus: read(&gpus, &wanted, &mut silent) };
                *told.0.lock().unwrap_or_else(PoisonError::into_inner) = sample;
                told.1.notify_all();
                if ended.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("gpu-watch".into()).spawn(work)?;
        Ok(Self { newest, alive: Some(alive), thread: Some(thread) })
    }

    /// The newest readings; empty before the first round.
    #[must_use]
    pub fn newest(&self) -> GpuSample {
        self.newest.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first readings after this round. *Blocks* until they are there.
    #[must_use]
    pub fn after(&self, round: u64) -> GpuSample {
        let newest = self.newest.0.lock().unwrap_or_else(PoisonError::into_inner);
        let old = |sample: &mut GpuSample| sample.round <= round;
        self.newest.1.wait_while(newest, old).unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One round. A GPU that falls silent is told once, and once more when it answers again.
fn read(gpus: &Gpus, wanted: &[u32], silent: &mut Vec<u32>) -> Vec<(u32, GpuReadings)> {
    let mut answered = Vec::new();
    for index in wanted {
        match gpus.read(*index) {
            Ok(readings) => {
                if silent.contains(index) {
                    tracing::warn!(gpu = index, "it answers again");
                    silent.retain(|known| known != index);
                }
                answered.push((*index, readings));
            }
            Err(error) if !silent.contains(index) => {
                tracing::warn!(gpu = index, %error, "it does not answer");
                silent.push(*index);
            }
            Err(_) => {}
        }
    }
    answered
}

impl Drop for GpuWatch {
    /// *Blocks* until the round in hand is over.
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been told already, and readings are no reason to end a run.
            let _ = thread.join();
        }
    }
}
