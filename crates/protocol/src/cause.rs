//! Why a run ended: what members report, what the supervisor sees, and the outcome that names the first cause.
//!
//! Words and data only; which cause comes first is decided in `supervisor/verdict.rs`.

use crate::phase::{Activity, Phase};
use crate::text::cut_text;
use dtrain_types::{
    Bytes, CheckpointId, Digest, Fingerprint, Incarnation, MemberId, MicroBatch, MicroRange, Rank, Step,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Why a member says that it cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// The loss or the reduced gradient of a step is not finite. All ranks see it, and none commits the step.
    #[error("{}", not_finite(*.step, *.micro_batch))]
    NonFinite {
        /// The step.
        step: Step,
        /// The least micro-batch whose loss was not finite, if one was.
        micro_batch: Option<MicroBatch>,
    },
    /// The data could not be read.
    #[error("data: {0}")]
    Data(String),
    /// The engine or its device failed.
    #[error("engine: {0}")]
    Engine(String),
    /// The data plane could not be built or the state could not be loaded.
    #[error("setup: {0}")]
    Setup(String),
    /// A panic, with its text.
    #[error("panic: {0}")]
    Panic(String),
    /// The supervisor was not heard for too long.
    #[error("no word from the supervisor for {silent:.1?}")]
    SupervisorLost {
        /// How long.
        silent: Duration,
    },
    /// What the process leans on (a library, a device) does not come back: nothing but its end frees it.
    #[error("stuck: {0}")]
    Stuck(String),
    /// It holds shards of the state of the step before this one, and has no sum to make this one from: it took no part in it, and was
    /// forgotten. Another life takes what the others hold.
    #[error("it was left behind before step {step}, and has no sum of that one")]
    Behind {
        /// The step.
        step: Step,
    },
    /// The program that makes the passes failed, in its own words: an exception with its traceback.
    #[error("{0}")]
    Program(String),
}

impl Failure {
    /// Whether another process could do better, or the same one started again: an accident, not a fault of what it was
    /// given. Of the others a restart would make the same again.
    #[must_use]
    pub fn is_accident(&self) -> bool {
        matches!(self, Self::Panic(_) | Self::SupervisorLost { .. } | Self::Stuck(_) | Self::Behind { .. })
    }

    /// Whether it broke the process itself, and not only the work of one generation.
    #[must_use]
    pub fn is_of_process(&self) -> bool {
        matches!(self, Self::Data(_) | Self::Engine(_) | Self::Panic(_) | Self::Stuck(_) | Self::Program(_))
    }

    /// Its kind as one word, to be counted by.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NonFinite { .. } => "not_finite",
            Self::Data(_) => "data",
            Self::Engine(_) => "engine",
            Self::Setup(_) => "setup",
            Self::Panic(_) => "panic",
            Self::SupervisorLost { .. } => "supervisor_lost",
            Self::Stuck(_) => "stuck",
            Self::Behind { .. } => "behind",
            Self::Program(_) => "program",
        }
    }

    /// The same with its text cut to what a message may hold.
    #[must_use]
    pub fn cut(self) -> Self {
        match self {
            Self::Data(text) => Self::Data(cut_text(&text)),
            Self::Engine(text) => Self::Engine(cut_text(&text)),
            Self::Setup(text) => Self::Setup(cut_text(&text)),
            Self::Panic(text) => Self::Panic(cut_text(&text)),
            Self::Stuck(text) => Self::Stuck(cut_text(&text)),
            Self::Program(text) => Self::Program(cut_text(&text)),
            Self::NonFinite { .. } | Self::SupervisorLost { .. } | Self::Behind { .. } => self,
        }
    }
}

fn not_finite(step: Step, micro_batch: Option<MicroBatch>) -> String {
    match micro_batch {
        Some(m) => format!("the loss or its gradient is not finite in step {step}, micro-batch {m}"),
        None => format!("the gradient is not finite in step {step}"),
    }
}

/// How a member's process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ExitCause {
    /// It was killed by a signal.
    #[error("killed by signal {}", signal_name(*.0))]
    Signal(i32),
    /// It exited.
    #[error("exited with code {0}")]
    Code(i32),
    /// It could not be started.
    #[error("could not be started: {0}")]
    NotStarted(String),
    /// The kernel killed it for want of memory.
    #[error("killed by the kernel: out of memory")]
    OutOfMemory,
    /// Its node ended and was started anew.
    #[error("ended with its node, which was started anew")]
    WithItsNode,
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        2 => "SIGINT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        other => return other.to_string(),
    };
    format!("{signal} ({name})")
}

