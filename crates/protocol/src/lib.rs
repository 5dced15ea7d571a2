//! The control plane: two pure machines, [`Supervisor`] and [`Member`], the two whole-view messages between them,
//! [`Report`] (up) and [`Directive`] (down), and the codec that turns messages into framed bytes.
//!
//! A machine is plain data with `handle_*(now, input, &mut effects)`, `handle_timeout(now, &mut effects)`,
//! `next_deadline()` and getters. The driver feeds it, runs the effects in order and arms one timer; input that is
//! already there is handled before the timer. Losing, repeating or reordering messages is harmless: each says
//! everything, so there is no retry code.
//!
//! This crate does not know sockets, processes, files, clocks, gradients or models.

mod cause;
mod codec;
mod effect;
mod frame;
mod member;
mod message;
mod schedule;
mod supervisor;
mod timeouts;

pub use cause::{Cause, Ending, ExitCause, Failure, Outcome, What};
pub use codec::{Decoder, encode};
pub use effect::{Event, Exit, ManifestOrder, MemberEffect, SupervisorEffect, Validation};
pub use frame::{CodecError, HEADER_BYTES, MAX_PAYLOAD, VERSION};
pub use member::{Member, MemberConfig};
pub use message::{
    Activity, CheckpointId, Digest, Directive, Fingerprint, Finished, Heartbeat, Hello, MAX_IN_REPORT,
    MAX_STEPS_IN_REPORT, MAX_TEXT, MAX_UNACKNOWLEDGED, Membership, Message, Number, Phase, Profile, Report,
    Seat, ShardFile, ShardOutcome, ShardReport, Stage, StartFrom, StartId, StepRecord, ValidationPart,
    cut_text,
};
pub use schedule::{CheckpointEvery, Due, Schedule};
pub use supervisor::{Reduce, Request, Supervisor, SupervisorConfig};
pub use timeouts::{Timeouts, TimeoutsError};
