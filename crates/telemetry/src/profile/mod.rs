//! Where the time of training steps goes: what each rank wrote down, put together for people and for a trace viewer.
//!
//! Every life of a rank writes one [`Part`] into the folder `profile` of its run. At the end [`collect`] makes one trace of
//! them, in the trace-event format that ui.perfetto.dev and `chrome://tracing` open, and one table. It reads no clock, and
//! does not know how a rank trains: a part is spans with names.

mod figures;
mod folder;
mod part;
mod trace;
mod waits;

pub use figures::{LostPart, ProfileReport, RankTimes, Row, TIME_LEFT};
pub use folder::{Life, collect, prepare, write_part};
pub use part::{Doing, Part, Span, StepTimes};
