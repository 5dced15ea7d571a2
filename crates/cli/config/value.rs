//! The types that a key can have: how each is read from the text of a user, and written back.
//!
//! Writing and reading are inverse (`read(write(v)) == v`). This file does not know any key.

use super::nearest::nearest;
use super::tree::{Tree, YamlNode};
use std::fmt;
use std::time::Duration;

/// A stretch of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Passes over the training data.
    Epochs(u32),
    /// Optimizer updates.
    Steps(u64),
}

impl Length {
    /// How many steps it is.
    #[must_use]
    pub fn in_steps(self, steps_per_epoch: u64) -> u64 {
        match self {
            Self::Epochs(epochs) => u64::from(epochs).saturating_mul(steps_per_epoch),
            Self::Steps(steps) => steps,
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self {
            Self::Epochs(count) => (u64::from(*count), "epoch"),
            Self::Steps(count) => (*count, "step"),
        };
        write!(f, "{count} {unit}{}", if count == 1 { "" } else { "s" })
    }
}

/// A value of a key, read and in range.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A keyword: `none`, `auto`, or one of a choice.
    Word(&'static str),
    /// A free text or a path.
    Text(String),
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// A finite number.
    Number(f64),
    /// A span of time.
    Time(Duration),
    /// A size in bytes.
    Size(u64),
    /// A stretch of training.
    Length(Length),
    /// Several values of one type.
    List(Vec<Value>),
}

/// What a key accepts.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// Any text that is not empty.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// `true` or `false`; `on`, `off`, `yes` and `no` are understood too.
    Bool,
    /// A whole number from the first to the second, both included.
    Int(i128, i128),
    /// A number that the rule accepts.
    Number(&'static NumberRange),
    /// A time with its unit.
    Time,
    /// A size, in bytes or with its unit.
    Size,
    /// `1 epoch`, `200 steps`, or a bare number of steps.
    Length,
    /// A list, or one value alone, which is a list of one.
    List(&'static Type),
    /// The first of these that fits.
    Either(&'static [Type]),
}

/// A range of numbers with its name.
#[derive(Debug)]
pub struct NumberRange {
    /// How a message calls it.
    pub words: &'static str,
    /// Whether a finite number is in it.
    pub holds: fn(f64) -> bool,
}

/// Any.
pub static ANY: NumberRange = NumberRange { words: "a number", holds: |_| true };
/// More than zero.
pub static POSITIVE: NumberRange = NumberRange { words: "a number above 0", holds: |x| x > 0.0 };
/// Zero or more.
pub static NOT_NEGATIVE: NumberRange = NumberRange { words: "a number of at least 0", holds: |x| x >= 0.0 };
/// From 0 up to 1, without 1.
pub static BELOW_ONE: NumberRange =
    NumberRange { words: "a number from 0 to below 1", holds: |x| (0.0..1.0).contains(&x) };
/// From 0 to 1, both included.
pub static FRACTION: NumberRange =
    NumberRange { words: "a number from 0 to 1", holds: |x| (0.0..=1.0).contains(&x) };

impl Type {
    /// Reads a value.
    ///
    /// *Errors*: the node again, when it is nothing of this type; [`Type::expected`] says what would be.
    pub fn read<'n>(&self, node: &'n YamlNode) -> Result<Value, &'n YamlNode> {
        match (self, &node.tree) {
            (Self::List(inner), Tree::List(items)) => {
                let values = items.iter().map(|item| inner.read(item));
                values.collect::<Result<Vec<_>, _>>().map(Value::List)
            }
            // A scalar in place of a list is a list of one; the error names the scalar itself.
            (Self::List(inner), Tree::Scalar { .. }) => {
                inner.read(node).map(|value| Value::List(vec![value]))
            }
            (Self::Either(types), _) => types.iter().find_map(|ty| ty.read(node).ok()).ok_or(node),
            (Self::Text, Tree::Scalar { text, .. }) if !text.is_empty() => Ok(Value::Text(text.clone())),
            // What stands in quotes is a text and nothing else.
            (_, Tree::Scalar { text, quoted: false }) => self.scalar(text).ok_or(node),
            _ => Err(node),
        }
    }

    fn scalar(&self, text: &str) -> Option<Value> {
        match self {
            Self::Text => None,
            Self::Choice(words) => {
                // YAML's own words for nothing are understood where `none` is.
                let text = if matches!(text, "null" | "~") { "none" } else { text };
                words.iter().find(|word| **word == text).map(|word| Value::Word(word))
            }
            Self::Bool => match text {
                "true" | "on" | "yes" => Some(Value::Bool(true)),
                "false" | "off" | "no" => Some(Value::Bool(false)),
                _ => None,
            },
            Self::Int(least, most) => {
                let digits = text.replace('_', "");
                digits.parse().ok().filter(|number| (least..=most).contains(&number)).map(Value::Int)
            }
            Self::Number(rule) => number(text).filter(|number| (rule.holds)(*number)).map(Value::Number),
            Self::Time => time(text).map(Value::Time),
            Self::Size => size(text).map(Value::Size),
            Self::Length => length(text).map(Value::Length),
            Self::List(_) | Self::Either(_) => unreachable!("handled by the caller"),
        }
    }

    /// What a message says was expected.
    #[must_use]
    pub fn expected(&self) -> String {
        match self {
            Self::Text => "a text".to_owned(),
            Self::Choice([only]) => (*only).to_owned(),
            Self::Choice(words) => words.join(" | "),
            Self::Bool => "true or false".to_owned(),
            Self::Int(least, most) if *most >= i128::from(u32::MAX) && *least == i128::from(i64::MIN) => {
                "a whole number".to_owned()
            }
            Self::Int(least, most) if *most >= i128::from(u32::MAX) => {
                format!("a whole number of at least {least}")
            }
            Self::Int(least, most) => format!("a whole number from {least} to {most}"),
            Self::Number(rule) => rule.words.to_owned(),
            Self::Time => "a time with its unit, such as 500ms or 2s".to_owned(),
            Self::Size => "a size, such as 4MiB".to_owned(),
            Self::Length => "a length, such as \"1 epoch\" or \"200 steps\"".to_owned(),
            Self::List(inner) => format!("a list, each {}", inner.expected()),
            Self::Either(types) => types.iter().map(Self::expected).collect::<Vec<_>>().join(", or "),
        }
    }

    /// The word of a choice that the user may have meant.
    #[must_use]
    pub fn suggestion(&self, text: &str) -> Option<&'static str> {
        match self {
            Self::Choice(words) => nearest(text, words.iter().copied()),
            Self::List(inner) => inner.suggestion(text),
            Self::Either(types) => types.iter().find_map(|ty| ty.suggestion(text)),
            _ => None,
        }
    }

