//! The addresses of a host for the links between the ranks of several hosts, and the ports there.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The addresses of a host for the links between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshAddress {
    /// Where its ranks listen.
    pub listen: IpAddr,
    /// Where others reach them.
    pub reached_at: IpAddr,
    /// At which of its UDP ports; without them the system chooses.
    pub ports: Option<PortRange>,
}

/// Ports from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// All of them, lowest first.
    #[must_use]
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for PortRange {
    type Err = String;

    /// `40000-40031`, or one port.
    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err("expected two UDP ports, the lower one first, such as 40000-40031".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_and_what_is_none_is_refused() {
        let read = |text: &str| text.parse::<PortRange>().map(|range| range.to_string());
        assert_eq!(read("40000-40031").as_deref(), Ok("40000-40031"));
        assert_eq!(read("65535").as_deref(), Ok("65535-65535"));
        assert_eq!("7-9".parse::<PortRange>().expect("three").ports().collect::<Vec<_>>(), [7, 8, 9]);
        for wrong in ["", "0-5", "9-7", "1-65536", "a-b", "1-2-3", "-5"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
