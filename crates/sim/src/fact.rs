//! Facts: what the checkers are told, as it happens. A history is a list of facts, so a bad one can be written down.

use crate::compute::Lent;
use crate::job::Oracle;
use dtrain_engine::Section;
use dtrain_protocol::{
    BootId, Bootstrap, CheckpointId, Digest, Ending, ManifestOrder, Membership, Number, Outcome, StartFrom,
    StepRecord, Validation,
};
use dtrain_types::{Generation, Holding, Incarnation, Instance, MemberId, NodeId, Step};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// One life of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life {
    /// The slot.
    pub member: MemberId,
    /// Which life in it.
    pub incarnation: Incarnation,
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}.{}", self.member, self.incarnation)
    }
}

/// Who took in a view of somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum View {
    /// A member, of a life of the supervisor.
    Member(Life, Option<Instance>),
    /// A life of a node, of a life of the supervisor.
    Node(NodeId, BootId, Option<Instance>),
    /// A supervisor that leads by this generation at first, of a life of a member.
    OfMember(Generation, Life),
    /// Such a supervisor, of a life of a node.
    OfNode(Generation, NodeId, BootId),
}

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Fact<'a> {
    /// A member entered a generation.
    Entered(Life, Generation),
    /// A view was taken in; this is its number.
    Saw(View, Number),
    /// Somebody was told, or says, who the members of a generation are.
    Named(Generation, &'a Membership),
    /// A rank applied an update.
    Updated {
        /// Which rank's life.
        life: Life,
        /// The generation of the collective.
        generation: Generation,
        /// The generation that the member is in.
        member_in: Generation,
        /// The update.
        step: Step,
        /// The reduced gradient.
        gradient: &'a [f32],
        /// The elements of it that the rank needs, the others being undefined; all of them where it is none.
        needed: Option<&'a [Range<usize>]>,
        /// The state after it.
        state_digest: Digest,
    },
    /// A rank took over a state.
    Swapped {
        /// Which rank's life.
        life: Life,
        /// In which generation.
        generation: Generation,
        /// The updates that the state holds.
        step: Step,
        /// Its digest.
        state_digest: Digest,
        /// Whether it was copied from peers.
        copied: bool,
    },
    /// A rank holds shards of a state; of each section this, from an element on.
    Held {
        /// Which rank's life.
        life: Life,
        /// In which generation.
        generation: Generation,
        /// The updates that it has.
        step: Step,
        /// The shards.
        holding: &'a Holding,
        /// Of each section, from an element on.
        held: &'a [(Section, usize, Vec<f32>)],
    },
    /// A pass of a rank was lent parameters: of a section this, from an element on.
    Lent {
        /// Which rank's life.
        life: Life,
        /// The updates that they are to have.
        step: Step,
        /// Of each section, from an element on.
        lent: &'a [Lent],
    },
    /// A rank left everything before a generation; this is the state that it holds.
    Left {
        /// Which rank's life.
        life: Life,
        /// The generation to come.
        generation: Generation,
        /// What it has.
        state: LeftState,
    },
    /// As rank 0 of a generation a rank made what all its ranks need to meet.
    Made(Life, Generation, &'a Bootstrap),
    /// A rank builds its data plane, to meet the others by this.
    Meets {
        /// Which rank's life.
        life: Life,
        /// In which generation.
        generation: Generation,
        /// The life that is rank 0 there.
        first: Life,
        /// What it was told.
        by: Option<&'a Bootstrap>,
    },
    /// A frame came that no schedule of its generation contains.
    Foreign(Life, &'a str),
    /// The supervisor died: nobody knows any more which checkpoints were begun.
    SupervisorDied,
    /// The supervisor orders the end of a life that is there.
    Ends {
        /// Which.
        life: Life,
        /// Whether it can be heard: nothing keeps its words from the supervisor.
        heard: bool,
    },
    /// A generation is about to be named: these lives are there and can be heard.
    CanBeHeard(&'a [Life]),
    /// The supervisor committed a step.
    Committed(&'a StepRecord),
    /// It has to, and knows not who computed what in that step: the ledger cannot have it.
    Unwritable(&'a StepRecord),
    /// The supervisor recorded a validation.
    Validated(&'a Validation),
    /// A manifest is to be written.
    Ordered(&'a ManifestOrder),
    /// A manifest is renamed into place; whether all that it names is there, durable and as it says.
    Renamed(&'a ManifestOrder, Result<(), &'a str>),
    /// All load this state; these are the checkpoints on the disk.
    Resumed(StartFrom, &'a [CheckpointId]),
    /// The supervisor holds these checkpoints to be complete; these are on the disk.
    Complete(Option<CheckpointId>, &'a [CheckpointId]),
    /// How much a member holds.
    Holds {
        /// Which.
        life: Life,
        /// Records that are not acknowledged.
        records: usize,
        /// So many are allowed.
        limit: usize,
        /// Frames for later.
        parked: usize,
    },
    /// The resume point of a generation was named, after so many committed steps; the newest state that a member of it holds.
    ResumePoint {
        /// The generation.
        generation: Generation,
        /// The resume point.
        step: Step,
        /// Committed so far.
        committed: Step,
        /// Written down so far.
        written: Step,
        /// The most updates that a state of a member of the generation holds.
        held: Option<Step>,
    },
    /// A generation begins to make steps, from the state after this one; each shard may have so many holders less than it is to have.
    Begins(Generation, Step, u32),
    /// A checkpoint was given up.
    GivenUp(CheckpointId),
    /// The supervisor formed a generation; it had told of a cause since the last one.
    Formed(Generation, bool),
    /// The supervisor holds a member to be lost; something had been done to it or to the world.
    Lost(MemberId, bool, &'a str),
    /// A member or a node gave the supervisor up.
    GaveUp {
        /// Who.
        who: &'a str,
        /// Since it last heard it.
        waited: Duration,
        /// As long as everybody waits.
        master: Duration,
    },
    /// What the run ended with is on the disk.
    EndingWritten(&'a Ending),
    /// A member is told that the run is over, in good order.
    ToldOver(MemberId),
    /// The run ended.
    Ended(&'a Outcome, Excuses),
    /// The run did not end in bounded time after the last fault.
    NeverEnded(&'a str),
}

/// With which state a rank left a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftState {
    /// With none.
    None,
    /// With one of its own, of so many updates, with this digest.
    Own(Step, Digest),
    /// With one that it shares, of so many updates: the next generation completes it.
    Shared(Step),
}

/// What was done to a run that excuses an end that is not the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excuses {
    /// It was asked to end.
    pub drained: bool,
    /// A step cost members again and again by chance: so many losses in *run*.
    pub losses: u32,
    /// Hosts or members may be gone for good.
    pub short: bool,
    /// There was no room on the disk for a while.
    pub disk_full: bool,
}

/// What was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant.
    pub invariant: &'static str,
    /// How.
    pub text: String,
}

/// A checker: takes in facts and says when one breaks its invariant.
pub trait Invariant {
    /// Its name in `docs/design/INVARIANTS.md`.
    fn name(&self) -> &'static str;

    /// Takes in a fact. *Errors*: how it breaks the invariant.
    fn see(&mut self, fact: &Fact<'_>, oracle: &Oracle) -> Result<(), String>;
}
