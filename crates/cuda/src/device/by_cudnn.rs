//! What a device has cuDNN convolve: where pins say so, on the device's stream, with what belongs to it around it.
//!
//! What the library does not do is done around it: here the bias in f32 and the activation, where no algorithm has them, and copies in f32
//! for the gradient of weights; in `channels_last.rs` copies in which channels lie last. It does not know how a choice is made.

use super::CudaDevice;
use super::asked::{Asked, ByCudnn, Convolutions, Cost};
use super::placed::{ALIGNED, Around, ConvolutionPlaces, Copies, ROUND, room_for_copies};
use crate::driver::DriverError;
use crate::libraries::Numbers;
use crate::libraries::convolution::{Behind, ConvolutionKey, Form, Pass};
use crate::libraries::cudnn::{
    ConvolutionChoice, Cudnn, CudnnHandle, Manner, PinnedConvolution, PlannedConvolution, Tensors,
};
use crate::libraries::pins::ConvolutionPins;
use crate::memory::{Slice, SliceMut};
use crate::operations::{self as kernels, conv_lengths};
use crate::values::{Storage, Values, ValuesMut};
use dtrain_engine::device::{Activation, Conv3dShape, Operands, Write};

/// What the library reads or writes: where it begins, and how many numbers it has.
type Tensor = (u64, usize);

impl CudaDevice {
    /// The same, whose convolutions this library does where the pins say so. *Blocks* while the library begins.
    ///
    /// *Errors*: an algorithm that the library does not take; of the driver.
    pub fn with_convolutions(self, pins: &ConvolutionPins, library: &Cudnn) -> Result<Self, DriverError> {
        if pins.is_empty() {
            return Ok(self.with_own_convolutions());
        }
        // SAFETY: convolutions go before the stream of their device.
        let handle = unsafe { self.handle_of(library) }?;
        let plan = |pin: &PinnedConvolution| Ok((pin.key, handle.accept(pin)?));
        let planned: Result<_, DriverError> = pins.algorithms().map(plan).collect();
        Ok(Self { convolutions: Convolutions::planned(handle, planned?), ..self })
    }

    /// The same, which notes convolutions of so many operations and more. The default is 2^28: less is not worth to leave a graph for.
    #[must_use]
    pub fn noting_convolutions(self, least: u64) -> Self {
        Self { convolutions: Convolutions::noting(least), ..self }
    }

    /// The same, whose convolutions no library will ever do: none is noted.
    #[must_use]
    pub fn with_own_convolutions(self) -> Self {
        Self { convolutions: Convolutions::own(), ..self }
    }

    /// The convolutions that a library might be asked for, since the device was made: with what a library chose for them another device
    /// can be made ([`CudaDevice::with_convolutions`]). Of one that was made so there are none.
    #[must_use]
    pub fn convolutions_asked_for(&self) -> Vec<ConvolutionKey> {
        self.convolutions.noted()
    }

    /// Whether a library has put a convolution with its bias and activation on the stream.
    ///
    /// *Panics* on lengths as [`kernels::conv`] does.
    pub(super) fn conv_by_library(
        &self,
        shape: &Conv3dShape,
        operands: Operands<Values<'_>>,
        activation: Activation,
        y: &mut ValuesMut<'_>,
    ) -> bool {
        let Operands { x, w, bias } = operands;
        let behind = match (bias, activation) {
            (None, Activation::None) => Behind::Nothing,
            (Some(_), Activation::None) => Behind::Bias,
            (Some(_), Activation::Relu) => Behind::BiasRelu,
            (None, Activation::Relu) => return false,
        };
        let bias = match bias.map(|bias| (self.as_multiplied(bias), bias.floats())) {
            None => [0; 2],
            Some((Some((at, len)), floats)) => {
                assert_eq!(len, shape.outputs, "the bias of a convolution");
                [at, floats.address()]
            }
            // A bias without a copy in halves.
            Some((None, _)) => return false,
        };
        let [x, w, y] = [x, w, y.read()].map(|values| self.as_multiplied(values));
        self.done_by_cudnn(Pass::Forward(behind), shape, [x, w, y], Around { bias, x: 0 })
    }

