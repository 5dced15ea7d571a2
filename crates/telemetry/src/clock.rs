//! The time of day, as it stands in logs.
//!
//! It is for people and for joining logs of several hosts; nothing is decided by it.

use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// A time of day. *Units*: seconds since 1970 (UTC), with a fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixTime(pub f64);

impl UnixTime {
    /// What the clock of this host says.
    #[must_use]
    pub fn now() -> Self {
        // A clock before 1970 is a clock that was never set; the log then begins at 0.
        Self(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |passed| passed.as_secs_f64()))
    }
}
