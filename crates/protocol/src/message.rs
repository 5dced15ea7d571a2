//! The messages of the control plane. Each is a whole view of its sender, so losing, repeating or reordering them
//! is harmless; each carries instance, generation, member and incarnation, so input from an older life is fenced.
//!
//! Nothing here decides anything, and nothing here is bulk: gradients and state never travel in a message.

use crate::bootstrap::Bootstrap;
use crate::cause::Failure;
use crate::host::{NodeOrder, NodeReport};
use crate::setup::RankSetup;
use crate::time_of_day::ClockReading;
use crate::{Activity, Number, Phase};
use dtrain_types::{
    Bytes, CheckpointId, Digest, Epoch, Fingerprint, Generation, Holding, Incarnation, Instance, MemberId,
    MicroRange, NodeId, Rank, Step, Trailer, WorldSize,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The most step records that one [`Report`] carries; the oldest go first. *Units*: records.
pub const MAX_STEPS_IN_REPORT: usize = 256;
/// The most validation parts, and the most shard reports, that one [`Report`] carries; the oldest go first.
pub const MAX_IN_REPORT: usize = 8;
/// How many unacknowledged records a member holds before it asks its driver to pause (S10). *Units*: records.
pub const MAX_UNACKNOWLEDGED: usize = 1024;
/// How much a member holds and says at once. The bounds of the messages are the most; less is for the simulator, whose runs
/// are too short to come to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Step records in one Report, at most [`MAX_STEPS_IN_REPORT`]. *Units*: records.
    pub steps: usize,
    /// Validation parts, and shard reports, in one Report, at most [`MAX_IN_REPORT`].
    pub others: usize,
    /// Unacknowledged records at which the driver is asked to pause, at most [`MAX_UNACKNOWLEDGED`].
    pub unacknowledged: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: MAX_STEPS_IN_REPORT, others: MAX_IN_REPORT, unacknowledged: MAX_UNACKNOWLEDGED }
    }
}

/// Who a member's process is, in words for people and for the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// What its results' bits depend on.
    pub fingerprint: Fingerprint,
    /// Process id on its host.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Device name.
    pub device: String,
    /// Where ranks of other hosts reach it; none in a world of one host.
    pub address: Option<SocketAddr>,
    /// Whether its host sees the folder of the run: only then it can read and write checkpoints.
    pub sees_run_folder: bool,
}

/// One rank of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participant {
    /// The member that holds the rank.
    pub member: MemberId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its host. Ranks of a host are neighbours.
    pub node: NodeId,
    /// Where ranks of other hosts reach it.
    pub address: Option<SocketAddr>,
    /// Whether it reads and writes checkpoints.
    pub sees_run_folder: bool,
    /// The micro-batches that it computes.
    pub range: MicroRange,
}

/// The members of one generation, by rank, with their ranges: one value, fixed for the generation (S2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The participants; the index is the rank.
    pub participants: Vec<Participant>,
    /// How many holders each shard of a state has less than it is to have: as many as ranks are lost that come back, where their mirrors are copied no sooner.
    pub unmirrored: u32,
}

impl Membership {
    /// The rank of `member`, if it has one.
    #[must_use]
    pub fn rank_of(&self, member: MemberId) -> Option<Rank> {
        self.participants.iter().position(|participant| participant.member == member).map(|i| Rank(i as u32))
    }

    /// The ranks that read and write checkpoints, in order.
    pub fn writers(&self) -> impl Iterator<Item = Rank> {
        (0..)
            .zip(&self.participants)
            .filter(|(_, participant)| participant.sees_run_folder)
            .map(|(rank, _)| Rank(rank))
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world(&self) -> WorldSize {
        WorldSize(self.participants.len() as u32)
    }
}

/// Where the state of the first step comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartFrom {
    /// A fresh initialisation: step 0.
    #[default]
    Fresh,
    /// A checkpoint that is already written.
    Checkpoint(CheckpointId),
}

impl StartFrom {
    /// The updates that the state holds.
    #[must_use]
    pub fn step(self) -> Step {
        match self {
            Self::Fresh => Step(0),
            Self::Checkpoint(id) => id.step,
        }
    }
}

/// The state that a generation goes on with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// The updates it holds.
    pub step: Step,
    /// Who has it.
    pub source: StateSource,
}

