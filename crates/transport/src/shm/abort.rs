//! Stops the collectives of all ranks that share a mapping.

use crate::Mapping;
use crate::shm::bell::ring;
use dtrain_collective::{Abort, AbortFlag, CollectiveError};
use dtrain_types::Generation;
use std::sync::atomic::Ordering;

use std::sync::Arc;

/// Ends the waits of one generation, here and in every process that maps the arena.
#[derive(Debug)]
pub(crate) struct ShmAbort {
    mapping: Arc<Mapping>,
    generation: Generation,
    flag: AbortFlag,
}

impl ShmAbort {
    pub fn new(mapping: Arc<Mapping>, generation: Generation) -> Self {
        Self { mapping, generation, flag: AbortFlag::default() }
    }

    /// The arena that it stops.
    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// *Errors*: `Aborted`, once anybody has aborted the generation.
    pub fn check(&self) -> Result<(), CollectiveError> {
        self.flag.check()?;
        if self.mapping.aborted().load(Ordering::SeqCst) < self.generation.0 {
            return Ok(());
        }
        self.flag.set(&format!("a peer aborted generation {}", self.generation));
        self.flag.check()
    }
}

impl Abort for ShmAbort {
    fn abort(&self, reason: &str) {
        self.flag.set(reason);
        // The word keeps the greatest generation, so an aborter that comes late cannot harm a newer one.
        self.mapping.aborted().fetch_max(self.generation.0, Ordering::SeqCst);
        (0..self.mapping.world().0 as usize).for_each(|rank| self.mapping.control(rank).bell.ring());
        self.mapping.work().done.bell.ring();
        ring(self.mapping.abort_bell());
    }
}
