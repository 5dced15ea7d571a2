//! Memory of the device that somebody else lends: as the device has it. This file does not know what it is for.

use crate::OwnMemory;
use dtrain_types::DeviceMemory;
use std::ops::Range;

/// Lays elements of the device into memory that was lent. *Panics* as [`slot`], and beyond the end.
pub(super) fn lay_into<D: OwnMemory>(device: &D, from: D::Ref<'_>, to: &DeviceMemory, place: Range<usize>) {
    let mut to = slot::<D>(to);
    let mut to = D::take(&mut to);
    device.copy(from, D::part_mut(&mut to, place));
}

/// Memory that was lent, as the device has it. *Panics* if it is of another one.
pub(super) fn slot<D: OwnMemory>(memory: &DeviceMemory) -> D::Floats {
    D::slot(memory).expect("what is lent is memory of this device")
}
