//! Convolutions by cuDNN, each by an algorithm that is written down; attention by its graphs is in `attention.rs`.
//!
//! As for products ([`super::cublaslt`]): somebody asks the library once for a shape ([`CudnnHandle::candidates`]), its answers are plain
//! data ([`PinnedConvolution`]), and it is asked again before one is used ([`CudnnHandle::accept`]). Only algorithms that multiply what
//! they are given count (by transforms they would round once more), and of those the ones that the library itself calls deterministic.
//!
//! What NVIDIA's documentation of `cudnnConvolutionForward`, `...BackwardData` and `...BackwardFilter` allows, of which this uses two rows:
//!
//! | | x, w and y, or their gradients | sums |
//! |---|---|---|
//! | `PSEUDO_HALF_CONFIG`, `PSEUDO_BFLOAT16_CONFIG` | all f16, all bf16 | f32 |
//! | `FLOAT_CONFIG` | all f32 | f32 |
//! | `TRUE_HALF_CONFIG` | all f16 | f16: never used |
//!
//! So halves never give f32, which the gradient of weights has to be: it is asked for in f32, of numbers that were halves. Tensor cores
//! read f32 as TF32, which holds every bf16 and f16 exactly: nothing is lost.
//!
//! Tensors lie as the engine has them: N C (D) H W. What they hold, and how many images the library is told of at once, is in
//! [`super::convolution`].
//!
//! This file does not know kernels of this crate, nor who owns memory.

mod attention;
mod descriptors;
mod graph;
mod math;

pub use attention::{AttentionPlaces, PinnedAttention, PlannedAttention};
pub use graph::EngineChoice;
pub use math::Math;

use super::convolution::{Behind, ConvolutionKey, Pass};
use super::{LibraryError, Numbers};
use cudarc::cudnn::sys::{self, cudnnStatus_t as Status};
use descriptors::{Descriptors, Made, done};
use dtrain_engine::device::Write;
use libloading::Library;
use serde::{Deserialize, Serialize};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;

const NAME: &str = "cuDNN";

/// Algorithms that are timed, at most.
pub const CANDIDATES: usize = 8;
/// Answers of the library that are read: it has eight algorithms, each with and without tensor cores.
const ANSWERS: usize = 16;
/// The library's algorithms in the order of their numbers.
const FORWARD: [sys::cudnnConvolutionFwdAlgo_t; 3] = {
    use sys::cudnnConvolutionFwdAlgo_t as A;
    [
        A::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
        A::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
        A::CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
    ]
};
const INPUTS: [sys::cudnnConvolutionBwdDataAlgo_t; 2] = {
    use sys::cudnnConvolutionBwdDataAlgo_t as A;
    [A::CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, A::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1]
};
const WEIGHTS: [(u32, sys::cudnnConvolutionBwdFilterAlgo_t); 3] = {
    use sys::cudnnConvolutionBwdFilterAlgo_t as A;
    [
        (0, A::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0),
        (1, A::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1),
        (3, A::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3),
    ]
};

/// Who does what lies behind a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// The convolution alone is the library's.
    Alone,
    /// The library adds the bias and applies the activation too, before it rounds.
    Fused,
}

/// A choice, written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedConvolution {
    /// What it is for.
    pub key: ConvolutionKey,
    /// The library's number of the algorithm.
    pub algorithm: u32,
    /// How it multiplies.
    pub math: Math,
    /// What is the library's.
    pub manner: Manner,
    /// Bytes of workspace that the library needs.
    pub workspace: u64,
    /// The version of the library that chose.
    pub version: u64,
}

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

/// An answer of the library: its three types of them have these fields. Numbers, so that one which is newer than the bindings is none.
#[repr(C)]
#[derive(Clone, Copy)]
struct Answer {
    algorithm: u32,
    status: u32,
    time: f32,
    memory: usize,
    determinism: u32,
    math: u32,
    reserved: [c_int; 3],
}

