//! Collectives that add nothing, by which the ranks of a generation exchange floats. It does not know what they are.

use crate::broke::{Broke, off};
use dtrain_collective::{Backend, Op, Sequence};
use std::time::{Duration, Instant};

/// A collective that adds nothing, from its start to its end; tells how long it took.
///
/// *Blocks* as [`Backend::finish`]. *Errors*: it broke off.
pub fn move_floats(
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
    op: &Op<'_>,
) -> Result<Duration, Broke> {
    let begun = Instant::now();
    sequence.0 += 1;
    backend.start(*sequence, op).map_err(off)?;
    backend.finish(*sequence).map_err(off)?;
    Ok(begun.elapsed())
}

/// What ranks exchange floats by.
pub struct Wires<'a> {
    /// Has the slots.
    pub backend: &'a mut dyn Backend,
    /// The newest collective.
    pub sequence: &'a mut Sequence,
    /// How long others were waited for.
    pub waited: Duration,
    /// Whether a collective broke off: then no slot is lent any more.
    pub are_cut: bool,
}

impl Wires<'_> {
    /// Runs a collective that adds nothing, from its start to its end. *Blocks* for all ranks. *Errors*: it broke off.
    pub fn gather(&mut self, op: &Op<'_>) -> Result<(), Broke> {
        let moved = move_floats(self.backend, self.sequence, op);
        self.are_cut |= moved.is_err();
        self.waited += moved?;
        Ok(())
    }
}
