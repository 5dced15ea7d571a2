//! The seam for devices whose memory is the host's own: what replicas of one host can do together on them.

use crate::device::Device;
use std::sync::atomic::AtomicU64;

/// A device whose memory is the host's own: what a model's replica on the CPU works on.
pub trait HostDevice:
    for<'a> Device<Ref<'a> = &'a [f32], Mut<'a> = &'a mut [f32], Ids<'a> = &'a [u32], Scalar = f32>
{
    /// The sums that [`Device::sum_of_squares`] adds in order: of each block, the bits of an f64 in its word. So that some blocks
    /// are one replica's, and some another's. *Panics* unless there is a word for each block of `g`.
    fn squares(&self, g: &[f32], scale: f32, blocks: &[AtomicU64]);
}
