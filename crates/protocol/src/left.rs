//! What a driver says of the state of its rank: with which one it left a generation, and with which one it begins another.

use crate::bootstrap::Bootstrap;
use dtrain_types::{Digest, Generation, Holding, Step};

/// What a driver says when everything before a generation is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The generation that is being formed.
    pub generation: Generation,
    /// Updates that the state holds; none without a state.
    pub applied: Option<Step>,
    /// As rank 0, and where the data plane needs it: what the ranks of the generation need to meet.
    pub bootstrap: Option<Bootstrap>,
}

/// What a driver says when a state is loaded or copied, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The generation that starts with it.
    pub generation: Generation,
    /// Updates that it holds.
    pub applied: Step,
    /// The shards of it that this rank holds.
    pub holding: Holding,
    /// Its digest; where ranks hold shards, that of what all of them have.
    pub state_digest: Digest,
}
