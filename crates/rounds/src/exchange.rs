//! The seam for exchanges: collectives that add nothing, by which the ranks of a generation exchange floats.
//!
//! It does not know what the floats are, nor how they travel.

use dtrain_collective::{CollectiveError, DeviceSlot, Narrow, Op};
use std::ops::Range;

/// What the ranks of a generation exchange floats by.
pub trait Exchange: Send {
    /// The memory that collectives work in. It is asked for no more once one broke off.
    fn slot(&mut self) -> &mut [f32];

    /// A part of it, where the rest is of no use.
    fn part(&mut self, part: Range<usize>) -> &mut [f32] {
        &mut self.slot()[part]
    }

    /// The same, where it is memory of a device.
    fn device_slot(&mut self) -> Option<&mut dyn DeviceSlot> {
        None
    }

    /// Says what ranks need, and what they have, in the collectives that follow.
    fn narrow(&mut self, narrow: &Narrow);

    /// Runs a collective that adds nothing, from its start to its end.
    ///
    /// *Blocks* for all ranks. *Errors*: it broke off.
    fn gather(&mut self, op: &Op<'_>) -> Result<(), CollectiveError>;
}

/// The slot on the device in whose memory windows lie.
pub(crate) fn there(by: &mut dyn Exchange) -> &mut dyn DeviceSlot {
    by.device_slot().expect("windows lie on the device of the slot")
}