const NO_ANSWER: Answer = Answer {
    algorithm: 0,
    status: u32::MAX,
    time: 0.0,
    memory: 0,
    determinism: 0,
    math: 0,
    reserved: [0; 3],
};

const _: () = {
    assert!(size_of::<Answer>() == size_of::<sys::cudnnConvolutionFwdAlgoPerf_t>());
    assert!(size_of::<Answer>() == size_of::<sys::cudnnConvolutionBwdDataAlgoPerf_t>());
    assert!(size_of::<Answer>() == size_of::<sys::cudnnConvolutionBwdFilterAlgoPerf_t>());
};

/// Whether it multiplies what it is given.
fn multiplies(pass: Pass, algorithm: u32) -> bool {
    match pass {
        Pass::Forward(_) => (algorithm as usize) < FORWARD.len(),
        Pass::Inputs => (algorithm as usize) < INPUTS.len(),
        Pass::Weights => weights(algorithm).is_some(),
    }
}

fn weights(algorithm: u32) -> Option<sys::cudnnConvolutionBwdFilterAlgo_t> {
    WEIGHTS.iter().find_map(|(number, known)| (*number == algorithm).then_some(*known))
}

/// The library, opened. What computes is a handle of it.
#[derive(Clone, Copy, Debug)]
pub struct Cudnn {
    version: u64,
}

impl Cudnn {
    /// This file, unless the process has another one of that name: then that one, whose version tells.
    ///
    /// *Errors*: as [`Cudnn::new`].
    pub fn open(path: &Path) -> Result<Self, LibraryError> {
        // SAFETY: the library's initialisers touch nothing of ours.
        if let Ok(library) = unsafe { Library::new(path) } {
            // It stays open, so that its bare name means this file.
            std::mem::forget(library);
        }
        Self::new()
    }

    /// *Errors*: [`LibraryError::Missing`].
    pub fn new() -> Result<Self, LibraryError> {
        Ok(Self { version: version()? })
    }

    /// Its version, as [`version`] has it.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A handle, in the context that is current, on one stream. *Blocks* for a while.
    ///
    /// *Errors*: [`LibraryError::Call`], without a GPU for example.
    ///
    /// # Safety
    /// The stream is alive for as long as the handle is, and of the context that is current.
    pub unsafe fn on(&self, stream: *mut c_void) -> Result<CudnnHandle, LibraryError> {
        let handle = Made::new("cudnnCreate", sys::cudnnCreate, sys::cudnnDestroy)?;
        // SAFETY: the handle was just made; the stream is the caller's promise.
        done("cudnnSetStream", unsafe { sys::cudnnSetStream(handle.what, stream.cast()) })?;
        Ok(CudnnHandle { handle, version: self.version })
    }
}

/// The library on one stream. One thread at a time may use it.
pub struct CudnnHandle {
    handle: Made<sys::cudnnHandle_t>,
    version: u64,
}

// SAFETY: NVIDIA says that a handle may go from thread to thread, as long as one at a time uses it: it is not `Sync`.
unsafe impl Send for CudnnHandle {}

impl fmt::Debug for CudnnHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudnnHandle").field("version", &self.version).finish_non_exhaustive()
    }
}

impl CudnnHandle {
    /// The algorithms for a convolution that keep the rules of this file, the one that the library thinks fastest first: at most
    /// [`CANDIDATES`].
    ///
    /// *Errors*: [`LibraryError::NoAlgorithm`], [`LibraryError::Call`].
    pub fn candidates(&self, key: &ConvolutionKey) -> Result<Vec<PinnedConvolution>, LibraryError> {
        let descriptors = Descriptors::of(key)?;
        let mut all = Vec::new();
        for (algorithm, math) in self.offered(key, &descriptors)? {
            descriptors.multiply(math)?;
            let Some(workspace) = self.workspace(key, &descriptors, algorithm)? else { continue };
            if workspace > key.most_workspace() {
                continue;
            }
            let pin = |manner| PinnedConvolution {
                key: *key,
                algorithm,
                math,
                manner,
                workspace,
                version: self.version,
            };
            all.extend(manners(key.pass, algorithm).iter().map(|manner| pin(*manner)));
        }
        all.truncate(CANDIDATES);
        let none = || LibraryError::NoAlgorithm { library: NAME, shape: key.shown() };
        if all.is_empty() { Err(none()) } else { Ok(all) }
    }

