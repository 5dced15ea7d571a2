//! Versions of the driver.

use std::fmt;

/// The newest CUDA that a driver serves, as it says it: 1000 x major + 10 x minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverVersion(pub u32);

impl DriverVersion {
    /// Its major version.
    #[must_use]
    pub fn major(self) -> u32 {
        self.0 / 1000
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The first driver that serves every GPU that the kernels are written for.
pub(crate) const LEAST: DriverVersion = DriverVersion(12_000);
