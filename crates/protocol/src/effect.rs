//! What the machines ask their drivers to do. An effect is data: a driver runs them in the order given.

use crate::cause::{Cause, Outcome};
use crate::message::{
    CheckpointId, Digest, Directive, Fingerprint, Heartbeat, Membership, Profile, Report, ShardFile,
    StartFrom, StepRecord,
};
use dtrain_types::{Epoch, Generation, Incarnation, MemberId, Rank, Step, Trailer};

/// What the supervisor asks of its driver.
#[derive(Clone, Debug, PartialEq)]
pub enum SupervisorEffect {
    /// Send this Directive to its member.
    Send(Box<Directive>),
    /// Send this sign of life to its member.
    Beat(Heartbeat),
    /// Record this step: the `step` event and the ledger line. Once per step, in order. Call `handle_recorded` when it is
    /// written, or for several at once.
    Commit(StepRecord),
    /// Record this validation. Once per epoch, in order, after its step.
    Validated(Validation),
    /// Write the manifest of this checkpoint, then call `handle_manifest`. Its steps and validations are recorded.
    WriteManifest(Box<ManifestOrder>),
    /// Tell people and the log.
    Event(Event),
    /// End this member's process by force; its exit is then reported by `handle_exit` like any other.
    Kill(MemberId),
    /// The run is over. The last effect of all.
    Finish(Box<Outcome>),
}

/// The merged result of one validation.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// The epoch that it ends.
    pub epoch: Epoch,
    /// The state it was made with.
    pub step: Step,
    /// The sums over all validation micro-batches, in tree order.
    pub trailer: Trailer,
    /// The counts of all ranks, added.
    pub counts: Vec<u64>,
}

/// All that the control plane knows about a checkpoint whose shards are all durable (S6).
#[derive(Clone, Debug, PartialEq)]
pub struct ManifestOrder {
    /// Its name.
    pub id: CheckpointId,
    /// The files, by rank.
    pub shards: Vec<ShardFile>,
    /// Digest for people, of parameters and running statistics.
    pub digest: Digest,
    /// Digest of the whole state, equal on all ranks (S5).
    pub state_digest: Digest,
    /// The fingerprint of rank 0; in exact mode everyone's.
    pub fingerprint: Fingerprint,
    /// Who wrote it.
    pub membership: Membership,
}

/// Something worth a line in the event log.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A member reported for the first time.
    Joined {
        /// The member.
        member: MemberId,
        /// The life issued to it.
        incarnation: Incarnation,
        /// Who it is.
        profile: Profile,
    },
    /// A member was refused; the cause names it and whom it differs from.
    Refused(Cause),
    /// A member did not come in time and the run begins without it.
    LeftOut {
        /// The member.
        member: MemberId,
    },
    /// A generation was announced.
    Formed {
        /// Its number.
        generation: Generation,
        /// Its members.
        membership: Membership,
    },
    /// A rank begins to make steps.
    RankStarted {
        /// The member.
        member: MemberId,
        /// Its rank.
        rank: Rank,
        /// Its life.
        incarnation: Incarnation,
        /// Its generation.
        generation: Generation,
        /// Who it is.
        profile: Profile,
    },
    /// All ranks are told to run.
    Running {
        /// The generation.
        generation: Generation,
        /// The step that comes first.
        from_step: Step,
    },
    /// A drain was asked for.
    Draining,
    /// A checkpoint is complete.
    CheckpointWritten {
        /// Its name.
        id: CheckpointId,
    },
    /// A checkpoint was given up; training goes on.
    CheckpointGivenUp {
        /// Its name.
        id: CheckpointId,
        /// Who could not write its shard; none if the manifest could not be written.
        member: Option<MemberId>,
        /// Why.
        reason: String,
    },
    /// A fault was seen. The first one seen is not always the first cause: that is in the outcome.
    Fault(Cause),
}

/// How a member's process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// In good order: the run is done, or the supervisor said stop. Exit code 0.
    Ordered,
    /// Because of its own failure. Exit code 1.
    Failed,
}

impl Exit {
    /// The exit code of the rank's process: the supervisor reads it.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Ordered => 0,
            Self::Failed => 1,
        }
    }
}

/// What a member asks of its driver.
#[derive(Clone, Debug, PartialEq)]
pub enum MemberEffect {
    /// Send this Report.
    Send(Box<Report>),
    /// Send this sign of life.
    Beat(Heartbeat),
    /// Build the data plane of this generation, reach all peers, then call `handle_built`.
    Build {
        /// The generation.
        generation: Generation,
        /// The member's own rank.
        rank: Rank,
        /// All ranks.
        membership: Membership,
    },
    /// Load this state, then call `handle_loaded`.
    Load {
        /// The generation.
        generation: Generation,
        /// Where the state comes from.
        start: StartFrom,
    },
    /// Make steps from this one on, as the schedule says.
    Run {
        /// The generation.
        generation: Generation,
        /// The first step.
        from_step: Step,
    },
    /// Set the stop flag in the next trailer.
    AskStop,
    /// Make no further step until `Resume`: too many records wait for an acknowledgement (S10).
    Pause,
    /// Go on after a `Pause`.
    Resume,
    /// All checkpoints up to this step are written or given up. The driver copies the state for a checkpoint only when
    /// the one before it is settled, so that a crash never costs more than two intervals, however short they are.
    Settled(Step),
    /// Abort all collectives and stop computing.
    Abort,
    /// Flush the control link and end the process. The last effect of all.
    Exit(Exit),
}
