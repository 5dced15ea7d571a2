//! The one place where actors read a clock: it turns the system's time into the machines' values.

use dtrain_protocol::UnixNanos;
use dtrain_types::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the clock on the wall of this host says.
pub fn time_of_day() -> UnixNanos {
    // A clock before 1970 was never set.
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixNanos(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
}

/// Counts from the moment it was made; all machines of one process share one.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// The time now, as the machines take it.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The tokio instant of a machine's deadline.
    #[must_use]
    pub fn at(&self, deadline: Instant) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.origin + std::time::Duration::from_nanos(deadline.as_nanos()))
    }
}