    /// The same for `dx`, with what a ReLU that gave `x` does to it.
    pub(super) fn conv_inputs_by_library(
        &self,
        shape: &Conv3dShape,
        [w, dy]: [Values<'_>; 2],
        x: Option<Values<'_>>,
        dx: &mut ValuesMut<'_>,
    ) -> bool {
        let [dx, w, dy] = [dx.read(), w, dy].map(|values| self.as_multiplied(values));
        let x = match x.map(|x| self.as_multiplied(x)) {
            None => 0,
            Some(None) => return false,
            Some(Some((at, len))) => {
                assert_eq!(Some(len), dx.map(|(_, len)| len), "what was convolved");
                at
            }
        };
        self.done_by_cudnn(Pass::Inputs, shape, [dx, w, dy], Around { x, ..Around::NOTHING })
    }

    /// The same for `dw`.
    pub(super) fn conv_weights_by_library(
        &self,
        shape: &Conv3dShape,
        x: Values<'_>,
        dy: Values<'_>,
        dw: &mut ValuesMut<'_>,
    ) -> bool {
        let dw = dw.read().floats();
        let [x, dy] = [x, dy].map(|values| self.as_multiplied(values));
        self.done_by_cudnn(Pass::Weights, shape, [x, Some((dw.address(), dw.len())), dy], Around::NOTHING)
    }

    /// Where numbers lie as the library is to multiply them; nowhere if they are f32, and it wants halves.
    fn as_multiplied(&self, values: Values<'_>) -> Option<Tensor> {
        match self.precision.storage() {
            Storage::Half(_) => values.halves().map(|halves| (halves.address(), halves.len())),
            Storage::F32 => Some((values.floats().address(), values.len())),
        }
    }

    /// Whether the library has put this on the stream: input, weights and output. *Panics* unless lengths are those of the shape.
    fn done_by_cudnn(
        &self,
        pass: Pass,
        shape: &Conv3dShape,
        tensors: [Option<Tensor>; 3],
        around: Around,
    ) -> bool {
        let Some(reads) = Numbers::of(self.precision) else { return false };
        let [Some((x, x_len)), Some((w, w_len)), Some((y, y_len))] = tensors else { return false };
        let Ok(key) = ConvolutionKey::of(pass, reads, shape) else { return false };
        let (at, lengths) = (ConvolutionPlaces { x, w, y, around }, [x_len, w_len, y_len]);
        // Where these lie follows from the model. Parameters and their gradients are copied where they have to be.
        if [x, y].iter().any(|at| !at.is_multiple_of(ALIGNED)) {
            return false;
        }
        assert_eq!(lengths, conv_lengths(shape), "input, weights and output of {shape:?}");
        let cost = Cost { operations: key.operations(), room: key.most_room() };
        self.given_to_cudnn(&self.convolutions, key, cost, |handle, planned| {
            // SAFETY: the tensors lie there by the promise of their slices, whose lengths are the shape's.
            unsafe { self.convolve(handle, planned, at) }
        })
    }

    /// Whether an operation is the library's: `put` has put it on the stream by its plan. One that might be is noted.
    pub(super) fn given_to_cudnn<K: Ord + Copy, P>(
        &self,
        by: &ByCudnn<K, P>,
        key: K,
        cost: Cost,
        put: impl FnOnce(&CudnnHandle, &P) -> Result<(), DriverError>,
    ) -> bool {
        let mut asked = by.asked();
        let given = match &mut *asked {
            Asked::Own => return false,
            Asked::Noted(_, least) if cost.operations < *least => return false,
            Asked::Noted(keys, _) => {
                keys.insert(key);
                // On paper the memory that a library would have is counted.
                let on_paper = self.gpu().context().is_on_paper();
                if on_paper { self.workspace().room_for_library(cost.room).map(|_| false) } else { Ok(false) }
            }
            Asked::Planned(handle, planned) => match planned.get(&key) {
                None => return false,
                Some(planned) => put(handle, planned).map(|()| true),
            },
        };
        given.unwrap_or_else(|error| {
            self.gpu().context().fail(error);
            true
        })
    }

    /// The library on this device's stream.
    ///
    /// # Safety
    /// The handle goes before the device.
    pub(crate) unsafe fn handle_of(&self, library: &Cudnn) -> Result<CudnnHandle, DriverError> {
        self.gpu().context().enter()?;
        // SAFETY: the stream is as old as the device, and of the context that was entered.
        Ok(unsafe { library.on(self.stream.handle()) }?)
    }

    /// Puts a convolution on the stream, part by part, with what belongs to it.
    ///
    /// # Safety
    /// The tensors of the plan's key lie at these addresses until the stream is through, nothing else uses what is written until then, and the
    /// handle is on this device's stream.
    pub(crate) unsafe fn convolve(
        &self,
        handle: &CudnnHandle,
        planned: &PlannedConvolution,
        at: ConvolutionPlaces,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        unsafe {
            match &planned.pinned().by {
                ConvolutionChoice::Listed { manner, .. } => {
                    self.convolve_as_it_lies(handle, planned, *manner, at)
                }
                ConvolutionChoice::ChannelsLast(_) => self.convolve_channels_last(handle, planned, at),
            }
        }
    }

    /// The same over tensors as they lie.
    ///
    /// # Safety
    /// As [`CudaDevice::convolve`].
    unsafe fn convolve_as_it_lies(
        &self,
        handle: &CudnnHandle,
        planned: &PlannedConvolution,
        manner: Manner,
        at: ConvolutionPlaces,
    ) -> Result<(), DriverError> {
        let key = planned.pinned().key;
        let copies = key.copies(Form::AsTheyLie);
        let [x_len, y_len] = key.elements_of_a_part();
        // Nobody else asks for scratch before all of this is on the stream.
        let mut room = self.workspace();
        let [_, w_len, _] = conv_lengths(&key.shape());
        let read = key.reads().bytes() as u64;
        let w = (at.w, w_len as u64 * key.bytes());
        let bias = (at.around.bias[0], read * key.shape().outputs as u64);
        let own = planned.pinned().room().next_multiple_of(ROUND);
        let scratch = room.room_for_library(own + room_for_copies(&[w, bias]))?;
        let mut placed = Copies { stream: &self.stream, next: scratch + own };
        // SAFETY: the caller's promise; the scratch has room for the copies.
        let (w_at, bias) = unsafe { (placed.of(w)?, placed.of(bias)?) };
        let workspace = scratch + copies.iter().sum::<u64>();
        for part in 0..key.parts() {
            let [mut x, mut y] =
                [(at.x, x_len), (at.y, y_len)].map(|(at, len)| at + read * len * u64::from(part));
            if let (Pass::Weights, Storage::Half(half)) = (key.pass, key.reads()) {
                for (from, len, to) in [(&mut x, x_len, scratch), (&mut y, y_len, scratch + copies[0])] {
                    let len = len as usize;
                    // SAFETY: the caller's promise; the copies are apart, in scratch that is locked.
                    let (halves, floats) = unsafe { (Slice::new(*from, len), SliceMut::new(to, len)) };
                    kernels::from_half(self.stream(), half, halves, floats);
                    *from = to;
                }
            }
            let tensors = Tensors { x, w: w_at, y, bias, workspace };
            let write = if key.pass == Pass::Weights && part > 0 { Write::Add } else { Write::Set };
            self.stream.give_foreign(key.pass.name(), |_| {
                // SAFETY: the caller's promise, and that of the scratch.
                unsafe { planned.run(handle, tensors, write) }.map_err(DriverError::from)
            })?;
        }
        if key.pass == Pass::Weights {
            // SAFETY: as above.
            unsafe { placed.back(w_at, w)? };
        }
        if let (Pass::Forward(behind @ (Behind::Bias | Behind::BiasRelu)), Manner::Alone) = (key.pass, manner)
        {
            let shape = key.shape();
            let area = shape.output_size().iter().product();
            let [.., len] = conv_lengths(&shape);
            // SAFETY: the caller's promise.
            let (bias, y) = unsafe {
                (Slice::new(at.around.bias[1], shape.outputs), ValuesMut::at(at.y, key.reads(), len))
            };
            kernels::bias_activation(self.stream(), Some(bias), area, behind.activation(), y);
        }
        if at.around.x != 0 {
            let [len, ..] = conv_lengths(&key.shape());
            // SAFETY: as above; `x` is read alone.
            let (x, dx) =
                unsafe { (Values::at(at.around.x, key.reads(), len), ValuesMut::at(at.x, key.reads(), len)) };
            kernels::relu_gradient(self.stream(), x, dx);
        }
        Ok(())
    }
}
