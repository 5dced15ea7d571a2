//! Devices whose memory another program in this process reaches too, by its addresses.

use crate::own_memory::OwnMemory;

/// f32 memory of a device, as another program in this process finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentFloats {
    /// Its address there.
    pub address: u64,
    /// How many.
    pub elements: usize,
}

/// A device whose memory and queue of work another program in this process uses too: what the program puts on the queue comes behind all
/// that was given before, and in front of what is given later.
pub trait LendsMemory: OwnMemory {
    /// Where numbers lie that the program may read.
    fn lent(of: Self::Ref<'_>) -> LentFloats;
    /// Where numbers lie that the program may write.
    fn lent_mut(of: &Self::Mut<'_>) -> LentFloats;
    /// Where the f32 lies that losses are multiplied by: see [`OwnMemory::loss_scale`].
    fn lent_scale(&self) -> u64;
    /// A place for what the next loss comes to, and its address: an f64 for the loss, one for its weight, and another one that becomes
    /// zero. It is a loss as those of [`Device`](crate::device::Device) are.
    fn lent_sums(&self) -> (Self::Sums, u64);
}
