//! Devices with memory of their own.

use crate::device::Device;
use crate::error::EngineError;
use dtrain_types::DeviceMemory;

/// A device with memory of its own, that the host reaches by copies alone.
///
/// *Errors* of all functions: [`EngineError::Device`]. What work that was given earlier failed in may be told by any of them.
pub trait OwnMemory: Device {
    /// f32 memory of the device; freed when dropped.
    type Floats: Send;
    /// u32 memory of the device; freed when dropped.
    type Words: Send;

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
    fn send(&self, from: &[f32], to: &mut Self::Floats) -> Result<(), EngineError>;
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
    fn fetch(&self, from: &Self::Floats, to: &mut [f32]) -> Result<(), EngineError>;
    /// The same, from activations.
    fn fetch_activations(&self, from: &Self::Floats, to: &mut [f32]) -> Result<(), EngineError> {
        self.fetch(from, to)
    }
    /// Elements of f32 memory that the copy of so many parameters takes, where the device has one.
    fn copy_len(&self, _parameters: usize) -> usize {
        0
    }
    /// Zeroed memory for parameters: where the device multiplies them in fewer bits, with a copy that it keeps up to date itself.
    /// *Errors*: also if there is not so much.
    fn parameters(&self, len: usize) -> Result<Self::Floats, EngineError> {
        self.floats(len)
    }
}
