//! What a rank holds of a state in shards, and what it keeps while that travels. What is done with it is in `shards.rs`.

use dtrain_engine::{HeldState, Piece, Section, Sharded, State};
use dtrain_protocol::Task;
use dtrain_types::{Holding, Step};

/// What a rank holds.
#[derive(Debug)]
pub struct Shards {
    /// How many hold each shard.
    pub redundancy: u32,
    /// The engine's part of it.
    pub sharded: Sharded,
}

/// A state on its way to those who are to hold it.
#[derive(Debug)]
pub(super) struct Sharing {
    pub pieces: Vec<Piece>,
    pub at: usize,
    pub step: Step,
    /// What comes is put here first (S12).
    pub state: State,
    pub moments: HeldState,
}

/// A state that is gathered for a task that looks at all of it.
#[derive(Debug)]
pub(super) struct Gathering {
    pub then: Task,
    /// The sections that only holders have, and that are still to come; the next one is the last.
    pub left: Vec<Section>,
    pub whole: State,
}

impl Shards {
    /// A rank that holds nothing; each shard is to be held by so many.
    #[must_use]
    pub fn new(redundancy: u32) -> Self {
        Self { redundancy, sharded: Sharded::default() }
    }

    /// The shards that it holds.
    #[must_use]
    pub fn holding(&self) -> &Holding {
        self.sharded.state().holding()
    }
}

impl Sharing {
    /// Where a source has its moments: as they were.
    pub fn moments_of<'a>(&self, shards: &'a Option<Shards>) -> &'a HeldState {
        shards.as_ref().expect("it holds shards").sharded.state()
    }
}
