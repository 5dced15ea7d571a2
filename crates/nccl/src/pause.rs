//! Waiting between two looks at something that nobody will announce.

use std::time::{Duration, Instant};

/// Looks before the first sleep: about as long as a short collective takes.
const YIELDS: u32 = 200;
/// The shortest and the longest sleep between two looks.
const NAP: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// Yields at first, then sleeps longer and longer.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    looks: u32,
}

impl Pause {
    pub fn once(&mut self) {
        self.looks += 1;
        if self.looks <= YIELDS {
            return std::thread::yield_now();
        }
        let doublings = ((self.looks - YIELDS) / 16).min(6);
        std::thread::sleep((NAP * 2u32.pow(doublings)).min(LONGEST));
    }
}

/// A moment after which nobody waits any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub within: Duration,
    end: Instant,
}

impl Deadline {
    pub fn after(within: Duration) -> Self {
        Self { within, end: Instant::now() + within }
    }

    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}
