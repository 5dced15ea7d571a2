//! Which engine of cuDNN is fastest for attention on this GPU: each that it offers is timed, and dtrain's own kernels beside them.
//!
//! As for products ([`super::choosing`]). The library's notes do not say of every engine that it adds up in any order, so what is offered is tried
//! first: whoever gives other bits in a few repeats, or something else than dtrain's own kernels, is no candidate. It does not know who asks.

use super::attention::{AttentionKey, AttentionPass};
use super::cudnn::{AttentionPlaces, Cudnn, CudnnHandle, PinnedAttention, PlannedAttention};
use super::near::{are_near, are_near_floats};
use super::pins::Pin;
use super::timing;
use crate::CudaDevice;
use crate::driver::{Buffer, DriverError, Gpu};
use crate::memory::{Slice, SliceMut};
use crate::operations::{self, attention_saved, attention_scratch};
use crate::values::Half;
use dtrain_engine::device::Attended;
use std::sync::Arc;
use std::time::Duration;

/// Memory of one attention, filled with numbers of both signs.
struct Room {
    device: CudaDevice,
    half: Half,
    qkv: Buffer<u16>,
    y: Buffer<u16>,
    saved: Buffer<f32>,
    /// Of the output and of `qkv`; nothing for an output.
    gradients: [Buffer<u16>; 2],
    scratch: Buffer<f32>,
}

impl Room {
    fn new(gpu: &Arc<Gpu>, key: &AttentionKey) -> Result<Self, DriverError> {
        let precision = key.numbers.precision();
        let half = precision.half().expect("attention of halves");
        let device = CudaDevice::one_by_one(gpu, precision)?.with_own_attention();
        let (context, shape) = (gpu.context(), key.shape());
        let out = shape.batch * shape.time * shape.heads * shape.head;
        let has_gradient = key.pass == AttentionPass::Gradient;
        let if_so = |len: usize| if has_gradient { len } else { 0 };
        let filled = |len: usize, seed: u32| timing::numbers(&device, key.numbers.storage(), len, seed);
        let room = Self {
            half,
            qkv: filled(3 * out, 1)?,
            y: filled(out, 2)?,
            saved: Buffer::new(context, attention_saved(&shape))?,
            gradients: [filled(if_so(out), 3)?, filled(if_so(3 * out), 4)?],
            scratch: Buffer::new(context, if_so(attention_scratch(&shape)))?,
            device,
        };
        // A gradient is that of this output.
        room.forward(key);
        if has_gradient {
            room.gradient(key);
        }
        room.device.check()?;
        Ok(room)
    }

    fn places(&self) -> AttentionPlaces {
        let [dy, dqkv] = [0, 1].map(|i| self.gradients[i].address());
        AttentionPlaces {
            qkv: self.qkv.address(),
            y: self.y.address(),
            saved: self.saved.address(),
            gradient: [dy, dqkv, self.scratch.address()],
        }
    }

    fn forward(&self, key: &AttentionKey) {
        let (stream, shape) = (self.device.stream(), key.shape());
        // SAFETY: the memory is there, and what is on the stream writes it one behind the other.
        let (y, saved) = unsafe {
            let y = SliceMut::new(self.y.address(), self.y.len());
            (y, SliceMut::new(self.saved.address(), self.saved.len()))
        };
        operations::attention_half(stream, self.half, &shape, self.qkv.read(), y, saved);
    }

    fn gradient(&self, key: &AttentionKey) {
        let (stream, shape) = (self.device.stream(), key.shape());
        let [dy, dqkv] = &self.gradients;
        // SAFETY: as above.
        let (inputs, dqkv, scratch) = unsafe {
            let inputs = Attended {
                qkv: self.qkv.read(),
                y: self.y.read(),
                saved: Slice::new(self.saved.address(), self.saved.len()),
                dy: dy.read(),
            };
            let dqkv = SliceMut::new(dqkv.address(), dqkv.len());
            (inputs, dqkv, SliceMut::new(self.scratch.address(), self.scratch.len()))
        };
        operations::attention_half_gradient(stream, self.half, &shape, inputs, dqkv, scratch);
    }

    /// With this crate's own kernels.
    fn own(&self, key: &AttentionKey) -> Result<Duration, DriverError> {
        timing::best(self.device.stream(), || {
            match key.pass {
                AttentionPass::Forward => self.forward(key),
                AttentionPass::Gradient => self.gradient(key),
            }
            self.device.check()
        })
    }

