//! Collectives that add nothing, by which the ranks of a generation exchange floats. It does not know what they are.

use crate::broke::{Broke, off};
use dtrain_collective::{Backend, CollectiveError, DeviceSlot, Narrow, Op, Sequence};
use dtrain_rounds::Exchange;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A collective that adds nothing, from its start to its end; tells how long it took.
///
/// *Blocks* as [`Backend::finish`]. *Errors*: it broke off.
pub fn move_floats(
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
    op: &Op<'_>,
) -> Result<Duration, Broke> {
    moved(backend, sequence, op).map_err(off)
}

fn moved(
    backend: &mut dyn Backend,
    sequence: &mut Sequence,
    op: &Op<'_>,
) -> Result<Duration, CollectiveError> {
    let begun = Instant::now();
    sequence.0 += 1;
    backend.start(*sequence, op)?;
    backend.finish(*sequence)?;
    Ok(begun.elapsed())
}

/// What ranks exchange floats by: the backend of a generation.
pub struct Wires<'a> {
    /// Has the slots.
    pub backend: &'a mut dyn Backend,
    /// The newest collective.
    pub sequence: &'a mut Sequence,
}

impl Exchange for Wires<'_> {
    fn slot(&mut self) -> &mut [f32] {
        self.backend.arena().lease(0)
    }

    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        self.backend.arena().lease_part(0, part)
    }

    fn device_slot(&mut self) -> Option<&mut dyn DeviceSlot> {
        self.backend.device_slot()
    }

    fn narrow(&mut self, narrow: &Narrow) {
        self.backend.narrow(narrow);
    }

    fn gather(&mut self, op: &Op<'_>) -> Result<(), CollectiveError> {
        moved(self.backend, self.sequence, op).map(drop)
    }
}
