//! Convolutions by the algorithms that cuDNN lists, over tensors as they lie.
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
//! This file does not know where a choice is written.

use super::choice::{ConvolutionChoice, Manner};
use super::descriptors::{Descriptors, Tensors, done};
use super::handle::{CANDIDATES, CudnnHandle};
use super::math::Math;
use crate::libraries::LibraryError;
use crate::libraries::convolution::{Behind, ConvolutionKey, Pass};
use cudarc::cudnn::sys::{self, cudnnStatus_t as Status};
use dtrain_engine::device::Write;
use std::ffi::{c_int, c_void};
use std::ptr;

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

impl CudnnHandle {
    /// The algorithms for a convolution that multiply what they are given and are called deterministic, each with its bytes of workspace:
    /// at most [`CANDIDATES`], the one that the library thinks fastest first. None if there is none.
    pub(super) fn algorithms_of(
        &self,
        key: &ConvolutionKey,
    ) -> Result<Vec<(ConvolutionChoice, u64)>, LibraryError> {
        let descriptors = Descriptors::of(key)?;
        let mut all = Vec::new();
        for (algorithm, math) in self.offered(key, &descriptors)? {
            descriptors.multiply(math)?;
            let Some(workspace) = self.workspace(key, &descriptors, algorithm)? else { continue };
            if workspace > key.most_workspace() {
                continue;
            }
            let listed = |manner: &Manner| ConvolutionChoice::Listed { algorithm, math, manner: *manner };
            all.extend(manners(key.pass, algorithm).iter().map(|manner| (listed(manner), workspace)));
        }
        all.truncate(CANDIDATES);
        Ok(all)
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

/// A part of a convolution that can be run.
pub(super) struct Listed {
    descriptors: Descriptors,
    pass: Pass,
    algorithm: u32,
    manner: Manner,
    workspace: u64,
}

impl Listed {
    /// *Errors*: why the algorithm cannot be used; of the library.
    pub fn accepted(
        handle: &CudnnHandle,
        key: &ConvolutionKey,
        (algorithm, math, manner): (u32, Math, Manner),
        workspace: u64,
    ) -> Result<Result<Self, String>, LibraryError> {
        if !manners(key.pass, algorithm).contains(&manner) {
            return Ok(Err(format!("{manner:?} is not for algorithm {algorithm}")));
        }
        let descriptors = Descriptors::of(key)?;
        if !handle.offered(key, &descriptors)?.contains(&(algorithm, math)) {
            return Ok(Err(format!("algorithm {algorithm} is not offered for it")));
        }
        descriptors.multiply(math)?;
        let needed = handle.workspace(key, &descriptors, algorithm)?.unwrap_or(u64::MAX);
        if needed > workspace {
            return Ok(Err(format!("it needs {needed} bytes of workspace, not {workspace}")));
        }
        Ok(Ok(Self { descriptors, pass: key.pass, algorithm, manner, workspace }))
    }

    /// Puts it on the handle's stream. A gradient of weights may be added to what is there.
    ///
    /// *Errors*: [`LibraryError::Call`].
    ///
    /// # Safety
    /// As [`super::PlannedConvolution::run`].
    pub unsafe fn run(&self, handle: &CudnnHandle, at: Tensors, write: Write) -> Result<(), LibraryError> {
        let (one, share) = (1.0f32, if write == Write::Add { 1.0f32 } else { 0.0 });
        let (one, share) = (ptr::from_ref(&one).cast::<c_void>(), ptr::from_ref(&share).cast::<c_void>());
        let Descriptors { x, w, y, bias, how, activation } = &self.descriptors;
        let (x, w, y, how, handle) = (x.what, w.what, y.what, how.what, handle.handle.what);
        let [at_x, at_w, at_y] = [at.x, at.w, at.y].map(|at| at as *mut c_void);
        let (room, bytes) = (at.workspace as *mut c_void, self.workspace as usize);
        let number = self.algorithm as usize;
        // SAFETY: the caller's promise; factors live for the calls.
        let (call, status) = unsafe {
            match (self.pass, self.manner) {
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
                    let by = weights(self.algorithm).expect("it was looked up");
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
