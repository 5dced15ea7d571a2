//! The clocks of processes: each begins somewhere else and is a little fast or slow.

use dtrain_types::Instant;

/// One process's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Where it began. *Units*: nanoseconds.
    pub offset: u64,
    /// How much it is fast. *Units*: millionths.
    pub drift: i64,
}

impl Clock {
    /// What it shows at a moment of the simulation.
    #[must_use]
    pub fn show(&self, at: u64) -> Instant {
        let shown = i128::from(at) * i128::from(1_000_000 + self.drift) / 1_000_000;
        Instant::from_nanos(self.offset + shown as u64)
    }

    /// The first moment of the simulation at which it shows this time.
    #[must_use]
    pub fn when(&self, shows: Instant) -> u64 {
        let Some(since) = shows.as_nanos().checked_sub(self.offset) else { return 0 };
        let mut at = (i128::from(since) * 1_000_000 / i128::from(1_000_000 + self.drift)) as u64;
        while self.show(at) < shows {
            at += 1;
        }
        at
    }
}

pub(crate) const MICRO: u64 = 1_000;

pub(crate) const MILLI: u64 = 1_000_000;

pub(crate) const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_a_time_at_the_first_moment_that_it_gives_for_it() {
        for (offset, drift) in [(0, 0), (77, 900), (5_000_000, -900)] {
            let clock = Clock { offset, drift };
            for shows in [offset + 1, offset + 999_999_999, offset + 123_456_789_012] {
                let at = clock.when(Instant::from_nanos(shows));
                assert!(clock.show(at).as_nanos() >= shows && clock.show(at - 1).as_nanos() < shows);
            }
        }
    }
}