impl Default for ResumePoint {
    fn default() -> Self {
        Self { step: Step(0), source: StateSource::Start(StartFrom::Fresh) }
    }
}

/// Where the members of a generation find its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateSource {
    /// Nobody has a state: all take this one. Of a checkpoint only those that see the run folder can; the others copy it.
    Start(StartFrom),
    /// These ranks hold it, in rising order; all others copy it from them, a slice from each.
    Ranks(Vec<Rank>),
    /// Each rank, in their order, holds these shards of it, or can make the update by which it does; together they hold all.
    Shards(Vec<Holding>),
}

/// What is due again after the step that a generation begins with, because the one before did not finish it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Validate.
    pub validate: bool,
    /// Write a checkpoint.
    pub checkpoint: bool,
    /// There is no further step.
    pub ends: bool,
}

/// One committed update as a rank saw it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The generation that made it.
    pub generation: Generation,
    /// Its number.
    pub step: Step,
    /// The epoch it belongs to.
    pub epoch: Epoch,
    /// What the ranks agreed on.
    pub trailer: Trailer,
    /// How long it took on this rank. *Units*: seconds.
    pub seconds: f64,
    /// How long of that this rank computed, and did not wait for others. *Units*: seconds.
    pub busy: f64,
    /// The learning rate of its update.
    pub lr: f64,
    /// Norm of the mean gradient, before clipping.
    pub gradient_norm: f64,
}

/// A rank's share of one validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidationPart {
    /// The state it was made with.
    pub step: Step,
    /// Sums of whole subtrees of the tree over the validation micro-batches, in order.
    pub parts: Vec<(MicroRange, Trailer)>,
    /// Integer counts (for precision, recall, F1), or the digits of an exact sum; the same length on each rank.
    pub counts: Vec<u64>,
}

/// One file of a checkpoint, already durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardFile {
    /// File name inside the checkpoint's folder.
    pub name: String,
    /// Its size.
    pub bytes: Bytes,
    /// Its blake3 digest.
    pub digest: Digest,
}

/// How the writing of a shard ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShardOutcome {
    /// The file is on disk, fsync included.
    Durable {
        /// The file.
        file: ShardFile,
        /// Digest for people: parameters and running statistics at the checkpoint's step.
        digest: Digest,
        /// Digest of the whole state at the checkpoint's step (S5).
        state_digest: Digest,
    },
    /// The file could not be written (disk full, no permission).
    Failed {
        /// Why.
        reason: String,
    },
}

/// What a rank says about its shard of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    /// The checkpoint.
    pub id: CheckpointId,
    /// The rank that wrote the shard.
    pub rank: Rank,
    /// How it ended.
    pub outcome: ShardOutcome,
}

/// A member's whole view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The supervisor it obeys; none until the first Directive.
    pub instance: Option<Instance>,
    /// The generation it is in.
    pub generation: Generation,
    /// The member.
    pub member: MemberId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The order of this member's Reports; an older one is ignored.
    pub number: Number,
    /// The last Directive it took in.
    pub seen: Number,
    /// Who it is.
    pub profile: Profile,
    /// Where it stands.
    pub stage: Stage,
    /// What its compute thread is doing.
    pub activity: Activity,
    /// Updates that its state holds; none without a state.
    pub applied: Option<Step>,
    /// The shards of that state which it holds: all, unless the ranks share them out.
    pub holding: Holding,
    /// While it is formed as rank 0: what the ranks of this generation need to meet, where their data plane needs it.
    pub bootstrap: Option<Bootstrap>,
    /// The newest digest of its state taken for `verify`, and at which step.
    pub verified: Option<(Step, Digest)>,
    /// The oldest of the steps that no Directive has acknowledged, in order.
    pub steps: Vec<StepRecord>,
    /// The oldest unacknowledged validation parts, in order.
    pub validations: Vec<ValidationPart>,
    /// The oldest unacknowledged shards, in order.
    pub shards: Vec<ShardReport>,
}

/// Bits of [`dtrain_types::Trailer::stop`]: all ranks read the same ones, so all stop after the same step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StopFlag(pub u32);

