//! Times of day as people read them: the date in UTC, and how long ago that was.

use super::numbers::duration;
use dtrain_telemetry::{CivilTime, UnixTime};
use std::time::Duration;

const DAY: u64 = 86_400;

/// `2026-11-23 18:37:01 UTC`. *Units*: seconds since 1970.
#[must_use]
pub fn utc(seconds: u64) -> String {
    let CivilTime { year, month, day, hour, minute, second } = UnixTime(seconds as f64).civil();
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// `12.0 s ago`, `3 h 20 min ago`, `5 days ago`; `in the future` where the clock that wrote it was ahead.
#[must_use]
pub fn age(then: u64, now: u64) -> String {
    match now.checked_sub(then) {
        // Half a second is rounded up where it is written.
        None if then == now + 1 => "just now".to_owned(),
        None => "in the future".to_owned(),
        Some(0) => "just now".to_owned(),
        Some(passed) if passed < 60 => format!("{passed} s ago"),
        Some(passed) if passed < 2 * DAY => format!("{} ago", duration(Duration::from_secs(passed))),
        Some(passed) => format!("{} days ago", passed / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_a_date_also_around_leap_days() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_795_459_021, "2026-11-23 18:37:01 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), shown);
        }
    }

    #[test]
    fn an_age_is_said_in_the_unit_that_tells_most() {
        let ages = [1000, 970, 700, 1000 - 990].map(|then| age(then, 1000));
        assert_eq!(ages, ["just now", "30 s ago", "5 min 00 s ago", "16 min 30 s ago"]);
        assert_eq!(age(0, 5 * DAY), "5 days ago");
        assert_eq!((age(1001, 1000), age(1002, 1000)), ("just now".to_owned(), "in the future".to_owned()));
    }
}
