//! Times as numbers: a number is one already; of a date or a time of day, the seconds.
//!
//! Zones are respected where they stand. It does not know leap seconds, nor dates with the names of months.

/// The time in a field, or nothing if it is none.
pub(super) fn instant(field: &str) -> Option<f64> {
    let field = field.trim();
    if let Ok(number) = field.parse::<f64>() {
        return number.is_finite().then_some(number);
    }
    let (date, time) = match field.split_once(['T', ' ']) {
        Some((date, time)) => (Some(date), time.trim()),
        None if field.contains(':') => (None, field),
        None => (Some(field), ""),
    };
    let days = date.map_or(Some(0), days)?;
    let seconds = if time.is_empty() && date.is_some() { 0.0 } else { seconds(time)? };
    Some(days as f64 * 86_400.0 + seconds)
}

/// Days since 1970 of `2024-05-01` or `2024/05/01`.
///
/// *Source*: H. Hinnant, "chrono-compatible low-level date algorithms", `days_from_civil`.
fn days(date: &str) -> Option<i64> {
    let parts: Vec<&str> = date.split(['-', '/']).collect();
    let [year, month, day] = parts[..] else { return None };
    let whole = |text: &str, most: usize| {
        let is_number = (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<i64>().ok())?
    };
    let (year, month, day) = (whole(year, 4).filter(|_| year.len() == 4)?, whole(month, 2)?, whole(day, 2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// The seconds of `10:15`, `10:15:30.25`, with `Z`, `+02:00` or `+0200` behind them or not.
fn seconds(time: &str) -> Option<f64> {
    let (clock, zone) = match time.find(['Z', '+', '-']) {
        Some(at) => (time[..at].trim(), &time[at..]),
        None => (time, "Z"),
    };
    let parts: Vec<&str> = clock.split(':').collect();
    let number = |text: &str, below: f64| {
        let is_number = text.starts_with(|c: char| c.is_ascii_digit());
        text.parse::<f64>().ok().filter(|value| is_number && *value < below)
    };
    let (hours, minutes) = (number(parts.first()?, 25.0)?, number(parts.get(1)?, 60.0)?);
    let seconds = parts.get(2).map_or(Some(0.0), |text| number(text, 61.0))?;
    if parts.len() > 3 {
        return None;
    }
    let ahead = match zone {
        "Z" => 0.0,
        zone => {
            let (sign, digits) = (if zone.starts_with('-') { -1.0 } else { 1.0 }, zone[1..].replace(':', ""));
            let hours: f64 = number(digits.get(..2)?, 25.0)?;
            sign * (hours * 3600.0 + digits.get(2..4).map_or(Some(0.0), |text| number(text, 60.0))? * 60.0)
        }
    };
    Some(hours * 3600.0 + minutes * 60.0 + seconds - ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_themselves_and_dates_come_to_seconds() {
        for (field, seconds) in [
            ("12.5", 12.5),
            (" -3 ", -3.0),
            ("1970-01-01", 0.0),
            ("1970-01-02T00:00:01Z", 86_401.0),
            ("2024/02/29 12:00", 1_709_208_000.0),
            ("2024-03-01T00:00:00.25+01:00", 1_709_247_600.25),
            ("2000-01-01 00:00:00-0130", 946_690_200.0),
            ("10:15:30.5", 36_930.5),
        ] {
            assert_eq!(instant(field), Some(seconds), "{field}");
        }
        for none in [
            "",
            "x",
            "nan",
            "inf",
            "2024-13-01",
            "2024-01",
            "24-01-03",
            "10:77",
            "1:2:3:4",
            "2024-01-03Tx",
            "Jan 3",
        ] {
            assert_eq!(instant(none), None, "{none}");
        }
    }
}
