//! Convolutions by cuDNN, each by one fixed algorithm that NVIDIA's documentation lists as deterministic.
//!
//! | | algorithm | why it adds up in one order |
//! |---|---|---|
//! | forward | `IMPLICIT_PRECOMP_GEMM` | all forward algorithms do |
//! | gradient of the input | `BWD_DATA_ALGO_1` | `ALGO_0` and `ALGO_3` add with atomics, this one does not |
//! | gradient of the weights | `BWD_FILTER_ALGO_1` | the same |
//!
//! Nothing is searched for, so ranks cannot differ; the library's version belongs to the fingerprint. The workspace is asked
//! for when a convolution is planned. Where the library or an algorithm for a shape is missing, the kernels of
//! `kernels/conv.cu` are there.
//!
//! This file does not know biases and activations, nor who owns memory.

use super::{LibraryError, Numbers};
use cudarc::cudnn::sys::{self, cudnnStatus_t as Status};
use dtrain_engine::device::Conv2dShape;
use std::ffi::{c_int, c_void};
use std::ptr;

const NAME: &str = "cuDNN";

const FORWARD: sys::cudnnConvolutionFwdAlgo_t =
    sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
const INPUT: sys::cudnnConvolutionBwdDataAlgo_t =
    sys::cudnnConvolutionBwdDataAlgo_t::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
const WEIGHT: sys::cudnnConvolutionBwdFilterAlgo_t =
    sys::cudnnConvolutionBwdFilterAlgo_t::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

/// The library's version, as `cudnnGetVersion` has it. No GPU is needed.
///
/// *Errors*: [`LibraryError::Missing`].
pub fn version() -> Result<u64, LibraryError> {
    // SAFETY: the library's initialisers touch nothing of ours; the function is asked for only if it is there.
    unsafe {
        if !sys::is_culib_present() {
            return Err(LibraryError::Missing { library: NAME });
        }
        Ok(sys::cudnnGetVersion() as u64)
    }
}

fn done(call: &'static str, status: Status) -> Result<(), LibraryError> {
    match status {
        Status::CUDNN_STATUS_SUCCESS => Ok(()),
        status => Err(LibraryError::Call { call, status: format!("{status:?}") }),
    }
}

/// A convolution in the library's words: every size is an `int`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    /// Images, channels, height, width.
    x: [c_int; 4],
    /// Outputs, channels, height, width.
    w: [c_int; 4],
    /// Images, outputs, height, width.
    y: [c_int; 4],
    padding: [c_int; 2],
    stride: [c_int; 2],
}

impl Sizes {
    fn of(shape: &Conv2dShape) -> Result<Self, LibraryError> {
        let wrong = |why| LibraryError::Shape { library: NAME, shape: format!("{shape:?}"), why };
        let Conv2dShape { images, channels, size: [height, width], outputs, kernel: [down, across], .. } =
            *shape;
        let fits = |d: usize| shape.size[d] + 2 * shape.padding[d] >= shape.kernel[d] && shape.stride[d] > 0;
        if images * channels * outputs * down * across == 0 || !fits(0) || !fits(1) {
            return Err(wrong("there is nothing to compute"));
        }
        let [out_height, out_width] = shape.output_size();
        let x = [images, channels, height, width];
        let y = [images, outputs, out_height, out_width];
        let most = c_int::MAX as usize;
        let count = |sizes: [usize; 4]| sizes.into_iter().try_fold(1usize, usize::checked_mul);
        let w = [outputs, channels, down, across];
        // The library counts elements of a tensor in 32 bits, too.
        if [x, y, w].into_iter().any(|sizes| count(sizes).is_none_or(|all| all > most)) {
            return Err(wrong("it has more elements than 32 bits can count"));
        }
        let ints = |sizes: [usize; 4]| sizes.map(|n| n as c_int);
        let pair = |sizes: [usize; 2]| sizes.map(|n| n.min(most) as c_int);
        let (padding, stride) = (pair(shape.padding), pair(shape.stride));
        Ok(Self { x: ints(x), w: ints(w), y: ints(y), padding, stride })
    }
}

