//! How far two hosts' times of day are apart, from one question and its answer. Pure: times come as values.
//!
//! Nothing of the protocol is decided by it: times of day are for logs, and for certificates, which are older than this.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A time of day. *Units*: nanoseconds since 1970 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixNanos(pub u64);

/// What the clock of who answers said, before the answer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// When the question was heard.
    pub heard: UnixNanos,
    /// When the answer was said: who asks may have had to wait for it.
    pub said: UnixNanos,
}

/// How far the clock of who answered is ahead of that of who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// *Units*: nanoseconds; negative where the other one is behind.
    pub nanos: i64,
    /// The truth is at most so far from it: half of the time that words were on their way.
    pub within: Duration,
}

impl ClockOffset {
    /// The offset by one round trip, asked and answered by the own clock; none where the times make no sense, because a
    /// clock was set meanwhile.
    ///
    /// *Source*: RFC 5905, section 8: `((T2 - T1) + (T3 - T4)) / 2` with the delay `(T4 - T1) - (T3 - T2)`.
    #[must_use]
    pub fn estimate(asked: UnixNanos, reading: ClockReading, answered: UnixNanos) -> Option<Self> {
        let [t1, t2, t3, t4] = [asked, reading.heard, reading.said, answered].map(|time| i128::from(time.0));
        let delay = (t4 - t1) - (t3 - t2);
        if t4 < t1 || t3 < t2 || delay < 0 {
            return None;
        }
        let nanos = i64::try_from(((t2 - t1) + (t3 - t4)) / 2).ok()?;
        Some(Self { nanos, within: Duration::from_nanos(u64::try_from(delay / 2).ok()?) })
    }

    /// How far the clocks are apart, whichever is ahead.
    #[must_use]
    pub fn apart(&self) -> Duration {
        Duration::from_nanos(self.nanos.unsigned_abs())
    }

    /// Whether they are certainly more than so much apart.
    #[must_use]
    pub fn exceeds(&self, limit: Duration) -> bool {
        self.apart() > limit.saturating_add(self.within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A round trip of which the way there takes `there`, the other side `busy` and the way back `back`, in milliseconds,
    /// asked of a clock that is `ahead` of ours.
    fn trip(ahead: i64, [there, busy, back]: [u64; 3]) -> Option<ClockOffset> {
        let begun = 1_700_000_000_000 * MS;
        let theirs = |ours: u64| UnixNanos(ours.checked_add_signed(ahead).expect("after 1970"));
        let (heard, said) = (begun + there * MS, begun + (there + busy) * MS);
        let reading = ClockReading { heard: theirs(heard), said: theirs(said) };
        ClockOffset::estimate(UnixNanos(begun), reading, UnixNanos(said + back * MS))
    }

    #[test]
    fn an_even_way_gives_the_exact_offset_however_long_the_other_side_was_busy() {
        for ahead in [0, 250, -7_000, 86_000_000].map(|ms| ms * MS as i64) {
            for busy in [0, 900] {
                let offset = trip(ahead, [3, busy, 3]).unwrap();
                assert_eq!((offset.nanos, offset.within), (ahead, Duration::from_millis(3)));
            }
        }
    }

    #[test]
    fn an_uneven_way_is_never_wrong_by_more_than_it_says() {
        for [there, back] in [[0, 10], [10, 0], [1, 40], [7, 2]] {
            let offset = trip(-500 * MS as i64, [there, 5, back]).unwrap();
            let wrong = (offset.nanos + 500 * MS as i64).unsigned_abs();
            assert!(u128::from(wrong) <= offset.within.as_nanos(), "{offset:?}");
        }
    }

    #[test]
    fn a_clock_that_was_set_meanwhile_gives_no_offset() {
        let [early, late] = [UnixNanos(5 * MS), UnixNanos(9 * MS)];
        let steady = ClockReading { heard: early, said: early };
        assert_eq!(ClockOffset::estimate(late, steady, early), None, "ours went back");
        let back = ClockReading { heard: late, said: early };
        assert_eq!(ClockOffset::estimate(early, back, late), None, "theirs went back");
        let slow = ClockReading { heard: UnixNanos(0), said: UnixNanos(50 * MS) };
        assert_eq!(
            ClockOffset::estimate(early, slow, late),
            None,
            "they were busy for longer than we waited"
        );
    }

    #[test]
    fn what_a_peer_may_claim_overflows_nothing() {
        let claims = [UnixNanos(0), UnixNanos(u64::MAX)];
        for (heard, said) in claims.iter().flat_map(|a| claims.map(|b| (*a, b))) {
            for (asked, answered) in claims.iter().flat_map(|a| claims.map(|b| (*a, b))) {
                let offset = ClockOffset::estimate(asked, ClockReading { heard, said }, answered);
                assert!(offset.is_none_or(|offset| offset.apart() <= Duration::from_nanos(1 << 63)));
            }
        }
    }

    #[test]
    fn a_limit_is_exceeded_only_where_the_uncertainty_leaves_no_doubt() {
        let second = Duration::from_secs(1);
        let offset =
            |ms: i64, within| ClockOffset { nanos: ms * MS as i64, within: Duration::from_millis(within) };
        assert!(offset(1_200, 100).exceeds(second) && offset(-1_200, 100).exceeds(second));
        assert!(!offset(1_200, 300).exceeds(second) && !offset(900, 0).exceeds(second));
    }
}
