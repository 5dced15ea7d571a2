//! Times of day as people read them: the date in UTC, and how long ago that was.

use super::numbers::duration;
use std::time::Duration;

const DAY: u64 = 86_400;

/// `2026-11-23 18:37:01 UTC`. *Units*: seconds since 1970.
#[must_use]
pub fn utc(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / DAY);
    let time = seconds % DAY;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", time / 3600, time % 3600 / 60, time % 60)
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

/// Year, month and day of the day that comes so many days after 1970-01-01.
///
/// *Source*: `civil_from_days` of H. Hinnant 2013, "chrono-compatible low-level date algorithms": years begin in March, so
/// that a leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097; // days in 400 years
    let shifted = days + 719_468; // from 0000-03-01
    let (era, of_era) = (shifted / ERA, shifted % ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
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