/// What tensors hold and how they are multiplied; sums are f32.
///
/// `FMA_MATH` keeps f32 off the tensor cores, where the default would cut it to TF32.
fn types(numbers: Numbers) -> Option<(sys::cudnnDataType_t, sys::cudnnMathType_t)> {
    use sys::cudnnDataType_t::{CUDNN_DATA_BFLOAT16, CUDNN_DATA_FLOAT, CUDNN_DATA_HALF};
    use sys::cudnnMathType_t::{CUDNN_FMA_MATH, CUDNN_TENSOR_OP_MATH};
    match numbers {
        Numbers::F32 => Some((CUDNN_DATA_FLOAT, CUDNN_FMA_MATH)),
        Numbers::Tf32 => Some((CUDNN_DATA_FLOAT, CUDNN_TENSOR_OP_MATH)),
        Numbers::Bf16 => Some((CUDNN_DATA_BFLOAT16, CUDNN_TENSOR_OP_MATH)),
        Numbers::F16 => Some((CUDNN_DATA_HALF, CUDNN_TENSOR_OP_MATH)),
        Numbers::Bf16ToF32 | Numbers::F16ToF32 => None,
    }
}

/// Something that the library made and wants back.
struct Made<T: Copy> {
    what: T,
    end: unsafe fn(T) -> Status,
}

impl<T> Made<*mut T> {
    fn new(
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

impl<T: Copy> Drop for Made<T> {
    fn drop(&mut self) {
        // SAFETY: it was made by the library, for this end, and nobody has it any more.
        let _ = unsafe { (self.end)(self.what) };
    }
}

/// The library, in the context that was current when it was made, on one stream.
pub struct Cudnn {
    handle: Made<sys::cudnnHandle_t>,
}

impl Cudnn {
    /// *Errors*: [`LibraryError::Missing`]; [`LibraryError::Call`] without a GPU.
    ///
    /// # Safety
    /// The stream is alive for as long as this is, and of the context that is current.
    pub unsafe fn new(stream: *mut c_void) -> Result<Self, LibraryError> {
        version()?;
        let handle = Made::new("cudnnCreate", sys::cudnnCreate, sys::cudnnDestroy)?;
        // SAFETY: the handle was just made; the stream is the caller's promise.
        done("cudnnSetStream", unsafe { sys::cudnnSetStream(handle.what, stream.cast()) })?;
        Ok(Self { handle })
    }

    /// A convolution that can be run, with the workspace that each of its three operations needs.
    ///
    /// *Errors*: [`LibraryError::Shape`], [`LibraryError::NoAlgorithm`], [`LibraryError::Call`].
    pub fn plan(
        &self,
        shape: &Conv2dShape,
        numbers: Numbers,
    ) -> Result<PlannedConvolution<'_>, LibraryError> {
        let sizes = Sizes::of(shape)?;
        let (data, math) = types(numbers).ok_or_else(|| LibraryError::Shape {
            library: NAME,
            shape: format!("{shape:?}"),
            why: "a convolution of bf16 gives bf16",
        })?;
        let tensor = |[n, c, h, w]: [c_int; 4]| {
            let begin = sys::cudnnCreateTensorDescriptor;
            let made = Made::new("cudnnCreateTensorDescriptor", begin, sys::cudnnDestroyTensorDescriptor)?;
            let format = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
            // SAFETY: the descriptor was just made.
            let status = unsafe { sys::cudnnSetTensor4dDescriptor(made.what, format, data, n, c, h, w) };
            done("cudnnSetTensor4dDescriptor", status).map(|()| made)
        };
        let (x, y) = (tensor(sizes.x)?, tensor(sizes.y)?);
        let begin = sys::cudnnCreateFilterDescriptor;
        let w = Made::new("cudnnCreateFilterDescriptor", begin, sys::cudnnDestroyFilterDescriptor)?;
        let begin = sys::cudnnCreateConvolutionDescriptor;
        let end = sys::cudnnDestroyConvolutionDescriptor;
        let how = Made::new("cudnnCreateConvolutionDescriptor", begin, end)?;
        let format = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
        let [outputs, channels, down, across] = sizes.w;
        // SAFETY: the descriptors were just made. Dilations are 1; the engine's convolutions do not turn their kernels.
        unsafe {
            let status =
                sys::cudnnSetFilter4dDescriptor(w.what, data, format, outputs, channels, down, across);
            done("cudnnSetFilter4dDescriptor", status)?;
            let (mode, sums) = (
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
                sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            );
            let ([top, left], [rows, columns]) = (sizes.padding, sizes.stride);
            let status =
                sys::cudnnSetConvolution2dDescriptor(how.what, top, left, rows, columns, 1, 1, mode, sums);
            done("cudnnSetConvolution2dDescriptor", status)?;
            done("cudnnSetConvolutionMathType", sys::cudnnSetConvolutionMathType(how.what, math))?;
        }
        let mut planned = PlannedConvolution { library: self, x, w, y, how, workspace: [0; 3] };
        planned.workspace = planned.needed(shape)?;
        Ok(planned)
    }
}

/// A convolution and its gradients.
pub struct PlannedConvolution<'l> {
    library: &'l Cudnn,
    x: Made<sys::cudnnTensorDescriptor_t>,
    w: Made<sys::cudnnFilterDescriptor_t>,
    y: Made<sys::cudnnTensorDescriptor_t>,
    how: Made<sys::cudnnConvolutionDescriptor_t>,
    workspace: [u64; 3],
}

