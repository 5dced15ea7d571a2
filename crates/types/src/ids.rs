//! Newtypes for every id and count, so that a step is never taken for a rank.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A member's index in one generation, from 0.
    Rank(u32)
);
number!(
    /// How many ranks a generation has.
    WorldSize(u32)
);
number!(
    /// The count of optimizer updates done after this step; the first step is 1, and 0 is the initial state.
    Step(u64)
);
number!(
    /// One agreed membership with its ranges; any change makes a new one. 0 is "none yet".
    Generation(u64)
);
number!(
    /// The index of a micro-batch in its step, from 0.
    MicroBatch(u32)
);
number!(
    /// A pass over the training data, from 0.
    Epoch(u32)
);
number!(
    /// A process slot, stable across restarts of the process.
    MemberId(u32)
);
number!(
    /// One life of a member, issued by the supervisor with the order to start its process; 0 is "none yet".
    Incarnation(u32)
);
number!(
    /// A host's number in the run, as its `--rank` says; the supervisor runs in node 0.
    NodeId(u32)
);
number!(
    /// One life of the supervisor, drawn at its start.
    Instance(u64)
);
number!(
    /// The one number from which all randomness of a run follows.
    Seed(u64)
);
number!(
    /// A size in bytes.
    Bytes(u64)
);

impl Step {
    /// The step after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Generation {
    /// The generation after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Incarnation {
    /// The life after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Rank {
    /// This rank as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
