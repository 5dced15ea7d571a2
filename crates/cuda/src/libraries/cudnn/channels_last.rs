//! Convolutions of halves over tensors in which channels lie last, as graphs of cuDNN, each by an engine that is written down.
//!
//! That is how tensor cores want them, and of such tensors the library has a gradient of weights that is f32, where an identity stands
//! behind it. Everything else is as in [`super`].
//!
//! This file does not know kernels of this crate, who owns memory, nor how channels came to lie last.

use super::super::LibraryError;
use super::super::convolution::{ConvolutionKey, Form, Pass};
use super::descriptors::Tensors;
use super::engines::{self, EngineChoice, Plan, Prepared};
use super::graph::{GraphDraft, OperationGraph, Place, Target, Tensor, Windows};
use super::handle::CudnnHandle;
use crate::values::{Half, Storage};
use cudarc::cudnn::sys::{cudnnDataType_t as DataType, cudnnPointwiseMode_t as By};

/// Sizes of a tensor, and its strides if channels, its second axis, lie last.
struct Shape {
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

impl Shape {
    fn of(first: u32, channels: u32, sides: &[u32]) -> Self {
        let sides = sides.iter().map(|side| i64::from(*side));
        let sizes: Vec<i64> = [first, channels].map(i64::from).into_iter().chain(sides).collect();
        let behind = |axis: usize| sizes[axis + 1..].iter().product::<i64>();
        let stride = |axis: usize| match axis {
            0 => behind(0),
            1 => 1,
            axis => sizes[1] * behind(axis),
        };
        let strides = (0..sizes.len()).map(stride).collect();
        Self { sizes, strides }
    }
}

/// The graph of a part of a convolution, and its input, weights and output.
fn graph_of(key: &ConvolutionKey, target: Target) -> Result<(OperationGraph, [Tensor; 3]), LibraryError> {
    let numbers = match key.reads() {
        Storage::Half(Half::Bf16) => DataType::CUDNN_DATA_BFLOAT16,
        Storage::Half(Half::F16) => DataType::CUDNN_DATA_HALF,
        Storage::F32 => DataType::CUDNN_DATA_FLOAT,
    };
    let (sizes, shape) = (key.sizes, key.shape());
    // What is one element deep is told as images.
    let first = if shape.flat().is_some() { 1 } else { 0 };
    let images = key.images_of_a_part();
    let out = shape.output_size().map(|side| side as u32);
    let x = Shape::of(images, sizes.channels, &sizes.size[first..]);
    let w = Shape::of(sizes.outputs, sizes.channels, &sizes.kernel[first..]);
    let y = Shape::of(images, sizes.outputs, &out[first..]);
    let [stride, padding] = [sizes.stride, sizes.padding].map(|all| all.map(i64::from));
    let windows = Windows { stride: &stride[first..], padding: &padding[first..] };
    let mut draft = GraphDraft::default();
    let mut tensor =
        |place, numbers, shape: &Shape| draft.tensor(place, numbers, &shape.sizes, &shape.strides);
    let (x, y) = (tensor(Place::Memory, numbers, &x)?, tensor(Place::Memory, numbers, &y)?);
    let w = if key.pass == Pass::Weights {
        let f32s = DataType::CUDNN_DATA_FLOAT;
        let (sum, dw) = (tensor(Place::Virtual, f32s, &w)?, tensor(Place::Memory, f32s, &w)?);
        draft.convolution(key.pass, &windows, [x, sum, y])?;
        draft.pointwise(By::CUDNN_POINTWISE_IDENTITY, f32s, &[sum], dw)?;
        dw
    } else {
        let w = tensor(Place::Memory, numbers, &w)?;
        draft.convolution(key.pass, &windows, [x, w, y])?;
        w
    };
    Ok((draft.finished(target)?, [x, w, y]))
}

/// A part of a convolution that can be run.
pub(super) struct ByEngine {
    plan: Plan,
    tensors: [Tensor; 3],
}

impl ByEngine {
    /// *Errors*: why the engine cannot be used; of the library.
    pub fn accepted(
        handle: &CudnnHandle,
        key: &ConvolutionKey,
        choice: &EngineChoice,
        workspace: u64,
    ) -> Result<Result<Self, String>, LibraryError> {
        if !key.has(Form::ChannelsLast) {
            return Ok(Err("it is not for halves".to_owned()));
        }
        let (graph, tensors) = graph_of(key, Target::Of(handle.handle.what))?;
        let plan = engines::accepted(graph, choice, workspace)?;
        Ok(plan.map(|plan| Self { plan, tensors }))
    }