/// Memory that is read, by its address on the device, and a workspace with its length in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    /// The first operand: `x`, or the weights for the gradient of the input.
    pub first: u64,
    /// The second operand: the weights, or `dy`.
    pub second: u64,
    /// The stream's workspace.
    pub workspace: u64,
    /// Its length.
    pub bytes: u64,
}

impl PlannedConvolution<'_> {
    /// Bytes of workspace that forward, gradient of the input and gradient of the weights need.
    #[must_use]
    pub fn workspace(&self) -> [u64; 3] {
        self.workspace
    }

    fn needed(&self, shape: &Conv2dShape) -> Result<[u64; 3], LibraryError> {
        let (handle, x, w, y, how) =
            (self.library.handle.what, self.x.what, self.w.what, self.y.what, self.how.what);
        let [mut forward, mut input, mut weight] = [0usize; 3];
        // SAFETY: all descriptors are alive; the numbers live for the calls.
        let statuses = unsafe {
            [
                sys::cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, how, y, FORWARD, &mut forward),
                sys::cudnnGetConvolutionBackwardDataWorkspaceSize(handle, w, y, how, x, INPUT, &mut input),
                sys::cudnnGetConvolutionBackwardFilterWorkspaceSize(
                    handle,
                    x,
                    y,
                    how,
                    w,
                    WEIGHT,
                    &mut weight,
                ),
            ]
        };
        for status in statuses {
            if status == Status::CUDNN_STATUS_NOT_SUPPORTED {
                return Err(LibraryError::NoAlgorithm { library: NAME, shape: format!("{shape:?}") });
            }
            done("cudnnGetConvolution...WorkspaceSize", status)?;
        }
        Ok([forward, input, weight].map(|bytes| bytes as u64))
    }

    #[track_caller]
    fn room(&self, reads: &Reads, which: usize) -> (*mut c_void, usize) {
        let needed = self.workspace[which];
        assert!(reads.bytes >= needed, "a workspace of {} bytes, {needed} are needed", reads.bytes);
        (reads.workspace as *mut c_void, needed as usize)
    }

    /// `y` of `x` and the weights.
    ///
    /// *Errors*: [`LibraryError::Call`]. *Panics* on a workspace that is too small.
    ///
    /// # Safety
    /// The tensors of the plan lie at these addresses until the stream is through, and nothing else uses what is written and
    /// the workspace until then.
    pub unsafe fn forward(&self, reads: Reads, y: u64) -> Result<(), LibraryError> {
        let (workspace, bytes) = self.room(&reads, 0);
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: the caller's promise; factors live for the call.
        let status = unsafe {
            sys::cudnnConvolutionForward(
                self.library.handle.what,
                ptr::from_ref(&one).cast(),
                self.x.what,
                reads.first as *const c_void,
                self.w.what,
                reads.second as *const c_void,
                self.how.what,
                FORWARD,
                workspace,
                bytes,
                ptr::from_ref(&zero).cast(),
                self.y.what,
                y as *mut c_void,
            )
        };
        done("cudnnConvolutionForward", status)
    }

    /// `dx` of the weights and `dy`.
    ///
    /// *Errors*, *Panics* as [`PlannedConvolution::forward`].
    ///
    /// # Safety
    /// As [`PlannedConvolution::forward`].
    pub unsafe fn input_gradient(&self, reads: Reads, dx: u64) -> Result<(), LibraryError> {
        let (workspace, bytes) = self.room(&reads, 1);
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: the caller's promise; factors live for the call.
        let status = unsafe {
            sys::cudnnConvolutionBackwardData(
                self.library.handle.what,
                ptr::from_ref(&one).cast(),
                self.w.what,
                reads.first as *const c_void,
                self.y.what,
                reads.second as *const c_void,
                self.how.what,
                INPUT,
                workspace,
                bytes,
                ptr::from_ref(&zero).cast(),
                self.x.what,
                dx as *mut c_void,
            )
        };
        done("cudnnConvolutionBackwardData", status)
    }

    /// `dw` of `x` and `dy`.
    ///
    /// *Errors*, *Panics* as [`PlannedConvolution::forward`].
    ///
    /// # Safety
    /// As [`PlannedConvolution::forward`].
    pub unsafe fn weight_gradient(&self, reads: Reads, dw: u64) -> Result<(), LibraryError> {
        let (workspace, bytes) = self.room(&reads, 2);
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: the caller's promise; factors live for the call.
        let status = unsafe {
            sys::cudnnConvolutionBackwardFilter(
                self.library.handle.what,
                ptr::from_ref(&one).cast(),
                self.x.what,
                reads.first as *const c_void,
                self.y.what,
                reads.second as *const c_void,
                self.how.what,
                WEIGHT,
                workspace,
                bytes,
                ptr::from_ref(&zero).cast(),
                self.w.what,
                dw as *mut c_void,
            )
        };
        done("cudnnConvolutionBackwardFilter", status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Conv2dShape {
        Conv2dShape {
            images: 8,
            channels: 3,
            size: [7, 9],
            outputs: 5,
            kernel: [3, 2],
            stride: [2, 1],
            padding: [1, 0],
        }
    }

    #[test]
    fn a_convolution_has_these_sizes_in_the_library_s_words() {
        let sizes = Sizes::of(&shape()).expect("it fits");
        let wanted =
            Sizes { x: [8, 3, 7, 9], w: [5, 3, 3, 2], y: [8, 5, 4, 8], padding: [1, 0], stride: [2, 1] };
        assert_eq!(sizes, wanted);
    }

    #[test]
    fn a_convolution_that_cannot_be_told_is_a_typed_error() {
        for (wrong, words) in [
            (Conv2dShape { images: 0, ..shape() }, "nothing to compute"),
            (Conv2dShape { kernel: [10, 2], ..shape() }, "nothing to compute"),
            (Conv2dShape { images: 1 << 30, ..shape() }, "32 bits"),
        ] {
            let error = Sizes::of(&wrong).expect_err(words);
            assert!(
                matches!(error, LibraryError::Shape { .. }) && error.to_string().contains(words),
                "{error}"
            );
        }
    }

    #[test]
    fn tensor_cores_cut_f32_only_where_that_is_asked_for() {
        use sys::cudnnMathType_t::{CUDNN_FMA_MATH, CUDNN_TENSOR_OP_MATH};
        assert_eq!(types(Numbers::F32).map(|(_, math)| math), Some(CUDNN_FMA_MATH));
        assert_eq!(types(Numbers::Tf32).map(|(_, math)| math), Some(CUDNN_TENSOR_OP_MATH));
        assert_eq!(types(Numbers::Bf16ToF32), None);
    }
}
