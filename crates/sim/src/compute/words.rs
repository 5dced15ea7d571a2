//! What a compute thread says and asks for, and where it stands.

use super::watched::Lent;
use dtrain_collective::{CollectiveError, Header};
use dtrain_engine::Section;
use dtrain_protocol::{CheckpointId, Digest, Failure, Finished, Loaded, StepRecord, ValidationPart};
use dtrain_types::{Generation, Holding, MemberId, Rank, Step};
use std::ops::Range;

/// What a compute thread tells its member.
#[derive(Clone, Debug)]
pub enum News {
    /// All peers were reached.
    Built(Generation),
    /// An update that was left is made.
    CaughtUp(Generation, Step),
    /// The state is there.
    Loaded(Loaded),
    /// Everything before this generation is left.
    Left {
        /// The generation to come.
        generation: Generation,
        /// The updates that the state holds.
        applied: Option<Step>,
    },
    /// A step was made.
    Step(StepRecord),
    /// A share of a validation is done.
    Validation(Generation, ValidationPart),
    /// The state was digested.
    Verified(Generation, Step, Digest),
    /// There is no further step.
    Finished(Generation, Finished),
    /// The collectives broke off.
    Broken {
        /// In which generation.
        generation: Generation,
        /// Why.
        why: String,
        /// Who could not be reached.
        unreachable: Vec<MemberId>,
    },
    /// It cannot go on.
    Failed(Generation, Failure),
}

/// Work that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Forward and backward of one micro-batch.
    MicroBatch,
    /// What is left of the backward pass while part of its gradient is on its way.
    Backward,
    /// The optimizer.
    Update,
    /// Adding up, or copying, a share of what a host has.
    Add,
    /// A share of a validation.
    Evaluate,
    /// Reading or making the initial state.
    Load,
    /// Moving a window of the state to or from the data plane.
    Window,
}

/// A shard that is to be written in the background.
#[derive(Clone, Debug)]
pub struct ShardJob {
    /// The checkpoint.
    pub id: CheckpointId,
    /// The rank that writes.
    pub rank: Rank,
    /// Its share of the state.
    pub floats: Vec<f32>,
    /// Digest for people, of the whole state.
    pub digest: Digest,
    /// Digest of the whole state.
    pub state_digest: Digest,
}

/// What a compute thread asks of its driver.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Tell the member.
    Tell(News),
    /// Send a frame to a rank of the generation.
    Send {
        /// To whom.
        to: MemberId,
        /// From which rank.
        from: Rank,
        /// What it is.
        header: Header,
        /// What it carries.
        payload: Vec<f32>,
    },
    /// Call [`Compute::worked`] with this number when so much work is done.
    Work(u64, Work),
    /// Call [`Compute::host_met`] of every rank of this host.
    WakeHost,
    /// Write a shard; when it is durable or given up, nothing is being written any more.
    Save(ShardJob),
    /// An update was applied: for the checkers.
    Updated {
        /// In which generation.
        generation: Generation,
        /// Which.
        step: Step,
        /// The reduced gradient.
        gradient: Vec<f32>,
        /// The elements of it that this rank needs, the others being undefined; all of them where it is none.
        needed: Option<Vec<Range<usize>>>,
        /// The state after it.
        state_digest: Digest,
    },
    /// A state was loaded or copied and is in use: for the checkers.
    Swapped {
        /// In which generation.
        generation: Generation,
        /// The updates it holds.
        step: Step,
        /// Its digest.
        state_digest: Digest,
        /// Whether peers gave it.
        copied: bool,
    },
    /// What a rank holds of a state: for the checkers.
    Held {
        /// In which generation.
        generation: Generation,
        /// The updates it has.
        step: Step,
        /// The shards.
        holding: Holding,
        /// Of each section, from an element on.
        held: Vec<(Section, usize, Vec<f32>)>,
    },
    /// What a pass was lent of the parameters: for the checkers.
    Lent {
        /// The updates that the parameters are to have.
        step: Step,
        /// Of each section, from an element on.
        lent: Vec<Lent>,
    },
    /// A frame of another generation was used, or one that no schedule contains came: for the checkers.
    Foreign(CollectiveError),
}

/// A frame that was sent and is not used yet.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// The rank that sent it.
    pub from: Rank,
    /// What it is.
    pub header: Header,
    /// What it carries.
    pub payload: Vec<f32>,
}

/// Where a compute thread stands, for the table of coverage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// No order is being carried out.
    Rest,
    /// The data plane is being built.
    Build,
    /// The state is being read.
    Load,
    /// Its state is being copied to others.
    CopySource,
    /// It copies its state from others.
    CopyTarget,
    /// Shards travel to those who are to hold them.
    ShareOut,
    /// The parameters come from their owners.
    Gather,
    /// All of the state comes together, to be looked at.
    GatherAll,
    /// Forward and backward.
    Compute,
    /// It has given part of its gradient away and computes the rest.
    Offer,
    /// Contributions are on their way.
    Round1,
    /// Sums are on their way.
    Round2,
    /// The optimizer is at work.
    Update,
    /// It writes its share of the update of a shared state.
    UpdateShare,
    /// It waits for all ranks of a shared state.
    Meet,
    /// It completes an update that others have left.
    Complete,
    /// It validates, or waits for the record of a validation.
    Validate,
    /// It waits for a checkpoint.
    Save,
}
