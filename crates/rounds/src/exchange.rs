//! The seam for exchanges: collectives that add nothing, by which the ranks of a generation exchange floats.
//!
//! It does not know what the floats are, nor how they travel.

use dtrain_collective::{CollectiveError, Narrow, Op};

/// What the ranks of a generation exchange floats by.
pub trait Exchange: Send {
    /// The memory that collectives work in. It is asked for no more once one broke off.
    fn slot(&mut self) -> &mut [f32];

    /// Says what ranks need, and what they have, in the collectives that follow.
    fn narrow(&mut self, narrow: &Narrow);

    /// Runs a collective that adds nothing, from its start to its end.
    ///
    /// *Blocks* for all ranks. *Errors*: it broke off.
    fn gather(&mut self, op: &Op<'_>) -> Result<(), CollectiveError>;
}
