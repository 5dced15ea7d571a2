//! What a compute thread is doing, and what it keeps while it does it.

use super::holding::{Gathering, Sharing};
use super::windowed::Windowed;
use dtrain_protocol::StartFrom;
use dtrain_types::{Merger, MicroRange, Rank, Step, StepPlan, Trailer};

/// Steps are collectives of these numbers and above; what comes before them builds and copies.
pub(super) const FIRST_STEP: u64 = 1_000;

/// A step has so many numbers of collectives, and what follows it.
pub(super) const OF_A_STEP: u64 = 16;

/// Pieces of a gradient that are given away before the rest of it is there.
pub(super) const OFFERS: usize = 2;

/// Short, so that small worlds have several segments.
pub(super) const SEGMENT: usize = 16;

/// Segments of a root that an owner takes before their time: as few as there can be.
pub(super) const ROOM: usize = 1;

/// Floats that carry a digest, two bytes in each.
pub(super) const DIGEST_FLOATS: usize = 16;

/// What is being done.
#[derive(Debug)]
pub(super) enum Doing {
    Rest,
    /// The barrier at which all ranks reach one another.
    Reach,
    Load(StartFrom),
    Copy(Copying),
    /// An update is completed that others have left.
    Complete,
    /// All adopt a shared state.
    Open,
    Micro(Box<Micro>),
    /// How many pieces were given away before the one that is on its way.
    Offer(Box<Micro>, usize),
    Reduce,
    Update(Step),
    Meet,
    UpdateShare(Step),
    /// What ranks hold of a state travels to those who are to hold it.
    Share(Box<Sharing>),
    /// It learns what others have measured.
    Agree,
    /// The parameters come from their owners.
    Gather,
    /// So does all of the state, for a task.
    GatherAll(Box<Gathering>),
    Evaluate(Step),
    /// A pass whose windows travel.
    Pass(Box<Windowed>),
}

#[derive(Debug)]
pub(super) struct Copying {
    pub sources: Vec<Rank>,
    pub targets: Vec<Rank>,
    pub step: Step,
    pub window: usize,
    /// A source's floats, or what a target has of them so far: fresh memory.
    pub floats: Vec<f32>,
    pub digest: [f32; DIGEST_FLOATS],
}

#[derive(Debug)]
pub(super) struct Micro {
    pub plan: StepPlan,
    pub roots: Vec<MicroRange>,
    pub root: usize,
    pub next: u32,
    pub merger: Merger,
    pub pending: Vec<Trailer>,
    pub trailers: Vec<Trailer>,
}

/// A step whose micro-batches are computed.
#[derive(Clone, Debug)]
pub(super) struct Computed {
    pub plan: StepPlan,
    pub trailers: Vec<Trailer>,
    /// The reduced one, when it is there.
    pub trailer: Trailer,
    /// The sum that this rank updated a shared state by: for the checkers.
    pub sum: Vec<f32>,
}

/// Two bytes in each float: exact, and no pattern is a NaN.
pub(super) fn digest_as_floats(digest: [u8; 32]) -> [f32; DIGEST_FLOATS] {
    std::array::from_fn(|i| f32::from(u16::from_le_bytes([digest[2 * i], digest[2 * i + 1]])))
}

/// Where a state comes from.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum StateFrom {
    /// It was read, or begun afresh.
    Checkpoint,
    /// It was copied from a peer.
    Peer,
}