impl StopFlag {
    /// The run ends after this step.
    pub const DRAIN: Self = Self(1);
    /// The generation ends after this step: somebody is to be admitted or let go, or the ranges are to be cut anew.
    pub const REFORM: Self = Self(2);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The supervisor's whole view, for one member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Directive {
    /// The supervisor's life.
    pub instance: Instance,
    /// The newest generation.
    pub generation: Generation,
    /// To whom.
    pub member: MemberId,
    /// The life that is meant.
    pub incarnation: Incarnation,
    /// The order of the Directives to this member; an older one is ignored.
    pub number: Number,
    /// Where the generation stands.
    pub phase: Phase,
    /// Members, ranks and ranges of the generation; empty in [`Phase::Join`].
    pub membership: Membership,
    /// Which state to go on with, from [`Phase::Sync`] on.
    pub resume_point: ResumePoint,
    /// What the ranks of this generation need to meet, in [`Phase::Sync`], where rank 0 gave it.
    pub bootstrap: Option<Bootstrap>,
    /// What is due again before the next step, in [`Phase::Run`].
    pub pending: Pending,
    /// All steps up to this one are committed and written down: their records need not be sent again.
    pub acknowledged: Step,
    /// All validations that are due after steps up to this one are recorded, and judged where they are.
    pub validated: Step,
    /// The run ends after this step, before its schedule says: what was validated there is enough.
    pub enough: Option<Step>,
    /// All checkpoints up to this one are settled: written or given up.
    pub settled: CheckpointId,
    /// The bits that members shall set in the stop flag of their next trailer.
    pub stop: StopFlag,
}

/// A sign of life, either way. It carries the number only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The supervisor's life.
    pub instance: Instance,
    /// The sender's generation.
    pub generation: Generation,
    /// The member it is from or to.
    pub member: MemberId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Up: the last Directive that the member took in. Down: the newest Directive for it.
    pub number: Number,
}

/// The first word of a fresh rank process on its control link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The slot it was started for.
    pub member: MemberId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The revision of its binary.
    pub revision: String,
}

/// Why a node is needed no more. It is for people and exit codes: nothing is decided by it, so it may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goodbye {
    /// The exit code that says the same.
    pub code: u8,
    /// A sentence.
    pub why: String,
}

/// What a rank of another host said at the last before it ended. It is for people: nothing is decided by it, so it may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastLines {
    /// Who ended.
    pub member: MemberId,
    /// Its last lines, in order.
    pub lines: Vec<String>,
}

/// A line that a rank printed, where its node lives beside the supervisor and not in it. It is for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputLine {
    /// Who printed it.
    pub member: MemberId,
    /// What.
    pub line: String,
}

/// Everything that crosses a control link.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Member to supervisor.
    Report(Box<Report>),
    /// Supervisor to member.
    Directive(Box<Directive>),
    /// Either way.
    Heartbeat(Heartbeat),
    /// To a fresh rank process, and to a node: what ranks are made of.
    RankSetup(RankSetup),
    /// From a fresh rank process.
    Hello(Hello),
    /// Node to supervisor.
    NodeReport(Box<NodeReport>),
    /// Supervisor to node.
    NodeOrder(Box<NodeOrder>),
    /// Supervisor to node, the last word: the run is over, or has no place for this node.
    Goodbye(Goodbye),
    /// Supervisor to node, before the set-up: what its clock says, for people.
    Clock(ClockReading),
    /// Node to supervisor, ahead of the report that a rank has ended.
    LastLines(LastLines),
    /// The node of the supervisor's own host to the supervisor.
    Output(OutputLine),
}

/// The end of a rank's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// The last step it made.
    pub step: Step,
    /// Digest for people: parameters and running statistics.
    pub digest: Digest,
    /// Digest of the whole state (S5).
    pub state_digest: Digest,
    /// The most memory of its device that it held, where the device has memory of its own.
    pub device_peak: Option<Bytes>,
}

/// Where a member stands in the life of its generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Stage {
    /// It waits for a generation.
    Joining,
    /// It left what was before and commits nothing more there.
    Formed,
    /// Its collectives broke off: it waits for the next generation.
    Broken {
        /// What it saw.
        why: String,
        /// The members that it could not reach.
        unreachable: Vec<MemberId>,
    },
    /// All peers of the data plane are reached and the state is loaded.
    Ready {
        /// Digest of the whole state at `applied` (S5).
        state_digest: Digest,
    },
    /// It makes steps.
    Running,
    /// It made its last step; shards may still be under way.
    Finished(Finished),
    /// It cannot go on.
    Failed(Failure),
    /// It was told to leave.
    Leaving,
}
