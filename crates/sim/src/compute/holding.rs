//! What a rank holds of a state in shards, and what it keeps while that travels. What is done with it is in `shards.rs`.

use crate::job::Engine;
use dtrain_engine::cpu::Cpu;
use dtrain_engine::{HeldState, ModelReplica, Piece, Replica, Section, Sharding, State, Windows};
use dtrain_protocol::Task;
use dtrain_types::{Holding, ShardLevel, Step};
use std::fmt;

/// Fewer elements make no window of the tiny model: so each of its stages is one.
const WINDOW: usize = 1;

/// What a rank holds: in a replica of its own, as the runtime has it.
pub struct Shards {
    /// How many hold each shard.
    pub redundancy: u32,
    /// The engine's part of it.
    pub replica: ModelReplica<Cpu>,
    /// How gradients and parameters travel, where nobody has all of a gradient.
    pub windows: Option<Windows>,
    /// What ranks share out.
    pub level: ShardLevel,
    /// The shards that it holds.
    holding: Holding,
    /// Whether it has come by a state.
    has_state: bool,
}

/// A state on its way to those who are to hold it.
#[derive(Debug)]
pub(super) struct Sharing {
    pub pieces: Vec<Piece>,
    pub at: usize,
    pub step: Step,
    /// What is held comes here first (S12).
    pub held: HeldState,
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
    pub fn new(engine: &Engine, redundancy: u32, level: ShardLevel) -> Self {
        let replica = engine.replica(level);
        let in_windows = level >= ShardLevel::Gradients;
        let windows = in_windows.then(|| replica.model().windows_of_at_least(WINDOW));
        Self { redundancy, replica, windows, level, holding: Holding::default(), has_state: false }
    }

    /// The shards that it holds.
    #[must_use]
    pub fn holding(&self) -> &Holding {
        &self.holding
    }

    /// The updates that its state has, once it came by one.
    #[must_use]
    pub fn applied(&self) -> Option<Step> {
        self.has_state.then(|| self.replica.applied())
    }

    /// Goes on with what it holds from now on.
    pub fn adopt(&mut self, held: HeldState, step: Step) {
        self.holding = held.holding().clone();
        self.sharding().adopt(held, step).expect("memory of the host");
    }

    /// It has come by a state.
    pub fn has_come_by_a_state(&mut self) {
        self.has_state = true;
    }

    /// What the replica does with them.
    pub fn sharding(&mut self) -> &mut dyn Sharding {
        self.replica.sharding().expect("it holds shards")
    }

    /// Elements of a section that it has.
    pub fn read(&mut self, section: Section, from: usize, to: &mut [f32]) {
        self.sharding().read(section, from, to).expect("memory of the host");
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shards after {:?}", self.applied())
    }
}