/// What happened to a member.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum What {
    /// It said so itself.
    #[error("{0}")]
    Reported(Failure),
    /// Its process ended.
    #[error("{0}")]
    Exited(ExitCause),
    /// Its control link was lost and did not come back.
    #[error("its control link was lost")]
    LinkLost,
    /// It was not heard.
    #[error("silent for {0:.2?}")]
    Silent(Duration),
    /// The world stood still, and this member is the one that the others waited for.
    #[error("no progress for {waited:.2?}{}", also(.suspects))]
    NoProgress {
        /// How long.
        waited: Duration,
        /// All who may be to blame; more than one where their activities do not tell.
        suspects: Vec<MemberId>,
    },
    /// Its results would have other bits than the run's.
    #[error("its fingerprint {own} differs from {other} of member {against}")]
    Fingerprint {
        /// Its own.
        own: Fingerprint,
        /// The run's.
        other: Fingerprint,
        /// The member that the run's is from.
        against: MemberId,
    },
    /// Equal `applied`, another digest (S5).
    #[error("state digest {own} at step {step} differs from {other} of member {against} (S5)")]
    DigestDiffers {
        /// The step.
        step: Step,
        /// Its digest.
        own: Digest,
        /// The other's digest.
        other: Digest,
        /// The other.
        against: MemberId,
    },
    /// `applied` differs by more than a generation allows (S4).
    #[error("it stands at step {own}, member {against} at step {other} (S4)")]
    StepDiffers {
        /// Its step.
        own: Step,
        /// The other's step.
        other: Step,
        /// The other.
        against: MemberId,
    },
    /// It holds a part of the state, and nobody holds the rest any more.
    #[error("it holds a part of the state, and the ranks that held the rest are lost")]
    HoldsPart,
    /// It stands behind a step that nobody can tell of any more, and the books have not.
    #[error(
        "it made step {0}, which is in no book: it was lost with the supervisor, and the disk had not taken it"
    )]
    Untold(Step),
    /// What it sent cannot be: a hole in its steps, validation parts that are no partition.
    #[error("impossible report: {0}")]
    Impossible(String),
    /// Its process was started and did not report.
    #[error("did not report for {0:?} after its process was started")]
    NeverReported(Duration),
    /// It was killed and has not ended: its memory cannot be trusted.
    #[error("was killed {0:?} ago and has not ended (is it stuck in the kernel?)")]
    StillThere(Duration),
    /// Its collectives broke off again and again, or where nothing can take their place.
    #[error("its collectives broke off: {0}")]
    Broken(String),
    /// In two generations it could not be reached by these, who are more than can reach it.
    #[error("cannot be reached by {}", members(.by))]
    Unreachable {
        /// By whom.
        by: Vec<MemberId>,
    },
    /// One step has cost members in three successive generations, and all of them owned these micro-batches.
    #[error("step {step} has cost a member three times in a row, each time the owner of {}", micro(.range))]
    Poisonous {
        /// The step.
        step: Step,
        /// What the lost members' ranges had in common.
        range: MicroRange,
    },
    /// With its end nobody held the state, again and again, and the steps between led nowhere.
    #[error(
        "with it the state was lost for the {times}th time in a row, each time before a step beyond step {step}"
    )]
    Relapsed {
        /// How often in a row.
        times: u32,
        /// The newest step that was ever committed.
        step: Step,
    },
}

impl What {
    /// Its kind as one word, to be counted by.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Reported(failure) => failure.kind(),
            Self::Exited(ExitCause::Signal(_)) => "signal",
            Self::Exited(ExitCause::Code(_)) => "exit_code",
            Self::Exited(ExitCause::NotStarted(_)) => "not_started",
            Self::Exited(ExitCause::OutOfMemory) => "out_of_memory",
            Self::Exited(ExitCause::WithItsNode) => "node_lost",
            Self::LinkLost => "link_lost",
            Self::Silent(_) => "silent",
            Self::NoProgress { .. } => "no_progress",
            Self::Fingerprint { .. } => "other_bits",
            Self::DigestDiffers { .. } => "other_digest",
            Self::StepDiffers { .. } => "other_step",
            Self::HoldsPart => "holds_part",
            Self::Untold(_) => "untold",
            Self::Impossible(_) => "impossible_report",
            Self::NeverReported(_) => "never_reported",
            Self::StillThere(_) => "unkillable",
            Self::Broken(_) => "broken_collectives",
            Self::Unreachable { .. } => "unreachable",
            Self::Poisonous { .. } => "poisonous_step",
            Self::Relapsed { .. } => "relapsed",
        }
    }
}

