//! What the bits of a device's results depend on, in a few bytes. How it is found out is not known here.

use crate::digest::Digest;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The identity of a device's arithmetic: two devices whose fingerprints agree give the same bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The instruction set or device family in use, for people.
    pub isa: String,
    /// Digest of a short fixed run of every operation.
    pub self_test: Digest,
    /// Revision of the kernels.
    pub kernel_revision: u32,
}

impl Fingerprint {
    /// Whether results of both have the same bits. Instruction sets that pass the same self-test compute the same.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.self_test == other.self_test && self.kernel_revision == other.kernel_revision
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.self_test.0;
        write!(f, "{} (kernels {}, self-test {a:02x}{b:02x}{c:02x}{d:02x})", self.isa, self.kernel_revision)
    }
}
