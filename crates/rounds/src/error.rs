//! Why a round did not come to its end.

use dtrain_collective::CollectiveError;
use dtrain_engine::EngineError;

/// Why a round did not come to its end: nothing of it counts.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RoundsError {
    /// An exchange broke off.
    #[error(transparent)]
    Exchange(#[from] CollectiveError),
    /// A pass failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
