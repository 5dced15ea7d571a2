//! How much may be on its way to one peer: what the path carries in a round trip, and a little more.
//!
//! The congestion window of the link is no help here: on a path that loses nothing it grows until the buffers on the way
//! are full. What is copied for the link so far ahead has left the cache when the link reads it, and so has what
//! the peer receives; on the machines measured that is most of what an all-reduce costs beyond its link.
//! Time is an argument. It does not know frames.

use std::time::Duration;
use tokio::time::Instant;

/// What may be on its way however short the path is: it fits into the second-level cache beside what is received meanwhile.
/// *Units*: bytes.
const LEAST: usize = 512 << 10;
/// What may be on its way however long the path is; it fills a path of 1 GB/s with a round trip of 8 ms. *Units*: bytes.
const MOST: usize = 8 << 20;
/// Acknowledgements come in bursts, so a rate is taken over no shorter time than this.
const SHORTEST: Duration = Duration::from_millis(2);

/// Learns from what a peer acknowledges how much may be on its way to it.
#[derive(Debug)]
pub(super) struct Pace {
    /// The shortest that the link has seen.
    round_trip: Duration,
    limit: usize,
    /// The time over which `acknowledged` is counted.
    since: Instant,
    /// *Units*: bytes.
    acknowledged: usize,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self { round_trip: Duration::ZERO, limit: LEAST, since: now, acknowledged: 0 }
    }

    /// *Units*: bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Notes the shortest round trip of the path.
    pub fn path(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Notes that there was nothing on its way, and now there is.
    pub fn begin(&mut self, now: Instant) {
        (self.since, self.acknowledged) = (now, 0);
    }

    /// Notes that the peer has so many bytes more.
    ///
    /// The limit is twice what the rate fills a round trip with, so that it doubles with each one while the path takes all
    /// there is. It falls slowly, because the end of every collective looks like a slow path.
    pub fn acknowledged(&mut self, now: Instant, bytes: usize) {
        self.acknowledged += bytes;
        let spent = now - self.since;
        if spent < self.round_trip.max(SHORTEST) {
            return;
        }
        let carried = self.acknowledged as f64 * (self.round_trip.as_secs_f64() / spent.as_secs_f64());
        let wanted = LEAST + 2 * carried as usize;
        self.limit = wanted.max(self.limit - self.limit / 16).clamp(LEAST, MOST);
        self.begin(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit after so many round trips on a path that holds up to `room` bytes and is offered all that may be.
    fn after(round_trips: u32, round_trip: Duration, room: usize) -> usize {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        pace.path(round_trip);
        for _ in 0..round_trips {
            let offered = pace.limit().min(room);
            now += round_trip;
            pace.acknowledged(now, offered);
        }
        pace.limit()
    }

    #[test]
    fn a_short_path_gets_the_least_and_a_long_one_is_filled_within_a_few_round_trips() {
        assert_eq!(after(50, Duration::ZERO, usize::MAX), LEAST);
        assert_eq!(after(200, SHORTEST, 100 << 10), LEAST + (200 << 10));
        let shorter = after(200, SHORTEST / 100, 10 << 10);
        assert!(
            shorter < LEAST + (21 << 10),
            "{shorter} bytes on a path that carries 10 KiB in a round trip"
        );
        assert_eq!(after(6, Duration::from_millis(40), usize::MAX), MOST);
        let half = after(50, Duration::from_millis(40), MOST / 4);
        assert!((MOST / 2..MOST / 2 + 2 * LEAST).contains(&half), "{half}");
    }

    #[test]
    fn a_pause_is_not_taken_for_a_slow_path() {
        let (mut now, round_trip) = (Instant::now(), Duration::from_millis(40));
        let mut pace = Pace::new(now);
        pace.path(round_trip);
        for _ in 0..10 {
            now += round_trip;
            pace.acknowledged(now, pace.limit());
        }
        let before = pace.limit();
        now += Duration::from_secs(10);
        pace.begin(now);
        pace.acknowledged(now + round_trip, 1 << 10);
        assert!(pace.limit() >= before - before / 16, "{} after {before}", pace.limit());
        for _ in 0..500 {
            now += round_trip;
            pace.acknowledged(now, 1 << 10);
        }
        assert!(pace.limit() < LEAST + (8 << 10), "{} for a path that has become slow", pace.limit());
    }
}
