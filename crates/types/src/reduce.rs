//! In which order the gradients of a step are added.

use crate::Wire;
use serde::{Deserialize, Serialize};

crate::words!(
    /// The order in which the contributions of a step are added.
    #[derive(PartialOrd, Ord, Hash, Serialize, Deserialize)]
    Reduce {
        /// Along the reduction tree of the step: the same bits for every world size. Equal fingerprints are required, and a step
        /// counts once any member reports it.
        Exact = "exact",
        /// Around the ring: the bits depend on the world size. A step counts once all members report it.
        Ring = "ring",
    }
);

impl Reduce {
    /// How sums are made, for the log.
    #[must_use]
    pub fn describe(self, wire: Wire) -> &'static str {
        match (self, wire) {
            (Self::Exact, Wire::F32) => "exact",
            (Self::Exact, Wire::Bf16) => "exact in bf16",
            (Self::Ring, Wire::F32) => "ring",
            (Self::Ring, Wire::Bf16) => "ring in bf16",
        }
    }
}