fn members(all: &[MemberId]) -> String {
    let names: Vec<String> = all.iter().map(ToString::to_string).collect();
    format!("member{} {}", if all.len() == 1 { "" } else { "s" }, names.join(", "))
}

fn micro(range: &MicroRange) -> String {
    match range.len() {
        1 => format!("micro-batch {}", range.lo),
        _ => format!("micro-batches {} to {}", range.lo, range.hi - 1),
    }
}

fn also(suspects: &[MemberId]) -> String {
    if suspects.len() < 2 {
        return String::new();
    }
    let names: Vec<String> = suspects.iter().map(ToString::to_string).collect();
    format!(" (waiting for one of members {})", names.join(", "))
}

/// One fault: who, where, when and what.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// The member.
    pub member: MemberId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its rank, if it had one.
    pub rank: Option<Rank>,
    /// Its host, empty if it never reported.
    pub host: String,
    /// The step that the world was making: the one after the last committed.
    pub step: Step,
    /// The phase it happened in.
    pub phase: Phase,
    /// What it was doing, as it last said; only of one that hangs: a process that is gone was further than its last word.
    pub doing: Option<Doing>,
    /// What happened.
    pub what: What,
}

/// Where a rank hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doing {
    /// What it was doing.
    pub activity: Activity,
    /// How many other ranks wait inside the step's collective.
    pub waiting: u32,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.activity {
            Activity::Idle => "idle",
            Activity::Preparing => "preparing",
            Activity::Loading => "waiting for data",
            Activity::Computing => "computing",
            Activity::Reducing => "in the all-reduce",
            Activity::Validating => "validating",
            Activity::Saving => "copying its state for a checkpoint, or waiting for the disk",
        })?;
        match self.waiting {
            0 => Ok(()),
            1 => f.write_str("; 1 other waits in the all-reduce"),
            n => write!(f, "; {n} others wait in the all-reduce"),
        }
    }
}

/// One line of what may be many: of a traceback the last, which says what went wrong, of others the first.
fn brief(text: &str) -> &str {
    let line = match text.contains("Traceback (") {
        true => text.lines().rfind(|line| !line.trim().is_empty()),
        false => text.lines().next(),
    };
    line.unwrap_or(text)
}

/// In one line: [`Cause::what`] may have more to say.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "rank {rank} (member {})", self.member)?,
            None => write!(f, "member {}", self.member)?,
        }
        if !self.host.is_empty() {
            write!(f, " on {}", self.host)?;
        }
        write!(f, ": {} [phase {}, step {}", brief(&self.what.to_string()), self.phase, self.step)?;
        match &self.doing {
            Some(doing) => write!(f, ", {doing}]"),
            None => f.write_str("]"),
        }
    }
}

/// The state that a run ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// The last step.
    pub step: Step,
    /// Digest for people.
    pub digest: Digest,
    /// Digest of the whole state.
    pub state_digest: Digest,
    /// The newest checkpoint that this run completed, if any.
    pub checkpoint: Option<CheckpointId>,
    /// The most memory of its device that a rank held, where devices have memory of their own.
    pub device_peak: Option<Bytes>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The last step was made.
    Finished(Ending),
    /// It was asked to stop: drained at a step boundary, or none if it had not begun or was told not to wait.
    Interrupted(Option<Ending>),
    /// Fewer members are there than the run needs, and no more can come.
    NotEnough {
        /// How many are there.
        joined: u32,
        /// How many it needs.
        min_ranks: u32,
        /// Who is not.
        missing: Vec<MemberId>,
        /// Why, as far as it was seen: the first cause first.
        causes: Vec<Cause>,
    },
    /// Something broke.
    Failed {
        /// The first cause.
        first: Cause,
        /// What followed, or happened beside it, in the order it was seen.
        others: Vec<Cause>,
    },
}

impl Outcome {
    /// What a run that was to end with step `last` came to by this ending: it was asked to stop where that is an earlier one.
    #[must_use]
    pub fn of(ending: Ending, last: Step) -> Self {
        if ending.step < last { Self::Interrupted(Some(ending)) } else { Self::Finished(ending) }
    }
}