    /// Puts it on the handle's stream.
    ///
    /// *Errors*: [`LibraryError::Call`].
    ///
    /// # Safety
    /// As [`super::PlannedConvolution::run`].
    pub unsafe fn run(&self, handle: &CudnnHandle, at: Tensors) -> Result<(), LibraryError> {
        let [x, w, y] = self.tensors;
        // SAFETY: the caller's promise.
        unsafe { self.plan.run(handle.handle.what, [(x, at.x), (w, at.w), (y, at.y)], at.workspace) }
    }
}

impl CudnnHandle {
    /// Engines for a convolution over tensors in which channels lie last, each with how it is written and its bytes of workspace. None if
    /// there is none.
    pub(super) fn engines_of(
        &self,
        key: &ConvolutionKey,
    ) -> Result<Vec<(EngineChoice, u64, ByEngine)>, LibraryError> {
        if !key.has(Form::ChannelsLast) {
            return Ok(Vec::new());
        }
        let graph = || graph_of(key, Target::Of(self.handle.what));
        let one = |Prepared { choice, plan, tensors }| (choice, plan.workspace, ByEngine { plan, tensors });
        Ok(engines::prepared(graph, key.most_workspace())?.into_iter().map(one).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cudnn;
    use super::super::graph::tests::hopper;
    use super::*;
    use crate::libraries::Numbers;
    use crate::libraries::convolution::Behind;
    use dtrain_engine::device::Conv3dShape;
    use std::path::Path;

    #[test]
    fn channels_are_the_last_to_be_counted() {
        let shape = Shape::of(2, 3, &[5, 7]);
        assert_eq!((shape.sizes, shape.strides), (vec![2, 3, 5, 7], vec![105, 1, 21, 3]));
    }

    #[test]
    fn the_real_library_where_it_is_has_engines_for_channels_that_lie_last() {
        let Some(path) = std::env::var_os("DTRAIN_TEST_CUDNN") else { return };
        let library = Cudnn::open(Path::new(&path)).unwrap_or_else(|error| panic!("{error}"));
        println!("cuDNN {}", library.version());
        let flat = |images, channels, side, outputs, stride| Conv3dShape {
            images,
            channels,
            size: [1, side, side],
            outputs,
            kernel: [1, 3, 3],
            stride: [1, stride, stride],
            padding: [0, 1, 1],
        };
        let deep = Conv3dShape {
            images: 512,
            channels: 16,
            size: [8, 32, 32],
            outputs: 32,
            kernel: [3; 3],
            stride: [2; 3],
            padding: [1; 3],
        };
        for shape in [flat(4096, 32, 26, 64, 1), flat(64, 64, 56, 128, 2), deep] {
            for pass in [Pass::Forward(Behind::BiasRelu), Pass::Inputs, Pass::Weights] {
                for reads in [Numbers::Bf16, Numbers::F16] {
                    let key = ConvolutionKey::of(pass, reads, &shape).expect("it can be told");
                    let all = engines::prepared(|| graph_of(&key, hopper()), key.most_workspace());
                    let all = all.unwrap_or_else(|error| panic!("{key:?}: {error}"));
                    println!("{key:?}:");
                    all.iter()
                        .for_each(|one| println!("  {:?} with {} bytes", one.choice, one.plan.workspace));
                    assert!(!all.is_empty(), "no engine does {key:?}");
                }
            }
        }
    }
}
