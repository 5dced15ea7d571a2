//! What cuDNN has to be told of a convolution: descriptors, which are its own plain memory.
//!
//! It does not know handles, nor algorithms.

use super::super::LibraryError;
use super::super::convolution::{Behind, ConvolutionKey, Pass};
use super::math::Math;
use crate::values::{Half, Storage};
use cudarc::cudnn::sys::{self, cudnnStatus_t as Status};
use std::ffi::c_int;
use std::ptr;

pub(super) fn done(call: &'static str, status: Status) -> Result<(), LibraryError> {
    match status {
        Status::CUDNN_STATUS_SUCCESS => Ok(()),
        status => Err(LibraryError::Call { call, status: format!("{status:?}") }),
    }
}

/// Something that the library made and wants back.
pub(super) struct Made<T: Copy> {
    pub what: T,
    end: unsafe fn(T) -> Status,
}

impl<T> Made<*mut T> {
    pub fn new(
        call: &'static str,
        begin: unsafe fn(*mut *mut T) -> Status,
        end: unsafe fn(*mut T) -> Status,
    ) -> Result<Self, LibraryError> {
        let mut what = ptr::null_mut();
        // SAFETY: the pointer lives for the call.
        done(call, unsafe { begin(&mut what) })?;
        Ok(Made { what, end })
    }
}

impl<T: Copy> Made<T> {
    /// What the library made just now, for this end, and nobody else has.
    pub fn taken(what: T, end: unsafe fn(T) -> Status) -> Self {
        Made { what, end }
    }
}

impl<T: Copy> Drop for Made<T> {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, for this end, and nobody has it any more.
        let _ = unsafe { (self.end)(self.what) };
    }
}

/// Addresses on the device: of a part of the input, of the weights, of the part of the output, or of what their gradients become.
#[derive(Clone, Copy, Debug)]
pub struct Tensors {
    /// `x` or `dx`.
    pub x: u64,
    /// `w` or `dw`.
    pub w: u64,
    /// `y` or `dy`.
    pub y: u64,
    /// The bias in halves, where the library adds it.
    pub bias: u64,
    /// [`super::PinnedConvolution::workspace`] bytes that may be written over.
    pub workspace: u64,
}

/// A tensor whose numbers lie in the order of its sizes.
fn tensor(
    numbers: sys::cudnnDataType_t,
    sizes: &[c_int],
) -> Result<Made<sys::cudnnTensorDescriptor_t>, LibraryError> {
    let begin = sys::cudnnCreateTensorDescriptor;
    let made = Made::new("cudnnCreateTensorDescriptor", begin, sys::cudnnDestroyTensorDescriptor)?;
    let mut strides = vec![1; sizes.len()];
    for i in (1..sizes.len()).rev() {
        strides[i - 1] = strides[i] * sizes[i];
    }
    let axes = sizes.len() as c_int;
    // SAFETY: the descriptor was just made; both lists have that many numbers.
    let status = unsafe {
        sys::cudnnSetTensorNdDescriptor(made.what, numbers, axes, sizes.as_ptr(), strides.as_ptr())
    };
    done("cudnnSetTensorNdDescriptor", status).map(|()| made)
}

/// What the library has to be told of a part of a convolution.
pub(super) struct Descriptors {
    pub x: Made<sys::cudnnTensorDescriptor_t>,
    pub w: Made<sys::cudnnFilterDescriptor_t>,
    pub y: Made<sys::cudnnTensorDescriptor_t>,
    pub bias: Made<sys::cudnnTensorDescriptor_t>,
    pub how: Made<sys::cudnnConvolutionDescriptor_t>,
    pub activation: Made<sys::cudnnActivationDescriptor_t>,
}

