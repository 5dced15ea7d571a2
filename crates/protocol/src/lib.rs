//! The control plane: two pure machines, [`Supervisor`] and [`Member`], the two whole-view messages between them,
//! [`Report`] (up) and [`Directive`] (down), and the codec that turns messages into framed bytes. A third, small machine,
//! [`Node`], starts and ends the members' processes of a host, by whole views too. Between member and compute thread stands the
//! [`Agenda`]: what a rank does next in a generation.
//!
//! A machine is plain data with `handle_*(now, input, &mut effects)`, `handle_timeout(now, &mut effects)`,
//! `next_deadline()` and getters. The driver feeds it, runs the effects in order and arms one timer; input that is
//! already there is handled before the timer. Losing, repeating or reordering messages is harmless: each says
//! everything, so there is no retry code.
//!
//! This crate does not know sockets, processes, files, clocks, gradients or models.

mod agenda;
mod bootstrap;
mod bytes;
mod cause;
mod codec;
mod effect;
mod frame;
mod host;
mod left;
mod member;
mod message;
mod node;
mod number;
mod phase;
mod schedule;
mod setup;
mod supervisor;
mod text;
mod time_of_day;
mod timeouts;
pub mod transcript;

pub use dtrain_types::{CheckpointId, Digest, Fingerprint};

pub use agenda::{Agenda, Opening, Signals, StateHolder, Task};
pub use bootstrap::{BOOTSTRAP_BYTES, Bootstrap};
pub use cause::{Cause, Doing, Ending, ExitCause, Failure, Outcome, What};
pub use codec::{Decoder, encode, from_bytes, to_bytes};
pub use dtrain_types::{Reduce, Remirror};
pub use effect::{Event, Exit, ManifestOrder, MemberEffect, Reason, SupervisorEffect, Validation};
pub use frame::{CodecError, HEADER_BYTES, MAX_PAYLOAD, VERSION};
pub use host::{LifeOrder, LifeReport, NodeOrder, NodeReport};
pub use left::{Left, Loaded};
pub use member::{Member, MemberConfig};
pub use message::{
    Directive, Finished, Goodbye, Heartbeat, Hello, LastLines, Limits, MAX_IN_REPORT, MAX_STEPS_IN_REPORT,
    MAX_UNACKNOWLEDGED, Membership, Message, OutputLine, Participant, Pending, Profile, Report, ResumePoint,
    ShardFile, ShardOutcome, ShardReport, Stage, StartFrom, StateSource, StepRecord, StopFlag,
    ValidationPart,
};
pub use node::{Node, NodeConfig, NodeEffect};
pub use number::{BootId, Number};
pub use phase::{Activity, Phase};
pub use schedule::{Due, Every, Schedule};
pub use setup::RankSetup;
pub use supervisor::{Judgement, Losses, Request, Supervisor, SupervisorConfig, TakenOver};
pub use text::{MAX_TEXT, cut_text};
pub use time_of_day::{ClockOffset, ClockReading, UnixNanos};
pub use timeouts::{Timeouts, TimeoutsError};
pub use transcript::Input;
