//! Dates and times of day, known by their form: `2024-05-01T10:00:00Z`, `1/2/2023`, `Jan 3, 2024`, `Mon, 3 January 2024`, `10:15`.
//!
//! Months and weekdays are English. It does not know which day is meant.

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// Whether a field is a date or a time of day.
pub(super) fn is_date(field: &str) -> bool {
    // Most words of a table have no digit, and every date has one.
    let has_digit = field.bytes().any(|byte| byte.is_ascii_digit());
    has_digit && field.len() <= 40 && (by_numbers(field) || by_names(field))
}

fn digits(part: &str, most: usize) -> bool {
    (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
}

fn by_numbers(field: &str) -> bool {
    let first = field.split([' ', 'T']).next().unwrap_or(field);
    let parts = |by| first.split(by).collect::<Vec<_>>();
    let date = ['-', '/', '.']
        .into_iter()
        .any(|by| matches!(parts(by)[..], [a, b, c] if digits(a, 4) && digits(b, 2) && digits(c, 4)));
    date || is_time(first)
}

fn is_time(part: &str) -> bool {
    let parts: Vec<&str> = part.split(':').collect();
    matches!(parts[..], [hours, minutes, ..] if digits(hours, 2) && digits(minutes, 2))
}

/// One month, a day or a year or both, and at most a weekday and a time beside them.
fn by_names(field: &str) -> bool {
    let named = |part: &str, names: &[&str]| {
        let part = part.trim_end_matches('.').to_ascii_lowercase();
        part.len() >= 3
            && names.iter().any(|name| name.starts_with(&part) || (part == "sept" && *name == "september"))
    };
    let is_day = |part: &str| {
        let number = ["st", "nd", "rd", "th"].iter().find_map(|end| part.strip_suffix(end)).unwrap_or(part);
        digits(number, 2)
    };
    let is_zone = |part: &str| {
        ["z", "utc", "gmt", "am", "pm"].contains(&part.to_ascii_lowercase().as_str())
            || part.strip_prefix(['+', '-']).is_some_and(|part| digits(part, 4))
    };
    let (mut months, mut numbers) = (0, 0);
    // `3-Jan-2024` and `Jan/3/2024`, but not the sign of a zone.
    let spaced = |part: &str| part.split(['-', '/']).filter(|part| !part.is_empty()).count() > 1;
    for word in field.split([' ', ',']).filter(|word| !word.is_empty()) {
        let parts: Vec<&str> = if spaced(word) { word.split(['-', '/']).collect() } else { vec![word] };
        for part in parts {
            if named(part, &MONTHS) {
                months += 1;
            } else if is_day(part) || (part.len() == 4 && digits(part, 4)) {
                numbers += 1;
            } else if !(named(part, &WEEKDAYS) || is_time(part) || is_zone(part)) {
                return false;
            }
        }
    }
    months == 1 && (1..=2).contains(&numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times_are_known_by_their_form() {
        for date in [
            "2024-05-01",
            "2024/01/03",
            "1/2/2023",
            "01.02.99",
            "2024-05-01T10:00:00Z",
            "2024-05-01 10:00",
            "10:15",
            "Jan 3, 2024",
            "3 Jan 2024",
            "January 3rd, 2024",
            "3-Jan-24",
            "Sept. 2024",
            "Mon, 03 Jun 2024 10:00:00 +0200",
            "Jan 3 2024 10:15 PM",
        ] {
            assert!(is_date(date), "{date}");
        }
        for other in [
            "Bern",
            "a-b-c",
            "12-34",
            "1-2-3-4",
            "",
            "::",
            "May",
            "Jan Svensson 3",
            "3 Ma",
            "Building 3",
            "March hare 3",
            "4",
            "2024",
            "Jan Feb 3",
            "Dec 1 2 3",
        ] {
            assert!(!is_date(other), "{other}");
        }
    }
}
