//! Convolutions of halves by cuDNN over copies in which channels lie last: what it reads is turned so, and what it gives is turned back, with
//! bias and activation on the way.
//!
//! An image is a matrix of channels by places, and so is a kernel of the weights: a copy is the matrix turned. It does not know how a choice is
//! made.

use super::CudaDevice;
use super::placed::ConvolutionPlaces;
use crate::driver::DriverError;
use crate::libraries::convolution::{ConvolutionKey, Form, Pass};
use crate::libraries::cudnn::{CudnnHandle, PlannedConvolution, Tensors};
use crate::memory::{Slice, SliceMut};
use crate::operations::{MatrixBatch, Turned, turn};
use crate::values::{Half, Storage, Values, ValuesMut};
use dtrain_engine::device::Write;

/// The matrices of a part of the input, of the weights, and of a part of the output: channels by places.
fn matrices_of(key: &ConvolutionKey) -> [MatrixBatch; 3] {
    let (shape, images) = (key.shape(), key.images_of_a_part() as usize);
    let places = |sides: [usize; 3]| sides.iter().product::<usize>();
    [
        MatrixBatch { count: images, rows: shape.channels, columns: places(shape.size) },
        MatrixBatch { count: shape.outputs, rows: shape.channels, columns: places(shape.kernel) },
        MatrixBatch { count: images, rows: shape.outputs, columns: places(shape.output_size()) },
    ]
}

fn turned(matrices: MatrixBatch) -> MatrixBatch {
    MatrixBatch { rows: matrices.columns, columns: matrices.rows, ..matrices }
}

fn len(matrices: MatrixBatch) -> usize {
    matrices.count * matrices.rows * matrices.columns
}

impl CudaDevice {
    /// # Safety
    /// As [`CudaDevice::convolve`]; halves lie at both addresses.
    unsafe fn turn_halves(&self, half: Half, matrices: MatrixBatch, from: u64, way: Turned<'_>, to: u64) {
        let len = len(matrices);
        // SAFETY: the caller's promise.
        let (from, to) = unsafe { (Slice::new(from, len), SliceMut::new(to, len)) };
        turn(self.stream(), matrices, Values::halves_of(from, half), way, ValuesMut::halves_of(to, half));
    }

    /// # Safety
    /// As [`CudaDevice::convolve`].
    pub(super) unsafe fn convolve_channels_last(
        &self,
        handle: &CudnnHandle,
        planned: &PlannedConvolution,
        at: ConvolutionPlaces,
    ) -> Result<(), DriverError> {
        let key = planned.pinned().key;
        let Storage::Half(half) = key.reads() else { unreachable!("of halves alone") };
        let [of_x, of_w, of_y] = matrices_of(&key);
        let [x_bytes, w_bytes, y_bytes] = key.copies(Form::ChannelsLast);
        // Nobody else asks for scratch before all of this is on the stream.
        let mut room = self.workspace();
        let x = room.room_for_library(planned.pinned().room())?;
        let (w, y) = (x + x_bytes, x + x_bytes + w_bytes);
        let tensors = Tensors { x, w, y, bias: 0, workspace: y + y_bytes };
        let read = key.reads().bytes() as u64;
        if key.pass != Pass::Weights {
            // SAFETY: the caller's promise; copies are apart, in scratch that is locked.
            unsafe { self.turn_halves(half, of_w, at.w, Turned::PLAIN, w) };
        }
        for part in 0..key.parts() {
            let of_part = |at: u64, matrices| at + read * len(matrices) as u64 * u64::from(part);
            let (at_x, at_y) = (of_part(at.x, of_x), of_part(at.y, of_y));
            // SAFETY: as above.
            unsafe {
                if key.pass != Pass::Inputs {
                    self.turn_halves(half, of_x, at_x, Turned::PLAIN, x);
                }
                if !matches!(key.pass, Pass::Forward(_)) {
                    self.turn_halves(half, of_y, at_y, Turned::PLAIN, y);
                }
            }
            self.stream.give_foreign(key.pass.name(), |_| {
                // SAFETY: the caller's promise, and that of the scratch.
                unsafe { planned.run(handle, tensors, Write::Set) }.map_err(DriverError::from)
            })?;
            match key.pass {
                Pass::Forward(behind) => {
                    let outputs = key.shape().outputs;
                    // SAFETY: the caller's promise.
                    let bias = behind.has_bias().then(|| unsafe { Slice::new(at.around.bias[1], outputs) });
                    let way = Turned { bias, activation: behind.activation(), ..Turned::PLAIN };
                    // SAFETY: as above.
                    unsafe { self.turn_halves(half, turned(of_y), y, way, at_y) };
                }
                // SAFETY: as above.
                Pass::Inputs => unsafe {
                    let convolved = || Values::at(of_part(at.around.x, of_x), key.reads(), len(of_x));
                    let way = Turned { x: (at.around.x != 0).then(convolved), ..Turned::PLAIN };
                    self.turn_halves(half, turned(of_x), x, way, at_x);
                },
                Pass::Weights => {
                    let write = if part > 0 { Write::Add } else { Write::Set };
                    let way = Turned { write, ..Turned::PLAIN };
                    let weights = len(of_w);
                    // SAFETY: as above; sums are f32.
                    let (from, to) =
                        unsafe { (Slice::<f32>::new(w, weights), SliceMut::<f32>::new(at.w, weights)) };
                    turn(self.stream(), turned(of_w), from, way, to);
                }
            }
        }
        Ok(())
    }
}
