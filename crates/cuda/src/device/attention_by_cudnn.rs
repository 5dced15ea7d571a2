//! What a device has cuDNN attend: where pins say so, on the device's stream.
//!
//! Forward and gradient are chosen apart: what the one keeps for the other is the same, whoever computes it. It does not know how a choice
//! is made.

use super::CudaDevice;
use super::asked::{Attentions, Cost};
use super::placed::ALIGNED;
use crate::driver::DriverError;
use crate::libraries::Numbers;
use crate::libraries::attention::{AttentionKey, AttentionPass};
use crate::libraries::cudnn::{AttentionPlaces, Cudnn, CudnnHandle, PinnedAttention, PlannedAttention};
use crate::libraries::pins::AttentionPins;
use crate::memory::{Slice, SliceMut};
use crate::operations::{attention_saved, attention_scratch};
use dtrain_engine::device::{Attended, AttentionShape};

impl CudaDevice {
    /// The same, whose attention this library does where the pins say so. *Blocks* while the library begins.
    ///
    /// *Errors*: an engine that the library does not have; of the driver.
    pub fn with_attention(self, pins: &AttentionPins, library: &Cudnn) -> Result<Self, DriverError> {
        if pins.is_empty() {
            return Ok(self.with_own_attention());
        }
        // SAFETY: attention goes before the stream of its device.
        let handle = unsafe { self.handle_of(library) }?;
        let plan = |pin: &PinnedAttention| Ok((pin.key, handle.accept_attention(pin)?));
        let planned: Result<_, DriverError> = pins.algorithms().map(plan).collect();
        Ok(Self { attentions: Attentions::planned(handle, planned?), ..self })
    }

    /// The same, which notes attention of so many operations and more. The default is 2^28.
    #[must_use]
    pub fn noting_attention(self, least: u64) -> Self {
        Self { attentions: Attentions::noting(least), ..self }
    }

    /// The same, whose attention no library will ever do: none is noted.
    #[must_use]
    pub fn with_own_attention(self) -> Self {
        Self { attentions: Attentions::own(), ..self }
    }

    /// The attention that a library might be asked for, since the device was made, as [`CudaDevice::convolutions_asked_for`].
    #[must_use]
    pub fn attention_asked_for(&self) -> Vec<AttentionKey> {
        self.attentions.noted()
    }

    /// Whether a library has put the output on the stream. *Panics* unless lengths are those of the shape.
    pub(super) fn attention_by_library(
        &self,
        shape: &AttentionShape,
        qkv: Slice<'_, u16>,
        y: &SliceMut<'_, u16>,
        saved: &SliceMut<'_, f32>,
    ) -> bool {
        hold(shape, qkv, y.len(), saved.len());
        let at =
            AttentionPlaces { qkv: qkv.address(), y: y.address(), saved: saved.address(), gradient: [0; 3] };
        // SAFETY: the tensors lie there by the promise of their slices, whose lengths are the shape's.
        unsafe { self.attended_by_library(AttentionPass::Forward, shape, at) }
    }

    /// The same for the gradient of `qkv`.
    pub(super) fn attention_gradient_by_library(
        &self,
        shape: &AttentionShape,
        inputs: Attended<Slice<'_, u16>, Slice<'_, f32>>,
        dqkv: &SliceMut<'_, u16>,
        scratch: &SliceMut<'_, f32>,
    ) -> bool {
        let Attended { qkv, y, saved, dy } = inputs;
        hold(shape, qkv, y.len(), saved.len());
        assert_eq!((dy.len(), dqkv.len()), (y.len(), qkv.len()), "gradients of {shape:?}");
        assert!(scratch.len() >= attention_scratch(shape), "scratch for the gradient of {shape:?}");
        let at = AttentionPlaces {
            qkv: qkv.address(),
            y: y.address(),
            saved: saved.address(),
            gradient: [dy.address(), dqkv.address(), scratch.address()],
        };
        // SAFETY: as above.
        unsafe { self.attended_by_library(AttentionPass::Gradient, shape, at) }
    }

    /// Whether a library has put this on the stream.
    ///
    /// # Safety
    /// Tensors of the shape lie at these addresses, halves as the device's precision has them, until the stream is through; nothing else uses
    /// what is written until then.
    unsafe fn attended_by_library(
        &self,
        pass: AttentionPass,
        shape: &AttentionShape,
        at: AttentionPlaces,
    ) -> bool {
        let Some(reads) = Numbers::of(self.precision) else { return false };
        let Ok(key) = AttentionKey::of(pass, reads, shape) else { return false };
        // Where these lie follows from the model.
        let [dy, dqkv, scratch] = at.gradient;
        if [at.qkv, at.y, at.saved, dy, dqkv, scratch].iter().any(|at| !at.is_multiple_of(ALIGNED)) {
            return false;
        }
        let cost = Cost { operations: key.operations(), room: key.most_workspace() };
        self.given_to_cudnn(&self.attentions, key, cost, |handle, planned| {
            // SAFETY: the caller's promise.
            unsafe { self.attend(handle, planned, at) }
        })
    }

    /// Puts attention on the stream.
    ///
    /// # Safety
    /// Tensors of the plan's key lie at these addresses until the stream is through, nothing else uses what is written until then, and the
    /// handle is on this device's stream.
    pub(crate) unsafe fn attend(
        &self,
        handle: &CudnnHandle,
        planned: &PlannedAttention,
        at: AttentionPlaces,
    ) -> Result<(), DriverError> {
        let pinned = planned.pinned();
        // Nobody else asks for scratch before this is on the stream.
        let mut room = self.workspace();
        let workspace = room.room_for_library(pinned.workspace)?;
        let name = match pinned.key.pass {
            AttentionPass::Forward => "cuDNN, attention",
            AttentionPass::Gradient => "cuDNN, gradient of attention",
        };
        self.stream.give_foreign(name, |_| {
            // SAFETY: the caller's promise, and that of the scratch.
            unsafe { planned.run(handle, at, workspace) }.map_err(DriverError::from)
        })
    }
}

/// *Panics* unless lengths are those of the shape.
fn hold(shape: &AttentionShape, qkv: Slice<'_, u16>, y: usize, saved: usize) {
    let out = shape.batch * shape.time * shape.heads * shape.head;
    let lengths = (3 * out, out, attention_saved(shape));
    assert_eq!(
        (qkv.len(), y, saved),
        lengths,
        "queries, keys and values, output and what is kept of {shape:?}"
    );
}