    /// The result as it lies on the device, and what an output keeps for its gradient.
    fn result(&self, key: &AttentionKey) -> Result<(Vec<u16>, Vec<f32>), DriverError> {
        let [_, dqkv] = &self.gradients;
        let from = if key.pass == AttentionPass::Forward { &self.y } else { dqkv };
        let (mut found, mut kept) = (vec![0; from.len()], vec![0.0; self.saved.len()]);
        self.device.download(from.read(), &mut found)?;
        self.device.download(self.saved.read(), &mut kept)?;
        Ok((found, kept))
    }

    /// Whether an engine gives the same bits each time, near what dtrain's own kernels gave.
    fn is_right(
        &self,
        handle: &CudnnHandle,
        planned: &PlannedAttention,
        (wanted, kept): &(Vec<u16>, Vec<f32>),
    ) -> Result<bool, DriverError> {
        let key = planned.pinned().key;
        let [_, dqkv] = &self.gradients;
        let saved = (self.saved.address(), self.saved.len());
        let written = match key.pass {
            AttentionPass::Forward => [(self.y.address(), self.y.len() / 2), saved],
            AttentionPass::Gradient => [(dqkv.address(), dqkv.len() / 2), (saved.0, 0)],
        };
        let once = || {
            // What the engine does not write is not taken for what a kernel wrote.
            for (at, words) in written {
                // SAFETY: it is this device's own memory, and nobody else has it.
                unsafe { self.device.stream().fill(at, words, u32::MAX)? };
            }
            // SAFETY: the tensors lie there, as long as their shapes say; nothing else is on the stream.
            unsafe { self.device.attend(handle, planned, self.places()) }?;
            self.result(&key)
        };
        Ok(timing::same_each_time(once)?.is_some_and(|(found, saved)| {
            are_near(self.half, &found, wanted) && are_near_floats(self.half, &saved, kept)
        }))
    }

    fn of_library(&self, handle: &CudnnHandle, planned: &PlannedAttention) -> Result<Duration, DriverError> {
        timing::best(self.device.stream(), || {
            // SAFETY: the tensors lie there, as long as their shapes say; nothing else is on the stream.
            unsafe { self.device.attend(handle, planned, self.places()) }?;
            self.device.check()
        })
    }
}

/// What the library offers that is right, as far as it was tried.
fn right(
    room: &Room,
    handle: &CudnnHandle,
    key: &AttentionKey,
) -> Result<Vec<PlannedAttention>, DriverError> {
    let wanted = room.result(key)?;
    let offered = timing::offered(handle.attention_candidates(key))?;
    timing::right(offered, |planned| room.is_right(handle, planned, &wanted))
}

/// The fastest engine for attention, if it is faster than dtrain's own kernels. *Blocks* for some tens of milliseconds, and while the
/// library prepares engines.
///
/// *Errors*: of the driver. What the library cannot do is done by dtrain's own kernels.
pub fn choose(
    gpu: &Arc<Gpu>,
    library: &Cudnn,
    key: &AttentionKey,
) -> Result<Pin<AttentionKey, PinnedAttention>, DriverError> {
    let room = Room::new(gpu, key)?;
    let own = room.own(key)?;
    // SAFETY: the handle goes before the device, which is older.
    let handle = unsafe { room.device.handle_of(library) }?;
    let candidates = right(&room, &handle, key)?;
    let (chosen, took) = timing::chosen(own, candidates, |planned| room.of_library(&handle, planned))?;
    Ok(Pin { key: *key, algorithm: chosen.map(|planned| planned.pinned().clone()), took })
}

/// What the library offers for attention that is right, as far as it was tried, the one that it thinks fastest first.
///
/// *Errors*: of the driver.
pub fn candidates(
    gpu: &Arc<Gpu>,
    library: &Cudnn,
    key: &AttentionKey,
) -> Result<Vec<PinnedAttention>, DriverError> {
    let room = Room::new(gpu, key)?;
    // SAFETY: as above.
    let handle = unsafe { room.device.handle_of(library) }?;
    let candidates = right(&room, &handle, key)?;
    room.device.check()?;
    Ok(candidates.iter().map(|planned| planned.pinned().clone()).collect())
}
