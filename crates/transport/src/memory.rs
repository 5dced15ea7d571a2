//! Frames between the threads of one process: bounded queues, one for each pair of ranks.
//!
//! A queue's buffers go round: what a receiver has used, the sender fills again, so a warmed-up mesh allocates nothing.
//! It does not know what a frame means; the receiver says whether it was used.

use dtrain_collective::{CollectiveError, Frame, Header, Outgoing, Transport, Verdict, Waker};
use dtrain_types::Rank;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Frames that may wait between two ranks. More would only hide who is slow.
const QUEUE: usize = 8;

/// One rank's end of an in-process mesh.
#[derive(Debug)]
pub struct MemoryTransport {
    mesh: Arc<Vec<Mailbox>>,
    rank: usize,
    /// The mailbox's count of changes when it was last looked through.
    looked: u64,
}

/// Makes the ends of a mesh of `world` ranks, by rank.
#[must_use]
pub fn memory_mesh(world: usize) -> Vec<MemoryTransport> {
    let mailbox = || Mailbox { state: Mutex::new(State::new(world)), changed: Condvar::new() };
    let mesh: Arc<Vec<Mailbox>> = Arc::new((0..world).map(|_| mailbox()).collect());
    (0..world).map(|rank| MemoryTransport { mesh: mesh.clone(), rank, looked: 0 }).collect()
}

/// What has come for one rank.
#[derive(Debug)]
struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// By sender.
    lanes: Vec<Lane>,
    /// Counts whatever the owner may be waiting for.
    changes: u64,
    /// The owner is gone.
    closed: bool,
}

#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<(Header, Vec<f32>)>,
    used: Vec<Vec<f32>>,
    /// The sender found the queue full and wants to hear when it is not.
    sender_waits: bool,
}

impl State {
    fn new(world: usize) -> Self {
        Self { lanes: (0..world).map(|_| Lane::default()).collect(), changes: 0, closed: false }
    }
}

impl Mailbox {
    /// A thread that panicked holding the lock left nothing half done: each critical section is one queue operation.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.lock().changes += 1;
        self.changed.notify_one();
    }
}

impl MemoryTransport {
    /// Takes the foremost frame of a sender out, so that the lock is not held while it is used.
    fn take(&self, from: usize) -> Option<(Header, Vec<f32>)> {
        self.mesh[self.rank].lock().lanes[from].waiting.pop_front()
    }

    fn put_back(&self, from: usize, frame: (Header, Vec<f32>)) {
        self.mesh[self.rank].lock().lanes[from].waiting.push_front(frame);
    }

    fn recycle(&self, from: usize, buffer: Vec<f32>) {
        let sender_waits = {
            let lane = &mut self.mesh[self.rank].lock().lanes[from];
            lane.used.push(buffer);
            std::mem::take(&mut lane.sender_waits)
        };
        if sender_waits {
            self.mesh[from].notify();
        }
    }
}

impl Transport for MemoryTransport {
    fn try_send(&mut self, frame: &Outgoing<'_>) -> Result<bool, CollectiveError> {
        let mailbox = &self.mesh[frame.to.index()];
        let mut buffer = {
            let state = &mut *mailbox.lock();
            if state.closed {
                return Err(CollectiveError::Lost {
                    to: frame.to,
                    what: "its end of the mesh was dropped".into(),
                });
            }
            let lane = &mut state.lanes[self.rank];
            // One more may be in the receiver's hands, about to be put back.
            if lane.waiting.len() >= QUEUE {
                lane.sender_waits = true;
                return Ok(false);
            }
            lane.used.pop().unwrap_or_default()
        };
        // Copied outside the lock; this rank is the lane's only sender, so its place stays free.
        buffer.clear();
        buffer.extend_from_slice(frame.payload);
        let mut state = mailbox.lock();
        state.lanes[self.rank].waiting.push_back((frame.header, buffer));
        state.changes += 1;
        drop(state);
        mailbox.changed.notify_one();
        Ok(true)
    }

    fn receive(
        &mut self,
        sink: &mut dyn FnMut(Frame<'_>) -> Result<Verdict, CollectiveError>,
    ) -> Result<usize, CollectiveError> {
        self.looked = self.mesh[self.rank].lock().changes;
        let mut count = 0;
        for from in 0..self.mesh.len() {
            while let Some((header, payload)) = self.take(from) {
                match sink(Frame { from: Rank(from as u32), header, payload: &payload })? {
                    Verdict::Taken | Verdict::Stale => {
                        count += 1;
                        self.recycle(from, payload);
                    }
                    Verdict::Later => {
                        self.put_back(from, (header, payload));
                        break;
                    }
                }
            }
        }
        Ok(count)
    }

    fn wait(&mut self) -> Result<(), CollectiveError> {
        let mailbox = &self.mesh[self.rank];
        let state = mailbox.lock();
        let unchanged = |state: &mut State| state.changes == self.looked;
        drop(mailbox.changed.wait_while(state, unchanged).unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    fn waker(&self) -> Waker {
        let (mesh, rank) = (self.mesh.clone(), self.rank);
        Arc::new(move || mesh[rank].notify())
    }

    fn describe(&self) -> String {
        "threads".into()
    }
}

impl Drop for MemoryTransport {
    fn drop(&mut self) {
        self.mesh[self.rank].lock().closed = true;
        // Whoever waits for room in this mailbox would wait for ever: let it find out.
        (0..self.mesh.len()).for_each(|peer| self.mesh[peer].notify());
    }
}
