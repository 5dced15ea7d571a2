//! Where the life of a generation stands, and what a rank is doing in it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where the life of a generation stands. The order is the order in time; a [`Directive`](crate::Directive) is acted on once per
/// (generation, phase).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Members are gathering; there is no generation yet.
    Join,
    /// Members, ranks and ranges are named.
    Form,
    /// The data plane is built and the state is loaded or copied.
    Sync,
    /// Steps are made.
    Run,
    /// All is written; members leave in good order.
    Finish,
    /// The run ends early; members abort their collectives and leave.
    Stop,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Join => "join",
            Self::Form => "form",
            Self::Sync => "sync",
            Self::Run => "run",
            Self::Finish => "finish",
            Self::Stop => "stop",
        })
    }
}

/// What a rank is doing right now; tells which rank a world waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activity {
    /// Nothing: waits for an order.
    #[default]
    Idle,
    /// Builds the data plane or loads the state.
    Preparing,
    /// Waits for the loader.
    Loading,
    /// Forward, backward or update.
    Computing,
    /// Inside a collective: waits for its peers.
    Reducing,
    /// Validates.
    Validating,
    /// Copies the state for a checkpoint.
    Saving,
}
