//! Where the ranks of one generation on one GPU meet: on the host, between threads.
//!
//! A rank arrives with what it is about to do and waits until all have arrived. Nobody waits for a rank that does not come:
//! an abort, or a later generation, ends every wait. It does not know what is done on the device.

use dtrain_collective::{Abort, CollectiveError, Intent};
use dtrain_types::{Generation, Rank, Trailer};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(super) struct Meeting {
    generation: Generation,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// How often each rank has arrived.
    arrived: Vec<u64>,
    /// What each is about to do, and the trailers of its roots.
    intents: Vec<Option<Intent>>,
    trailers: Vec<Vec<Trailer>>,
    /// Why nobody waits any more. The first reason stays.
    over: Option<CollectiveError>,
}

impl Meeting {
    pub fn new(generation: Generation, world: usize) -> Self {
        let state = State {
            arrived: vec![0; world],
            intents: vec![None; world],
            trailers: vec![Vec::new(); world],
            over: None,
        };
        Self { generation, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, why: CollectiveError) {
        self.lock().over.get_or_insert(why);
        self.changed.notify_all();
    }

    /// A rank has gone on to a later generation.
    pub fn supersede(&self, from: Rank) {
        self.end(CollectiveError::Superseded { from, generation: self.generation });
    }

    /// *Errors*: `Aborted`, `Superseded`.
    pub fn check(&self) -> Result<(), CollectiveError> {
        self.lock().over.clone().map_or(Ok(()), Err)
    }

    /// Tells the others what this rank is about to do.
    pub fn announce(&self, rank: usize, intent: Intent, trailers: &[Trailer]) {
        let mut state = self.lock();
        state.intents[rank] = Some(intent);
        state.trailers[rank].clear();
        state.trailers[rank].extend_from_slice(trailers);
        state.arrived[rank] += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// This rank is here.
    pub fn arrive(&self, rank: usize) {
        self.lock().arrived[rank] += 1;
        self.changed.notify_all();
    }

    /// *Blocks* until all have arrived as often as this rank. *Errors*: `Aborted`, `Superseded`.
    pub fn pass(&self, rank: usize) -> Result<(), CollectiveError> {
        let mut state = self.lock();
        loop {
            if let Some(why) = &state.over {
                return Err(why.clone());
            }
            let own = state.arrived[rank];
            if state.arrived.iter().all(|arrived| *arrived >= own) {
                return Ok(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// *Blocks* until all have announced. *Errors*: as `pass`; `Mismatch` if somebody is about to do something else.
    pub fn agree(&self, rank: usize, intent: Intent) -> Result<(), CollectiveError> {
        self.pass(rank)?;
        let state = self.lock();
        let other = state.intents.iter().position(|theirs| *theirs != Some(intent));
        let Some(from) = other else { return Ok(()) };
        Err(CollectiveError::Mismatch {
            from: Rank(from as u32),
            sequence: intent.sequence,
            theirs: format!("{:?}", state.intents[from]),
            ours: format!("{intent:?}"),
        })
    }

    /// All trailers, by rank; between two barriers.
    pub fn collect(&self, into: &mut Vec<Trailer>) {
        into.clear();
        self.lock().trailers.iter().for_each(|of_rank| into.extend_from_slice(of_rank));
    }
}

impl Abort for Meeting {
    fn abort(&self, reason: &str) {
        self.end(CollectiveError::Aborted { reason: reason.to_owned() });
    }
}
