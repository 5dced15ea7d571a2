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

    /// The date and the time of day in UTC, without the fraction.
    #[must_use]
    pub fn civil(self) -> CivilTime {
        const DAY: u64 = 86_400;
        // What is before 1970 begins there.
        let seconds = self.0 as u64;
        let (year, month, day) = civil(seconds / DAY);
        let time = seconds % DAY;
        CivilTime { year, month, day, hour: time / 3600, minute: time % 3600 / 60, second: time % 60 }
    }
}

/// A date and a time of day in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilTime {
    /// The year.
    pub year: u64,
    /// From 1.
    pub month: u64,
    /// From 1.
    pub day: u64,
    /// From 0.
    pub hour: u64,
    /// From 0.
    pub minute: u64,
    /// From 0.
    pub second: u64,
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