impl Descriptors {
    pub fn of(key: &ConvolutionKey) -> Result<Self, LibraryError> {
        use sys::cudnnDataType_t::{CUDNN_DATA_BFLOAT16, CUDNN_DATA_FLOAT, CUDNN_DATA_HALF};
        let numbers = match (key.pass, key.reads()) {
            (Pass::Weights, _) | (_, Storage::F32) => CUDNN_DATA_FLOAT,
            (Pass::Forward(_) | Pass::Inputs, Storage::Half(Half::Bf16)) => CUDNN_DATA_BFLOAT16,
            (Pass::Forward(_) | Pass::Inputs, Storage::Half(Half::F16)) => CUDNN_DATA_HALF,
        };
        let shape = key.shape();
        // What is one element deep is told as images: the library has at least four axes.
        let first = if shape.flat().is_some() { 1 } else { 0 };
        let axes = |n: [usize; 3]| n[first..].iter().map(|n| *n as c_int).collect::<Vec<_>>();
        let sizes = |images: usize, channels: usize, sides: [usize; 3]| {
            [vec![images as c_int, channels as c_int], axes(sides)].concat()
        };
        let images = key.images_of_a_part() as usize;
        let x = tensor(numbers, &sizes(images, shape.channels, shape.size))?;
        let y = tensor(numbers, &sizes(images, shape.outputs, shape.output_size()))?;
        let bias = tensor(numbers, &sizes(1, shape.outputs, [1; 3]))?;
        let begin = sys::cudnnCreateFilterDescriptor;
        let w = Made::new("cudnnCreateFilterDescriptor", begin, sys::cudnnDestroyFilterDescriptor)?;
        let begin = sys::cudnnCreateConvolutionDescriptor;
        let end = sys::cudnnDestroyConvolutionDescriptor;
        let how = Made::new("cudnnCreateConvolutionDescriptor", begin, end)?;
        let begin = sys::cudnnCreateActivationDescriptor;
        let end = sys::cudnnDestroyActivationDescriptor;
        let activation = Made::new("cudnnCreateActivationDescriptor", begin, end)?;
        let filter = sizes(shape.outputs, shape.channels, shape.kernel);
        let (padding, stride) = (axes(shape.padding), axes(shape.stride));
        // The engine's convolutions have neither holes in their kernels nor groups, and do not turn their kernels.
        let dilation = vec![1; stride.len()];
        let format = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let relu = match key.pass {
            Pass::Forward(Behind::BiasRelu) => sys::cudnnActivationMode_t::CUDNN_ACTIVATION_RELU,
            _ => sys::cudnnActivationMode_t::CUDNN_ACTIVATION_IDENTITY,
        };
        // NaN stays NaN, so that a broken pass is seen.
        let nan = sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
        let along = stride.len() as c_int;
        // SAFETY: the descriptors were just made; lists have as many numbers as is told.
        unsafe {
            let status = sys::cudnnSetFilterNdDescriptor(
                w.what,
                numbers,
                format,
                filter.len() as c_int,
                filter.as_ptr(),
            );
            done("cudnnSetFilterNdDescriptor", status)?;
            let status = sys::cudnnSetConvolutionNdDescriptor(
                how.what,
                along,
                padding.as_ptr(),
                stride.as_ptr(),
                dilation.as_ptr(),
                mode,
                CUDNN_DATA_FLOAT,
            );
            done("cudnnSetConvolutionNdDescriptor", status)?;
            let status = sys::cudnnSetActivationDescriptor(activation.what, relu, nan, 0.0);
            done("cudnnSetActivationDescriptor", status)?;
        }
        Ok(Self { x, w, y, bias, how, activation })
    }

    /// From now on it is multiplied so.
    pub fn multiply(&self, math: Math) -> Result<(), LibraryError> {
        // SAFETY: the descriptor is alive.
        let status = unsafe { sys::cudnnSetConvolutionMathType(self.how.what, math.told()) };
        done("cudnnSetConvolutionMathType", status)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cudnn;
    use super::*;
    use crate::libraries::Numbers;
    use dtrain_engine::device::Conv3dShape;
    use std::path::Path;

    /// What the library computes of descriptors: the sizes of an output.
    fn output(key: &ConvolutionKey) -> Result<Vec<c_int>, LibraryError> {
        let Descriptors { x, w, how, .. } = Descriptors::of(key)?;
        let axes = if key.shape().flat().is_some() { 4 } else { 5 };
        let mut sizes = vec![0; axes];
        // SAFETY: descriptors are alive; there is room for as many sizes as are asked for.
        let status = unsafe {
            let axes = axes as c_int;
            sys::cudnnGetConvolutionNdForwardOutputDim(how.what, x.what, w.what, axes, sizes.as_mut_ptr())
        };
        done("cudnnGetConvolutionNdForwardOutputDim", status).map(|()| sizes)
    }

    #[test]
    fn the_real_library_where_it_is_takes_the_descriptors_and_means_the_same_by_them() {
        let Some(path) = std::env::var_os("DTRAIN_TEST_CUDNN") else { return };
        let library = Cudnn::open(Path::new(&path)).unwrap_or_else(|error| panic!("{error}"));
        println!("cuDNN {}", library.version());
        let shape = |size, kernel, stride, padding| Conv3dShape {
            images: 6,
            channels: 3,
            size,
            outputs: 5,
            kernel,
            stride,
            padding,
        };
        for (shape, wanted) in [
            (shape([1, 28, 27], [1, 3, 2], [1, 1, 2], [0, 1, 0]), vec![6, 5, 28, 13]),
            (shape([1, 1, 27], [1, 1, 4], [1, 1, 3], [0, 0, 2]), vec![6, 5, 1, 10]),
            (shape([5, 19, 23], [3, 5, 2], [1, 3, 2], [1, 0, 1]), vec![6, 5, 5, 5, 12]),
        ] {
            for pass in [Pass::Forward(Behind::BiasRelu), Pass::Inputs, Pass::Weights] {
                for reads in [Numbers::Bf16, Numbers::F16, Numbers::Tf32] {
                    let key = ConvolutionKey::of(pass, reads, &shape).expect("it can be told");
                    let found = output(&key).unwrap_or_else(|error| panic!("{key:?}: {error}"));
                    assert_eq!(found, wanted, "{key:?}");
                    for math in [Math::Default, Math::Tensor, Math::Fma] {
                        let descriptors = Descriptors::of(&key).expect("as before");
                        descriptors.multiply(math).unwrap_or_else(|error| panic!("{math:?}: {error}"));
                    }
                }
            }
        }
    }
}