    /// A convolution by an algorithm that was pinned, here or elsewhere.
    ///
    /// *Errors*: [`LibraryError::Unfit`] if another version chose it, or if the library does not offer it.
    pub fn accept(&self, pinned: &PinnedConvolution) -> Result<PlannedConvolution, LibraryError> {
        let key = pinned.key;
        let unfit = |why| LibraryError::Unfit { shape: key.shown(), why };
        if pinned.version != self.version {
            return Err(unfit(format!("cuDNN {} chose it, and here is {}", pinned.version, self.version)));
        }
        let reads = Numbers::of(key.numbers.precision());
        let told = reads.and_then(|reads| ConvolutionKey::of(key.pass, reads, &key.shape()).ok());
        if told != Some(key) {
            return Err(unfit("it is no convolution that can be told".to_owned()));
        }
        if !manners(key.pass, pinned.algorithm).contains(&pinned.manner) {
            return Err(unfit(format!("{:?} is not for algorithm {}", pinned.manner, pinned.algorithm)));
        }
        let descriptors = Descriptors::of(&key)?;
        if !self.offered(&key, &descriptors)?.contains(&(pinned.algorithm, pinned.math)) {
            return Err(unfit(format!("algorithm {} is not offered for it", pinned.algorithm)));
        }
        descriptors.multiply(pinned.math)?;
        let needed = self.workspace(&key, &descriptors, pinned.algorithm)?.unwrap_or(u64::MAX);
        if needed > pinned.workspace || needed > key.most_workspace() {
            return Err(unfit(format!("it needs {needed} bytes of workspace, not {}", pinned.workspace)));
        }
        Ok(PlannedConvolution { descriptors, pinned: *pinned })
    }

    /// Algorithms with their arithmetic that the library says it has for a convolution, deterministic ones that multiply.
    fn offered(
        &self,
        key: &ConvolutionKey,
        descriptors: &Descriptors,
    ) -> Result<Vec<(u32, Math)>, LibraryError> {
        let mut all: Vec<(u32, Math)> = Vec::new();
        for asked in [Math::Tensor, Math::Default] {
            descriptors.multiply(asked)?;
            for answer in self.answers(key.pass, descriptors)? {
                let fits = answer.status == Status::CUDNN_STATUS_SUCCESS as u32
                    && answer.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC as u32
                    && multiplies(key.pass, answer.algorithm);
                if let Some(math) = Math::of(answer.math).filter(|_| fits)
                    && !all.contains(&(answer.algorithm, math))
                {
                    all.push((answer.algorithm, math));
                }
            }
        }
        Ok(all)
    }

