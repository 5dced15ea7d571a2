//! Numbers as people read them.

use dtrain_types::plural;
use std::time::Duration;

/// A metric of a program's own, as people call it.
#[must_use]
pub fn own_name(name: &str) -> &str {
    name.strip_prefix("val_").unwrap_or(name)
}

/// `12 345`: groups of three with a space, from five digits on.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let first = digits.len() % 3;
    let mut text = digits[..first].to_owned();
    for group in digits.as_bytes()[first..].chunks(3) {
        if !text.is_empty() {
            text.push(' ');
        }
        text.extend(group.iter().map(|byte| char::from(*byte)));
    }
    text
}

/// `12 345 steps`, `1 epoch`.
#[must_use]
pub fn amount(count: u64, noun: &str) -> String {
    format!("{} {}", grouped(count), plural(&count, noun))
}

/// `1.5 MiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(scale, _)| count >= *scale) {
        Some((scale, unit)) => format!("{:.1} {unit}", count as f64 / scale as f64),
        None => format!("{count} B"),
    }
}

/// `820 ms`, `12.3 s`, `4 min 05 s`, `3 h 20 min`.
#[must_use]
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A loss with four digits that count.
#[must_use]
pub fn loss(loss: f64) -> String {
    if loss.is_finite() && (loss.abs() >= 1e4 || (loss != 0.0 && loss.abs() < 1e-3)) {
        format!("{loss:.3e}")
    } else {
        format!("{loss:.4}")
    }
}

/// A measured size with five digits that count, and no exponent where a person can do without: `9213.8`, `0.01235`.
#[must_use]
pub fn measure(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor() as i32;
    match magnitude {
        -4..=11 => format!("{value:.*}", usize::try_from(4 - magnitude).unwrap_or(0)),
        _ => format!("{value:.4e}"),
    }
}

/// `97.2 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A rate in samples a second.
#[must_use]
pub fn rate(samples: u64, seconds: f64) -> String {
    if seconds > 0.0 {
        format!("{} samples/s", grouped((samples as f64 / seconds).round() as u64))
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_keep_their_size() {
        let all = [0, 999, 1437, 12_345, 123_456, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "999", "1437", "12 345", "123 456", "1 234 567"]);
        assert_eq!([1, 20_000].map(|count| amount(count, "step")), ["1 step", "20 000 steps"]);
        assert_eq!([10, 1536, 3 << 20, 5 << 30].map(bytes), ["10 B", "1.5 KiB", "3.0 MiB", "5.0 GiB"]);
        let times = [20, 1234, 65_000, 7_500_000].map(|ms| duration(Duration::from_millis(ms)));
        assert_eq!(times, ["20 ms", "1.2 s", "1 min 05 s", "2 h 05 min"]);
        assert_eq!([0.123_456, 0.0, 2e-5, 12_345.6].map(loss), ["0.1235", "0.0000", "2.000e-5", "1.235e4"]);
        assert_eq!(
            [9213.75, 0.012_345_6, 312_345.6, 1e-9].map(measure),
            ["9213.8", "0.012346", "312346", "1.0000e-9"]
        );
        assert_eq!(loss(f64::NAN), "NaN");
        assert_eq!((percent(0.972), rate(100, 0.0)), ("97.2 %".to_owned(), String::new()));
    }
}