    /// Whether a number in quotes would have been read without them.
    #[must_use]
    pub fn reads_unquoted(&self, node: &YamlNode) -> bool {
        match &node.tree {
            Tree::Scalar { text, quoted: true } => {
                self.read(&YamlNode::plain(text.clone(), node.origin.clone())).is_ok()
            }
            _ => false,
        }
    }
}

fn number(text: &str) -> Option<f64> {
    // Rust reads "inf" and "nan" as numbers; a configuration has no use for either.
    let number: f64 = text.replace('_', "").parse().ok()?;
    number.is_finite().then_some(number)
}

fn split_unit(text: &str) -> Option<(f64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    Some((number(&text[..digits])?, text[digits..].trim()))
}

fn time(text: &str) -> Option<Duration> {
    let (count, unit) = split_unit(text)?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let nanos = (count * seconds * 1e9).round();
    // A century is not a timeout but a slip, and would overflow clocks.
    (nanos > 0.0 && nanos < 3e18).then(|| Duration::from_nanos(nanos as u64))
}

/// A size in bytes, with or without its unit.
pub(crate) fn size(text: &str) -> Option<u64> {
    let (count, unit) = split_unit(text)?;
    let scale: u64 = match unit {
        "" | "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    let bytes = count * scale as f64;
    (bytes >= 1.0 && bytes <= (1u64 << 50) as f64 && bytes.fract() == 0.0).then_some(bytes as u64)
}

fn length(text: &str) -> Option<Length> {
    let (count, unit) = text.split_once(' ').unwrap_or((text, "steps"));
    let count: u64 = count.replace('_', "").parse().ok()?;
    match unit.trim() {
        "epoch" | "epochs" => u32::try_from(count).ok().map(Length::Epochs),
        "step" | "steps" => Some(Length::Steps(count)),
        _ => None,
    }
}

impl fmt::Display for Value {
    /// Writes the value as YAML that this program and YAML 1.1 readers read alike.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => f.write_str(word),
            Self::Text(text) if is_plain(text) => f.write_str(text),
            Self::Text(text) => write_quoted(f, text),
            Self::Bool(value) => value.fmt(f),
            Self::Int(number) => number.fmt(f),
            Self::Number(number) => f.write_str(&yaml_number(*number)),
            Self::Time(time) => f.write_str(&with_unit(
                u64::try_from(time.as_nanos()).expect("times are bounded when read"),
                &[(3_600_000_000_000, "h"), (1_000_000_000, "s"), (1_000_000, "ms")],
                (1000, "us"),
            )),
            Self::Size(bytes) => f.write_str(&with_unit(
                *bytes,
                &[(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")],
                (1, ""),
            )),
            Self::Length(length) => length.fmt(f),
            Self::List(values) => {
                write!(f, "[{}]", values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// The largest unit that gives a whole number.
fn with_unit(count: u64, units: &[(u64, &str)], smallest: (u64, &str)) -> String {
    let unit = units.iter().find(|(scale, _)| count.is_multiple_of(*scale)).unwrap_or(&smallest);
    if count.is_multiple_of(unit.0) {
        format!("{}{}", count / unit.0, unit.1)
    } else {
        format!("{}{}", count as f64 / unit.0 as f64, unit.1)
    }
}

/// Shortest digits that give the same f64; YAML 1.1 wants a point and a sign in the exponent.
fn yaml_number(number: f64) -> String {
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let point = if digits.contains('.') { "" } else { ".0" };
            let sign = if exponent.starts_with('-') { "" } else { "+" };
            format!("{digits}{point}e{sign}{exponent}")
        }
    }
}

/// Whether a text survives YAML without quotes and is not taken for a keyword, number or list.
fn is_plain(text: &str) -> bool {
    let words = ["none", "auto", "null", "true", "false", "on", "off", "yes", "no", "never"];
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '.')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
        && number(text).is_none()
        && !words.contains(&text.to_lowercase().as_str())
}

fn write_quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            c if c.is_control() => write!(f, "\\u{:04x}", c as u32)?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

/// Whole numbers of a list.
///
/// *Panics* where the table lets other values be in it.
pub(super) fn counts(values: &[Value]) -> Vec<usize> {
    values
        .iter()
        .map(|value| match value {
            Value::Int(count) => usize::try_from(*count).expect("the table bounds widths"),
            other => panic!("no count: {other:?}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::origin::Origin;
    use super::super::tree::parse_argument;
    use super::*;

    fn read(ty: Type, text: &str) -> Option<Value> {
        ty.read(&parse_argument(text, &Origin::Default).unwrap()).ok()
    }

    #[test]
    fn units_are_read_and_missing_ones_are_refused() {
        let time = |text| read(Type::Time, text);
        assert_eq!(time("500ms"), Some(Value::Time(Duration::from_millis(500))));
        assert_eq!(time("1.5s"), Some(Value::Time(Duration::from_millis(1500))));
        assert_eq!(time("2m"), Some(Value::Time(Duration::from_secs(120))));
        for text in ["60", "0s", "-1s", "1d", "s", "", "1e400s", "99999999999h"] {
            assert_eq!(time(text), None, "{text}");
        }
        let size = |text| read(Type::Size, text);
        assert_eq!(size("4MiB"), Some(Value::Size(4 << 20)));
        assert_eq!(size("4096"), Some(Value::Size(4096)));
        assert_eq!(size("1 GB"), Some(Value::Size(1_000_000_000)));
        for text in ["0", "4mib", "1.5", "-4MiB", "1e9GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn a_length_is_in_epochs_or_in_steps() {
        let length = |text| read(Type::Length, text);
        assert_eq!(length("1 epoch"), Some(Value::Length(Length::Epochs(1))));
        assert_eq!(length("20 epochs"), Some(Value::Length(Length::Epochs(20))));
        assert_eq!(length("300"), Some(Value::Length(Length::Steps(300))));
        assert_eq!(length("300 steps"), Some(Value::Length(Length::Steps(300))));
        for text in ["1 day", "epoch", "0.5 epochs", "-1 epochs", ""] {
            assert_eq!(length(text), None, "{text}");
        }
    }

    #[test]
    fn a_number_is_finite_and_in_range() {
        let positive = Type::Number(&POSITIVE);
        assert_eq!(read(positive, "3e-4"), Some(Value::Number(3e-4)));
        for text in ["0", "-1", "nan", "inf", "1e999", "fast", "\"0.1\""] {
            assert_eq!(read(positive, text), None, "{text}");
        }
        assert_eq!(read(Type::Int(1, 8), "9"), None);
        assert_eq!(read(Type::Int(1, 8), "1.0"), None);
        assert_eq!(
            read(Type::Int(0, i128::from(u64::MAX)), "18446744073709551615"),
            Some(Value::Int(u64::MAX.into()))
        );
    }

    #[test]
    fn quotes_make_a_text_of_a_keyword() {
        let name = Type::Either(&[Type::Choice(&["none"]), Type::Text]);
        assert_eq!(read(name, "none"), Some(Value::Word("none")));
        assert_eq!(read(name, "~"), Some(Value::Word("none")));
        assert_eq!(read(name, "\"none\""), Some(Value::Text("none".into())));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = Type::Either(&[Type::Choice(&["none", "auto"]), Type::Text]);
        let cases = [
            (text, Value::Text("digits-2".into())),
            (text, Value::Text("a: \"b\" # \\ \u{1}é\n".into())),
            (text, Value::Text("none".into())),
            (text, Value::Text("7".into())),
            (text, Value::Text("1e5".into())),
            (text, Value::Text("[x".into())),
            (text, Value::Word("auto")),
            (Type::Bool, Value::Bool(true)),
            (Type::Number(&NOT_NEGATIVE), Value::Number(1e-8)),
            (Type::Number(&NOT_NEGATIVE), Value::Number(0.1 + 0.2)),
            (Type::Number(&NOT_NEGATIVE), Value::Number(1e300)),
            (Type::Number(&NOT_NEGATIVE), Value::Number(0.0)),
            (Type::Time, Value::Time(Duration::from_secs(60))),
            (Type::Time, Value::Time(Duration::from_millis(1500))),
            (Type::Time, Value::Time(Duration::from_micros(7))),
            (Type::Size, Value::Size(4 << 20)),
            (Type::Size, Value::Size(12345)),
            (Type::Length, Value::Length(Length::Epochs(1))),
            (Type::Length, Value::Length(Length::Steps(0))),
            (Type::List(&Type::Int(0, 99)), Value::List(vec![Value::Int(64), Value::Int(32)])),
            (Type::List(&Type::Int(0, 99)), Value::List(vec![])),
        ];
        for (ty, value) in cases {
            assert_eq!(read(ty, &value.to_string()), Some(value.clone()), "{value}");
        }
        assert_eq!(Value::Number(1e-8).to_string(), "1.0e-8");
        assert_eq!(Value::Time(Duration::from_secs(60)).to_string(), "60s");
    }
}