    /// What the library answers, sorted by it; nothing where it has no algorithm.
    fn answers(&self, pass: Pass, descriptors: &Descriptors) -> Result<Vec<Answer>, LibraryError> {
        let (mut answers, mut count) = ([NO_ANSWER; ANSWERS], 0);
        let (most, to) = (ANSWERS as c_int, answers.as_mut_ptr());
        let Descriptors { x, w, y, how, .. } = descriptors;
        let handle = self.handle.what;
        // SAFETY: all descriptors are alive; there is room for as many answers as are asked for, which have the layout of the
        // library's.
        let (call, status) = unsafe {
            match pass {
                Pass::Forward(_) => (
                    "cudnnGetConvolutionForwardAlgorithm_v7",
                    sys::cudnnGetConvolutionForwardAlgorithm_v7(
                        handle,
                        x.what,
                        w.what,
                        how.what,
                        y.what,
                        most,
                        &mut count,
                        to.cast(),
                    ),
                ),
                Pass::Inputs => (
                    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
                    sys::cudnnGetConvolutionBackwardDataAlgorithm_v7(
                        handle,
                        w.what,
                        y.what,
                        how.what,
                        x.what,
                        most,
                        &mut count,
                        to.cast(),
                    ),
                ),
                Pass::Weights => (
                    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
                    sys::cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                        handle,
                        x.what,
                        y.what,
                        how.what,
                        w.what,
                        most,
                        &mut count,
                        to.cast(),
                    ),
                ),
            }
        };
        if status == Status::CUDNN_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        done(call, status)?;
        Ok(answers[..count.clamp(0, most) as usize].to_vec())
    }

    /// Bytes of workspace of an algorithm with the arithmetic that was set last; nothing where it is not supported after all.
    fn workspace(
        &self,
        key: &ConvolutionKey,
        descriptors: &Descriptors,
        algorithm: u32,
    ) -> Result<Option<u64>, LibraryError> {
        let (handle, Descriptors { x, w, y, how, .. }) = (self.handle.what, descriptors);
        let (x, w, y, how, mut bytes) = (x.what, w.what, y.what, how.what, 0usize);
        let number = algorithm as usize;
        // SAFETY: all descriptors are alive; the number lives for the call.
        let status = unsafe {
            match key.pass {
                Pass::Forward(_) => {
                    let algorithm = FORWARD[number];
                    sys::cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, how, y, algorithm, &mut bytes)
                }
                Pass::Inputs => {
                    let by = INPUTS[number];
                    sys::cudnnGetConvolutionBackwardDataWorkspaceSize(handle, w, y, how, x, by, &mut bytes)
                }
                Pass::Weights => {
                    let by = weights(algorithm).expect("it was looked up");
                    sys::cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, x, y, how, w, by, &mut bytes)
                }
            }
        };
        match status {
            Status::CUDNN_STATUS_NOT_SUPPORTED => Ok(None),
            status => done("cudnnGetConvolution...WorkspaceSize", status).map(|()| Some(bytes as u64)),
        }
    }
}

/// How an algorithm may be used: an activation of nothing is documented for `IMPLICIT_PRECOMP_GEMM` alone.
fn manners(pass: Pass, algorithm: u32) -> &'static [Manner] {
    match pass {
        Pass::Forward(Behind::Bias) if algorithm == 1 => &[Manner::Fused, Manner::Alone],
        Pass::Forward(Behind::BiasRelu) => &[Manner::Fused, Manner::Alone],
        Pass::Forward(Behind::Bias | Behind::Nothing) | Pass::Inputs | Pass::Weights => &[Manner::Alone],
    }
}

/// A convolution that can be run, part by part.
pub struct PlannedConvolution {
    descriptors: Descriptors,
    pinned: PinnedConvolution,
}

// SAFETY: descriptors are the library's own plain memory, and nobody changes them behind `accept`.
unsafe impl Send for PlannedConvolution {}

impl fmt::Debug for PlannedConvolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedConvolution").field("pinned", &self.pinned).finish_non_exhaustive()
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
    /// [`PinnedConvolution::workspace`] bytes that may be written over.
    pub workspace: u64,
}

impl PlannedConvolution {
    /// How it was chosen.
    #[must_use]
    pub fn pinned(&self) -> &PinnedConvolution {
        &self.pinned
    }

