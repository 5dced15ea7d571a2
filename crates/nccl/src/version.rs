//! NCCL's version number, as it counts.

use std::fmt;

/// A version as NCCL counts: major, minor and patch in one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(pub u32);

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `NCCL_VERSION` of nccl.h: from 2.9 on, the minor number has two digits.
        let (major, minor) = match self.0 {
            0..10_000 => (self.0 / 1_000, self.0 % 1_000 / 100),
            code => (code / 10_000, code % 10_000 / 100),
        };
        write!(f, "{major}.{minor}.{}", self.0 % 100)
    }
}
