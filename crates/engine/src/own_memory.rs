//! Devices with memory of their own.

use crate::device::Device;
use crate::error::EngineError;
use crate::settling::{Findings, Normaliser, Settling, UpdateScalars};
use dtrain_types::{Bytes, DeviceMemory};

/// A device with memory of its own, that the host reaches by copies alone.
///
/// *Errors* of all functions: [`EngineError::Device`]. What work that was given earlier failed in may be told by any of them.
pub trait OwnMemory: Device {
    /// f32 memory of the device; freed when dropped.
    type Floats: Send;
    /// u32 memory of the device; freed when dropped.
    type Words: Send;
    /// What it finds of a step, before the host knows it.
    type Pending: Send;

    /// Zeroed memory. *Errors*: also if there is not so much.
    fn floats(&self, len: usize) -> Result<Self::Floats, EngineError>;
    /// Zeroed memory. *Errors*: also if there is not so much.
    fn words(&self, len: usize) -> Result<Self::Words, EngineError>;
    /// A slot of somebody's arena as memory of this device, if that is what it is: the arena lends it as long as this lives.
    fn slot(memory: &DeviceMemory) -> Option<Self::Floats>;
    /// All of it, to read.
    fn look(memory: &Self::Floats) -> Self::Ref<'_>;
    /// All of it, to write.
    fn take(memory: &mut Self::Floats) -> Self::Mut<'_>;
    /// All of it, to read.
    fn ids(memory: &Self::Words) -> Self::Ids<'_>;
    /// Copies from the host to the beginning of `to`, behind the work given so far. `from` may be changed afterwards.
    fn send(&self, from: &[f32], to: &mut Self::Floats) -> Result<(), EngineError> {
        self.send_to(from, to, 0)
    }
    /// The same, to elements of `to` from this one on.
    fn send_to(&self, from: &[f32], to: &mut Self::Floats, at: usize) -> Result<(), EngineError>;
    /// The same, to activations: memory for some is [`Device::activation_len`] elements.
    fn send_activations(&self, from: &[f32], to: &mut Self::Floats) -> Result<(), EngineError> {
        self.send(from, to)
    }
    /// Copies from the host to the beginning of `to`, behind the work given so far. `from` may be changed afterwards.
    fn send_ids(&self, from: &[u32], to: &mut Self::Words) -> Result<(), EngineError>;
    /// Copies from the host to the beginning of `to`, behind the work given up to the last join and beside all that was given
    /// since, of which none may use `to`. `from` may be changed afterwards.
    fn send_ahead(&self, from: &[f32], to: &mut Self::Floats) -> Result<(), EngineError>;
    /// The same, to activations.
    fn send_activations_ahead(&self, from: &[f32], to: &mut Self::Floats) -> Result<(), EngineError> {
        self.send_ahead(from, to)
    }
    /// The same for ids.
    fn send_ids_ahead(&self, from: &[u32], to: &mut Self::Words) -> Result<(), EngineError>;
    /// What is given from now on comes behind what was sent ahead.
    fn join_ahead(&self) -> Result<(), EngineError>;
    /// Copies the beginning of `from` to the host. *Blocks* until all work given so far is done.
    fn fetch(&self, from: &Self::Floats, to: &mut [f32]) -> Result<(), EngineError> {
        self.fetch_from(from, 0, to)
    }
    /// The same, of elements from this one on.
    fn fetch_from(&self, from: &Self::Floats, at: usize, to: &mut [f32]) -> Result<(), EngineError>;
    /// The same, from activations.
    fn fetch_activations(&self, from: &Self::Floats, to: &mut [f32]) -> Result<(), EngineError> {
        self.fetch(from, to)
    }
    /// Copies from memory of the device to elements of `to` from this one on, and brings the copy of these up to date where it has one
    /// ([`OwnMemory::parameters`]).
    fn copy_to(&self, from: Self::Ref<'_>, to: &mut Self::Floats, at: usize);
    /// Writes the sums that [`Device::sum_of_squares`] adds in order to the beginning of `to`: of each block of
    /// [`NORM_BLOCK`](crate::device::NORM_BLOCK) elements the bits of an f64, the lower half first. *Panics* unless there are two floats for each.
    fn squares(&self, g: Self::Ref<'_>, scale: f32, to: &mut Self::Floats);
    /// Elements of f32 memory that the copy of so many parameters takes, where the device has one.
    fn copy_len(&self, _parameters: usize) -> usize {
        0
    }
    /// Zeroed memory for parameters: where the device multiplies them in fewer bits, with a copy that it keeps up to date itself.
    /// *Errors*: also if there is not so much.
    fn parameters(&self, len: usize) -> Result<Self::Floats, EngineError> {
        self.floats(len)
    }

    /// The most of its memory that was held at once.
    fn peak_memory(&self) -> Bytes;
    /// Keeps what the last losses came to, so many of them, for [`OwnMemory::settle`]. *Errors*: also if there is no room.
    fn keep_losses(&self, losses: usize) -> Result<(), EngineError>;
    /// What losses are multiplied by: the scale that was set or found last, when it comes to them.
    fn loss_scale(&self) -> Self::Scalar;
    /// Sets it, behind the work given so far.
    fn set_loss_scale(&self, factor: f32) -> Result<(), EngineError>;
    /// Looks at a reduced gradient, behind the work given so far, and finds what its update comes to: see [`Settling`]. The scale of
    /// the loss, behind the statistics in `stats`, is brought up to date. What it gives says what the update multiplies by: an operation
    /// that is given a number of an update that is not made changes nothing. None, where the device knows already that it is not made.
    ///
    /// *Order*: sums and factors have the bits of the host's. *Panics* if the losses are not the last ones, in their order, or not kept.
    fn settle(
        &self,
        update: &Settling<'_>,
        normaliser: Normaliser<'_, Self::Sums>,
        gradient: Self::Ref<'_>,
        stats: Self::Mut<'_>,
    ) -> Result<Option<UpdateScalars<Self::Scalar>>, EngineError>;
    /// Sends what it found last on its way to the host, behind the work given so far: the update, as a rule.
    fn send_findings(&self) -> Result<Self::Pending, EngineError>;
    /// What it found. *Blocks* until it is known. Of two that are pending the older one is asked for first.
    fn findings(&self, of: Self::Pending) -> Result<Findings, EngineError>;
    /// Behind an update that halted: the next one changes the state again.
    fn go_on(&self) -> Result<(), EngineError>;
}