    /// Bytes of memory beside the operands: copies, and behind them the workspace.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.pinned.key.copies().iter().sum::<u64>() + self.pinned.workspace
    }

    /// Puts one part on the handle's stream. A gradient of weights may be added to that of the parts before.
    ///
    /// *Errors*: [`LibraryError::Call`].
    ///
    /// # Safety
    /// The tensors of the key lie at these addresses, in the numbers that the library is told of, until the stream is through; nothing else
    /// uses what is written and the workspace until then. The handle is of the context that is current.
    pub unsafe fn run(&self, handle: &CudnnHandle, at: Tensors, write: Write) -> Result<(), LibraryError> {
        let (one, share) = (1.0f32, if write == Write::Add { 1.0f32 } else { 0.0 });
        let (one, share) = (ptr::from_ref(&one).cast::<c_void>(), ptr::from_ref(&share).cast::<c_void>());
        let Descriptors { x, w, y, bias, how, activation } = &self.descriptors;
        let (x, w, y, how, handle) = (x.what, w.what, y.what, how.what, handle.handle.what);
        let [at_x, at_w, at_y] = [at.x, at.w, at.y].map(|at| at as *mut c_void);
        let (room, bytes) = (at.workspace as *mut c_void, self.pinned.workspace as usize);
        let number = self.pinned.algorithm as usize;
        // SAFETY: the caller's promise; factors live for the calls.
        let (call, status) = unsafe {
            match (self.pinned.key.pass, self.pinned.manner) {
                (Pass::Forward(_), Manner::Alone) => {
                    let by = FORWARD[number];
                    let status = sys::cudnnConvolutionForward(
                        handle, one, x, at_x, w, at_w, how, by, room, bytes, share, y, at_y,
                    );
                    ("cudnnConvolutionForward", status)
                }
                (Pass::Forward(_), Manner::Fused) => {
                    let (by, bias, at_bias) = (FORWARD[number], bias.what, at.bias as *const c_void);
                    // What would be added beside the bias is told, and takes no part.
                    let status = sys::cudnnConvolutionBiasActivationForward(
                        handle,
                        one,
                        x,
                        at_x,
                        w,
                        at_w,
                        how,
                        by,
                        room,
                        bytes,
                        share,
                        y,
                        at_y,
                        bias,
                        at_bias,
                        activation.what,
                        y,
                        at_y,
                    );
                    ("cudnnConvolutionBiasActivationForward", status)
                }
                (Pass::Inputs, _) => {
                    let by = INPUTS[number];
                    let status = sys::cudnnConvolutionBackwardData(
                        handle, one, w, at_w, y, at_y, how, by, room, bytes, share, x, at_x,
                    );
                    ("cudnnConvolutionBackwardData", status)
                }
                (Pass::Weights, _) => {
                    let by = weights(self.pinned.algorithm).expect("it was looked up");
                    let status = sys::cudnnConvolutionBackwardFilter(
                        handle, one, x, at_x, y, at_y, how, by, room, bytes, share, w, at_w,
                    );
                    ("cudnnConvolutionBackwardFilter", status)
                }
            }
        };
        done(call, status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_engine::device::Conv3dShape;

    #[test]
    fn a_choice_comes_back_from_a_manifest_as_it_was() {
        let (pass, version) = (Pass::Forward(Behind::BiasRelu), 91_900);
        let shape = Conv3dShape {
            images: 8,
            channels: 3,
            size: [1, 7, 9],
            outputs: 5,
            kernel: [1, 3, 2],
            stride: [1, 2, 1],
            padding: [0, 1, 0],
        };
        let key = ConvolutionKey::of(pass, Numbers::Bf16, &shape).expect("it fits");
        assert_eq!(key.numbers, Numbers::Bf16);
        let (math, manner) = (Math::Tensor, Manner::Fused);
        let pinned = PinnedConvolution { key, algorithm: 1, math, manner, workspace: 5, version };
        let text = serde_json::to_string(&pinned).expect("plain data");
        assert_eq!(serde_json::from_str::<PinnedConvolution>(&text).expect("what was written"), pinned);
        assert!(text.contains("\"forward\":\"bias_relu\"") && text.contains("\"bf16\""), "{text}");
    }

    #[test]
    fn what_would_lose_bits_is_never_chosen() {
        assert_eq!([0, 1, 2, 3, 4].map(|n| Math::of(n).is_some()), [true, true, false, true, false]);
        // Transforms, and what is not implemented.
        for algorithm in 3..8 {
            assert!(!multiplies(Pass::Forward(Behind::Nothing), algorithm));
        }
        assert!([2, 4, 5, 6].iter().all(|n| !multiplies(Pass::Weights, *n)));
        assert!((2..6).all(|n| !multiplies(Pass::Inputs, n)));
    }
}
