//! Which algorithm of cuDNN is fastest for a convolution on this GPU: each that it offers is timed with all that belongs to it, and dtrain's
//! own kernel beside them.
//!
//! As for products ([`super::choosing`]). Of engines over copies in which channels lie last the library's notes do not say everything, so they are
//! tried first, as those of attention are. It does not know who asks.

use super::convolution::{ConvolutionKey, Pass};
use super::cudnn::{Cudnn, CudnnHandle, PinnedConvolution, PlannedConvolution};
use super::near::{are_near, are_near_floats};
use super::pins::Pin;
use super::timing;
use crate::driver::{Buffer, DriverError, Gpu};
use crate::memory::{Element, Slice, SliceMut};
use crate::operations::{self, WeightGradients, conv_lengths};
use crate::values::{Values, ValuesMut};
use crate::{Around, ConvolutionPlaces, CudaDevice};
use dtrain_engine::device::Operands;
use std::sync::Arc;
use std::time::Duration;

/// Numbers of a result that are compared, from its beginning and from its end: results of large batches have hundreds of millions.
const LOOKED_AT: usize = 1 << 22;

/// Memory of one convolution, filled with numbers of both signs.
struct Room {
    device: CudaDevice,
    x: Buffer<u16>,
    w: Buffer<u16>,
    y: Buffer<u16>,
    /// The bias as it is multiplied, and in f32.
    bias: (Buffer<u16>, Buffer<f32>),
    /// What the gradient of weights becomes.
    dw: Buffer<f32>,
    /// dtrain's own kernel wants it.
    scratch: Buffer<f32>,
}

impl Room {
    fn new(gpu: &Arc<Gpu>, key: &ConvolutionKey) -> Result<Self, DriverError> {
        let device = CudaDevice::one_by_one(gpu, key.numbers.precision())?.with_own_convolutions();
        let (context, shape) = (gpu.context(), key.shape());
        let filled = |len: usize, seed: u32| timing::numbers(&device, key.reads(), len, seed);
        let [x, w, y] = conv_lengths(&shape);
        let has_gradient = key.pass == Pass::Weights;
        let if_so = |len: usize| if has_gradient { len } else { 0 };
        let floats = Buffer::new(context, shape.outputs)?;
        // SAFETY: it is this device's own memory, and nobody else has it.
        unsafe { device.stream().fill(floats.address(), floats.len(), 0)? };
        Ok(Self {
            x: filled(x, 1)?,
            w: filled(w, 2)?,
            y: filled(y, 3)?,
            bias: (filled(shape.outputs, 4)?, floats),
            dw: Buffer::new(context, if_so(w))?,
            scratch: Buffer::new(context, if_so(operations::conv_scratch(&shape)))?,
            device,
        })
    }

    fn convolve(&self, handle: &CudnnHandle, planned: &PlannedConvolution) -> Result<(), DriverError> {
        let w = match planned.pinned().key.pass {
            Pass::Weights => self.dw.address(),
            Pass::Forward(_) | Pass::Inputs => self.w.address(),
        };
        let around = Around { bias: [self.bias.0.address(), self.bias.1.address()], x: 0 };
        let at = ConvolutionPlaces { x: self.x.address(), w, y: self.y.address(), around };
        // SAFETY: the tensors lie there, as long as their shapes say; nothing else is on the stream.
        unsafe { self.device.convolve(handle, planned, at) }
    }

    fn of_library(
        &self,
        handle: &CudnnHandle,
        planned: &PlannedConvolution,
    ) -> Result<Duration, DriverError> {
        timing::best(self.device.stream(), || {
            self.convolve(handle, planned)?;
            self.device.check()
        })
    }

    /// The memory of the result: where it begins, and its words.
    fn written(&self, pass: Pass) -> (u64, usize) {
        match pass {
            Pass::Forward(_) => (self.y.address(), self.y.len() / 2),
            Pass::Inputs => (self.x.address(), self.x.len() / 2),
            Pass::Weights => (self.dw.address(), self.dw.len()),
        }
    }

    /// What lies there, halves or f32: its first numbers and its last.
    fn result(&self, pass: Pass) -> Result<(Vec<u16>, Vec<f32>), DriverError> {
        let (mut halves, mut floats) = (Vec::new(), Vec::new());
        match pass {
            Pass::Forward(_) => self.look_at(self.y.read(), &mut halves)?,
            Pass::Inputs => self.look_at(self.x.read(), &mut halves)?,
            Pass::Weights => self.look_at(self.dw.read(), &mut floats)?,
        }
        Ok((halves, floats))
    }

    fn look_at<T: Element + Default>(&self, all: Slice<'_, T>, to: &mut Vec<T>) -> Result<(), DriverError> {
        let len = all.len();
        for part in [0..len.min(LOOKED_AT), len.saturating_sub(LOOKED_AT)..len] {
            let there = to.len();
            to.resize(there + part.len(), T::default());
            self.device.download(all.part(part), &mut to[there..])?;
        }
        Ok(())
    }

