//! Versions as libraries tell them.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;

/// A version: the numbers to compare, and the text to show (a driver's `580.65.06` keeps its zero).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    numbers: Vec<u32>,
    text: String,
}

impl Version {
    /// A version of these numbers, the most significant first.
    #[must_use]
    pub fn new(numbers: &[u32]) -> Self {
        let text = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(".");
        Self { numbers: numbers.to_vec(), text }
    }

    /// Reads numbers with points between them, as in `580.65.06`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()?;
        Some(Self { numbers, text: text.to_owned() })
    }

    /// The number at a place, 0 where there is none: 0 is the major version.
    #[must_use]
    pub fn number(&self, place: usize) -> u32 {
        self.numbers.get(place).copied().unwrap_or(0)
    }

    /// `major * 1000 + minor * 10`: the driver's spelling (`13000` is 13.0).
    #[must_use]
    pub(crate) fn from_thousands(code: u32) -> Self {
        Self::new(&[code / 1000, code % 1000 / 10])
    }

    /// `major * 10000 + minor * 100 + patch`, or what the same library used before: `major * 1000 + ...`.
    ///
    /// *Source*: nccl.h (`NCCL_VERSION`, the change is at 2.9), cudnn_version.h (at 9.0), cublas_api.h. None of them
    /// ever had a major version above 10 in the older spelling except cuBLAS 11 (`11111`), so the two do not meet:
    /// `first` is the first major version that is spelled the newer way.
    #[must_use]
    pub(crate) fn from_hundreds(code: u64, first: u64) -> Self {
        let scale = if code >= first { 10_000 } else { 1000 };
        let part = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Self::new(&[part(code / scale), part(code % scale / 100), part(code % 100)])
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Version {}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    /// By number; one that is not there counts as 0.
    fn cmp(&self, other: &Self) -> Ordering {
        let places = self.numbers.len().max(other.numbers.len());
        let orders = (0..places).map(|place| self.number(place).cmp(&other.number(place)));
        orders.fold(Ordering::Equal, Ordering::then)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.text
    }
}

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is no version"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number_and_shown_as_they_were_told() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("2.9.1") < version("2.32.3") && version("13") < version("13.0.1"));
        assert_eq!(version("13"), version("13.0"));
        assert_eq!(version("580.65.06").to_string(), "580.65.06");
        assert_eq!(Version::parse("12.x"), None);
        assert_eq!(Version::parse(""), None);
    }

    #[test]
    fn the_spellings_of_all_libraries_are_read() {
        assert_eq!(Version::from_thousands(13000).to_string(), "13.0");
        assert_eq!(Version::from_thousands(12080).to_string(), "12.8");
        for (code, first, shown) in [
            (23203, 10_000, "2.32.3"),
            (2804, 10_000, "2.8.4"),
            (91002, 90_000, "9.10.2"),
            (8907, 90_000, "8.9.7"),
            (120_804, 100_000, "12.8.4"),
            (11_111, 100_000, "11.1.11"),
            (130_001, 100_000, "13.0.1"),
        ] {
            assert_eq!(Version::from_hundreds(code, first).to_string(), shown);
        }
    }
}
