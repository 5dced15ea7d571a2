//! How a run is, for people and programs: read from its folder, or asked of the process that leads it.
//!
//! It does not know how it is asked for; `commands/status.rs` does.

mod follow;
mod json;
mod table;

pub use follow::Follower;
pub use json::as_json;
pub use table::table;

use dtrain_telemetry::{Progress, UnixTime};

/// How a run is at a moment.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Everything that its events and metrics say.
    pub progress: Progress,
    /// Whether somebody leads it.
    pub leader: Leader,
    /// Its folder, or where it was asked for.
    pub place: String,
    /// That moment.
    pub now: UnixTime,
}

/// Who leads a run, as far as this host can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// This process of this host.
    Here(u32),
    /// A process of the host that its files name, which this host cannot see.
    Elsewhere,
    /// Nobody.
    Nobody,
    /// Whoever has answered over the network.
    Answered,
}

impl Sight {
    /// Whether it may change.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.leader != Leader::Nobody && self.progress.summary.is_none()
    }
}