    /// Whether an engine gives the same bits each time, near what dtrain's own kernel gave.
    fn is_right(
        &self,
        handle: &CudnnHandle,
        planned: &PlannedConvolution,
        (wanted, wanted_sums): &(Vec<u16>, Vec<f32>),
    ) -> Result<bool, DriverError> {
        let ConvolutionKey { pass, numbers, .. } = planned.pinned().key;
        let Some(half) = numbers.precision().half() else { return Ok(false) };
        let (at, words) = self.written(pass);
        let once = || {
            // What the engine does not write is not taken for what a kernel wrote.
            // SAFETY: it is this device's own memory, and nobody else has it.
            unsafe { self.device.stream().fill(at, words, u32::MAX)? };
            self.convolve(handle, planned)?;
            self.result(pass)
        };
        Ok(timing::same_each_time(once)?.is_some_and(|(found, sums)| {
            are_near(half, &found, wanted) && are_near_floats(half, &sums, wanted_sums)
        }))
    }

    /// What the library offers, as far as it is right: `wanted` is what dtrain's own kernel gave.
    fn candidates(
        &self,
        handle: &CudnnHandle,
        key: &ConvolutionKey,
        wanted: &(Vec<u16>, Vec<f32>),
    ) -> Result<Vec<PlannedConvolution>, DriverError> {
        let mut all = timing::offered(handle.candidates(key))?;
        let engines = timing::offered(handle.candidates_channels_last(key))?;
        all.extend(timing::right(engines, |planned| self.is_right(handle, planned, wanted))?);
        Ok(all)
    }

    /// With this crate's own kernels.
    fn own(&self, key: &ConvolutionKey) -> Result<Duration, DriverError> {
        let (stream, reads, shape) = (self.device.stream(), key.reads(), key.shape());
        let len = |of: &Buffer<u16>| of.len() * size_of::<u16>() / reads.bytes();
        // SAFETY: the memory is there, and what is on the stream writes it one behind the other.
        let values = |of: &Buffer<u16>| unsafe { ValuesMut::at(of.address(), reads, len(of)) };
        // SAFETY: as above.
        let [x, w, y] =
            [&self.x, &self.w, &self.y].map(|of| unsafe { Values::at(of.address(), reads, len(of)) });
        timing::best(stream, || {
            match key.pass {
                Pass::Forward(behind) => {
                    let bias = behind.has_bias().then(|| Values::from(self.bias.1.read()));
                    let operands = Operands { x, w, bias };
                    operations::conv(stream, &shape, operands, behind.activation(), values(&self.y));
                }
                Pass::Inputs => {
                    operations::conv_input_gradient(stream, &shape, [w, y], None, values(&self.x));
                }
                Pass::Weights => {
                    // SAFETY: as above.
                    let floats = |of: &Buffer<f32>| unsafe { SliceMut::new(of.address(), of.len()) };
                    let gradients = WeightGradients { dw: floats(&self.dw), db: None };
                    operations::conv_weight_gradient(stream, &shape, x, y, gradients, floats(&self.scratch));
                }
            }
            self.device.check()
        })
    }
}

/// The fastest algorithm for a convolution, if it is faster than dtrain's own kernel. *Blocks* for some tens of milliseconds, and
/// while the library prepares engines.
///
/// *Errors*: of the driver. What the library cannot do is done by dtrain's own kernel.
pub fn choose(
    gpu: &Arc<Gpu>,
    library: &Cudnn,
    key: &ConvolutionKey,
) -> Result<Pin<ConvolutionKey, PinnedConvolution>, DriverError> {
    let room = Room::new(gpu, key)?;
    let own = room.own(key)?;
    let wanted = room.result(key.pass)?;
    // SAFETY: the handle goes before the device, which is older.
    let handle = unsafe { room.device.handle_of(library) }?;
    let candidates = room.candidates(&handle, key, &wanted)?;
    let (chosen, took) = timing::chosen(own, candidates, |planned| room.of_library(&handle, planned))?;
    Ok(Pin { key: *key, algorithm: chosen.map(|planned| planned.pinned().clone()), took })
}

/// What the library offers for a convolution that is right, as far as it was tried, and not refused when it is asked to do it, the one
/// that it thinks fastest first.
///
/// *Errors*: of the driver.
pub fn candidates(
    gpu: &Arc<Gpu>,
    library: &Cudnn,
    key: &ConvolutionKey,
) -> Result<Vec<PinnedConvolution>, DriverError> {
    let room = Room::new(gpu, key)?;
    room.own(key)?;
    let wanted = room.result(key.pass)?;
    // SAFETY: as above.
    let handle = unsafe { room.device.handle_of(library) }?;
    let mut candidates = room.candidates(&handle, key, &wanted)?;
    candidates.retain(|planned| room.of_library(&handle, planned).is_ok());
    room.device.check()?;
    Ok(candidates.iter().map(|planned| planned.pinned().clone()).collect())
}
