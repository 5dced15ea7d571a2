//! Which algorithm of cuDNN is fastest for a convolution on this GPU: each that it offers is timed with all that belongs to it, and dtrain's
//! own kernel beside them.
//!
//! As for products ([`super::choosing`]). It does not know who asks.

use super::convolution::{Behind, ConvolutionKey, Pass};
use super::cudnn::{Cudnn, CudnnHandle, PinnedConvolution};
use super::pins::Pin;
use super::timing;
use crate::driver::{Buffer, DriverError, Gpu};
use crate::memory::SliceMut;
use crate::operations::{self, WeightGradients, conv_lengths};
use crate::values::Values;
use crate::{ConvolutionPlaces, CudaDevice};
use dtrain_engine::device::{Activation, Operands};
use std::sync::Arc;
use std::time::Duration;

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

    fn of_library(&self, handle: &CudnnHandle, pin: &PinnedConvolution) -> Result<Duration, DriverError> {
        let planned = handle.accept(pin)?;
        let w = if pin.key.pass == Pass::Weights { self.dw.address() } else { self.w.address() };
        let bias = [self.bias.0.address(), self.bias.1.address()];
        let at = ConvolutionPlaces { x: self.x.address(), w, y: self.y.address(), bias };
        timing::best(self.device.stream(), || {
            // SAFETY: the tensors lie there, as long as their shapes say; nothing else is on the stream.
            unsafe { self.device.convolve(handle, &planned, at) }?;
            self.device.check()
        })
    }

    /// With this crate's own kernels.
    fn own(&self, key: &ConvolutionKey) -> Result<Duration, DriverError> {
        let (stream, reads, shape) = (self.device.stream(), key.reads(), key.shape());
        let len = |of: &Buffer<u16>| of.len() * size_of::<u16>() / reads.bytes();
        // SAFETY: the memory is there, and what is on the stream writes it one behind the other.
        let values = |of: &Buffer<u16>| unsafe { timing::write(of.address(), reads, len(of)) };
        // SAFETY: as above.
        let [x, w, y] =
            [&self.x, &self.w, &self.y].map(|of| unsafe { timing::read(of.address(), reads, len(of)) });
        timing::best(stream, || {
            match key.pass {
                Pass::Forward(behind) => {
                    let bias = (behind != Behind::Nothing).then(|| Values::from(self.bias.1.read()));
                    let activation =
                        if behind == Behind::BiasRelu { Activation::Relu } else { Activation::None };
                    operations::conv(stream, &shape, Operands { x, w, bias }, activation, values(&self.y));
                }
                Pass::Inputs => operations::conv_input_gradient(stream, &shape, w, y, values(&self.x)),
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

/// The fastest algorithm for a convolution, if it is faster than dtrain's own kernel. *Blocks* for some tens of milliseconds.
///
/// *Errors*: of the driver. What the library cannot do is done by dtrain's own kernel.
pub fn choose(
    gpu: &Arc<Gpu>,
    library: &Cudnn,
    key: &ConvolutionKey,
) -> Result<Pin<ConvolutionKey, PinnedConvolution>, DriverError> {
    let room = Room::new(gpu, key)?;
    let own = room.own(key)?;
    // SAFETY: the handle goes before the device, which is older.
    let handle = unsafe { room.device.handle_of(library) }?;
    let candidates = timing::offered(handle.candidates(key))?;
    let (algorithm, took) = timing::chosen(own, candidates, |pin| room.of_library(&handle, pin))?;
    Ok(Pin { key: *key, algorithm, took })
}

/// What the library offers for a convolution and does not refuse when it is asked to do it, the one that it thinks fastest first.
///
/// *Errors*: of the driver.
pub fn candidates(
    gpu: &Arc<Gpu>,
    library: &Cudnn,
    key: &ConvolutionKey,
) -> Result<Vec<PinnedConvolution>, DriverError> {
    let room = Room::new(gpu, key)?;
    // SAFETY: as above.
    let handle = unsafe { room.device.handle_of(library) }?;
    let mut candidates = timing::offered(handle.candidates(key))?;
    candidates.retain(|pin| room.of_library(&handle, pin).is_ok());
    room.device.check()?;
    Ok(candidates)
}
