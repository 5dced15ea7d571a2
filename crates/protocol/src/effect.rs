//! What the machines ask their drivers to do. An effect is data: a driver runs them in the order given.

use crate::bootstrap::Bootstrap;
use crate::cause::{Cause, Ending, Outcome};
use crate::host::NodeOrder;
use crate::message::{
    Directive, Heartbeat, Membership, Pending, Profile, Report, ResumePoint, ShardFile, StepRecord, StopFlag,
};
use dtrain_types::{CheckpointId, Digest, Fingerprint};
use dtrain_types::{Generation, Incarnation, MemberId, MicroRange, NodeId, Rank, Step, Trailer};
use std::time::Duration;

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
    /// Record this validation. Once, in order, after its step. Call `handle_judged` when it is written.
    Validated(Validation),
    /// Write the manifest of this checkpoint, then call `handle_manifest`. Its steps and validations are recorded.
    WriteManifest(Box<ManifestOrder>),
    /// Record who computes what in this generation, by rank, then call `handle_ranges`. No step is made in it before.
    WriteRanges(Generation, Vec<MicroRange>),
    /// Record what the run ended with, behind all else, and call `handle_ending` when it is written. Nobody is told before.
    WriteEnding(Ending),
    /// Tell people and the log.
    Event(Event),
    /// Send this order to its node.
    Order(Box<NodeOrder>),
    /// Reserve the generations up to this one, durably, then call `handle_reserved`. No generation is named before its
    /// number is reserved: a later life of the run must never name one again.
    Reserve(Generation),
    /// The run is over. The last effect of all.
    Finish(Box<Outcome>),
}

/// The merged result of one validation.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
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
    /// This life of the supervisor took over in the middle of the run.
    TookOver {
        /// So many members of the life before were found, and go on with their state.
        members: u32,
        /// The newest step that is known.
        step: Step,
    },
    /// Nobody can tell of these steps any more. They are in the books, and other files lack them.
    PassedOver {
        /// The first.
        from: Step,
        /// The last.
        to: Step,
    },
    /// The run had ended when this life of the supervisor took over: it told whoever had not heard it.
    HadEnded {
        /// The last step.
        step: Step,
    },
    /// Hosts did not come in time and the run begins without them; they are let in when they come.
    HostsMissing {
        /// How many are there.
        there: u32,
        /// How many were wanted.
        wanted: u32,
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
    /// A node reported for the first time, or again after it was away.
    NodeJoined {
        /// The node.
        node: NodeId,
        /// Its host.
        host: String,
        /// How many ranks it offers.
        ranks: u32,
    },
    /// A node cannot be reached; its members are lost if it is not back in time.
    NodeAway {
        /// The node.
        node: NodeId,
    },
    /// The supervisor's own process stood still. Nobody is blamed for it, and nothing is lost.
    StoodStill {
        /// For so long at least.
        length: Duration,
    },
    /// A lost member's process is started again.
    Restarting {
        /// The member.
        member: MemberId,
        /// Its new life.
        incarnation: Incarnation,
    },
    /// A member was lost too often and is not started again.
    GivenUp {
        /// The member.
        member: MemberId,
        /// How often it was started in the last minute.
        restarts: u32,
    },
    /// The world makes steps again after a member was lost.
    Recovered {
        /// The member.
        member: MemberId,
        /// From the news of its loss to the next committed step. *Units*: seconds.
        seconds: f64,
        /// That step.
        step: Step,
    },
    /// Nobody had the state any more: the run goes on from a checkpoint (or from the beginning).
    Resumed {
        /// The step of that state.
        from: Step,
        /// Steps that are computed again.
        lost: u64,
    },
    /// A rank is much slower than the others, or is no more.
    Straggler {
        /// The member.
        member: MemberId,
        /// Its rank.
        rank: Rank,
        /// Its time for a micro-batch, as a multiple of the median rank's; below the bound: it has caught up.
        ratio: f64,
        /// Whether it is one now.
        slow: bool,
    },
    /// A generation ends at a step boundary, for a reason that is no fault.
    Reforming {
        /// Why.
        reason: Reason,
    },
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

/// Why a generation that works is replaced by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// These are admitted.
    Admission(Vec<MemberId>),
    /// These are let go: their node was asked to leave.
    Departure(Vec<MemberId>),
    /// The ranges are cut anew, in proportion to speed.
    Balance,
    /// Shards have a holder less than they are to have, and nobody comes back who would be one.
    Mirrors,
    /// These had been left out by a life of the supervisor before this one, and are too far behind the others.
    Behind(Vec<MemberId>),
    /// A member's collectives broke off, and nobody was lost.
    Broken(MemberId),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |members: &[MemberId]| {
            let names: Vec<String> = members.iter().map(ToString::to_string).collect();
            format!("member{} {}", if names.len() == 1 { "" } else { "s" }, names.join(", "))
        };
        match self {
            Self::Admission(members) => write!(f, "{} join", list(members)),
            Self::Departure(members) => write!(f, "{} leave", list(members)),
            Self::Balance => f.write_str("the ranges follow the speed of the ranks"),
            Self::Mirrors => {
                f.write_str("what was lost with a rank that does not come back is mirrored anew")
            }
            Self::Behind(members) => write!(f, "{} had been left behind", list(members)),
            Self::Broken(member) => write!(f, "the collectives of member {member} broke off"),
        }
    }
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
        /// What its rank 0 made for all to meet, if it made anything.
        bootstrap: Option<Bootstrap>,
    },
    /// Abort the collectives of every generation below this one and stop computing; then, once no step of them can be
    /// applied any more and every step that was applied is handed over, call `handle_left`. Rank 0 hands over what its
    /// generation needs to meet, made for this generation and no other, where the data plane needs it.
    Quit {
        /// The generation that is being formed.
        generation: Generation,
        /// The rank that the member has in it.
        rank: Rank,
    },
    /// Take this state (load it, copy it into fresh memory, or lend it to those who copy), then call `handle_loaded`.
    Load {
        /// The generation.
        generation: Generation,
        /// Which.
        resume_point: ResumePoint,
    },
    /// Make steps from this one on, as the schedule says; first do again what is pending after the step before it.
    Run {
        /// The generation.
        generation: Generation,
        /// The first step.
        from_step: Step,
        /// What is pending.
        pending: Pending,
    },
    /// Set these bits of the stop flag in the next trailer.
    AskStop(StopFlag),
    /// The validations up to this step are recorded. The driver makes no step after a validation that is not: were a member
    /// lost, the others could not make it again. The run may end after a step that is given.
    Validated(Step, Option<Step>),
    /// Make no further step until `Resume`: too many records wait for an acknowledgement (S10).
    Pause,
    /// Go on after a `Pause`.
    Resume,
    /// All checkpoints up to this one are written or given up. The driver copies the state for a checkpoint only when
    /// the one before it is settled, so that a crash never costs more than two intervals, however short they are.
    Settled(CheckpointId),
    /// Abort all collectives and stop computing: the run is over for this member.
    Abort,
    /// Flush the control link and end the process. The last effect of all.
    Exit(Exit),
}
