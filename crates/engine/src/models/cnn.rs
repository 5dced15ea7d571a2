//! Convolutional classifiers: convolutions with ReLU and max-pooling, then linear layers. One for sequences, one for images,
//! one for volumes or images in a row.

use super::demand;
use crate::device::Device;
use crate::error::EngineError;
use crate::stages::{BatchNorm, Chain, Conv, Dropout, Flatten, Linear, MaxPoolOver, Relu};

/// Where a convolutional classifier halves its images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolPlace {
    /// After every convolution.
    #[default]
    Each,
    /// After the last convolution only.
    Last,
}

/// Options of [`cnn`], [`cnn1d`] and [`cnn3d`]. The defaults suit images of 8 x 8 as well as of 28 x 28.
#[derive(Clone, Debug, PartialEq)]
pub struct CnnOptions {
    /// Output channels of each convolution.
    pub channels: Vec<usize>,
    /// Side of the kernels.
    pub kernel: usize,
    /// Zeros around each image.
    pub padding: usize,
    /// Where images are halved.
    pub pool: PoolPlace,
    /// Widths of the linear layers behind the convolutions.
    pub hidden: Vec<usize>,
    /// Whether batch norm stands between each convolution and its ReLU.
    pub batch_norm: bool,
    /// Probability of dropping an input of each linear layer in training.
    pub dropout: f32,
}

impl Default for CnnOptions {
    fn default() -> Self {
        Self {
            channels: vec![32, 64],
            kernel: 3,
            padding: 1,
            pool: PoolPlace::Each,
            hidden: vec![128],
            batch_norm: true,
            dropout: 0.25,
        }
    }
}

impl CnnOptions {
    /// The CNN that the benchmarks run in PyTorch too: convolutions of 32 and 64 channels without padding, one
    /// pooling, a linear layer of 128.
    #[must_use]
    pub fn benchmark() -> Self {
        Self { padding: 0, pool: PoolPlace::Last, batch_norm: false, dropout: 0.0, ..Self::default() }
    }
}

/// Images `[channels, height, width]` to `outputs` values. Tensors are called `conv1.weight`, `norm1.weight`,
/// `fc1.weight` and so on.
///
/// *Errors*: [`EngineError::Option`]; images too small for the poolings are found when the model is planned.
pub fn cnn<D: Device>(options: &CnnOptions, outputs: usize) -> Result<Chain<D>, EngineError> {
    classifier::<D, 2>(options, outputs)
}

/// As [`cnn`], of sequences `[channels, length]`.
///
/// *Errors*: as [`cnn`].
pub fn cnn1d<D: Device>(options: &CnnOptions, outputs: usize) -> Result<Chain<D>, EngineError> {
    classifier::<D, 1>(options, outputs)
}

/// As [`cnn`], of volumes or images in a row, `[channels, depth, height, width]`.
///
/// *Errors*: as [`cnn`]; not every device has such convolutions, which is found when the model is planned.
pub fn cnn3d<D: Device>(options: &CnnOptions, outputs: usize) -> Result<Chain<D>, EngineError> {
    classifier::<D, 3>(options, outputs)
}

fn classifier<D: Device, const N: usize>(
    options: &CnnOptions,
    outputs: usize,
) -> Result<Chain<D>, EngineError> {
    let CnnOptions { channels, kernel, padding, pool, hidden, batch_norm, dropout } = options;
    demand(outputs > 0, "model", "a cnn needs at least 1 output")?;
    demand(!channels.is_empty(), "model.channels", "a cnn needs at least one convolution")?;
    demand(channels.iter().all(|n| *n > 0), "model.channels", "every number of channels must be at least 1")?;
    demand(hidden.iter().all(|n| *n > 0), "model.hidden", "every width must be at least 1")?;
    demand(*kernel > 0, "model.kernel", "must be at least 1")?;
    demand((0.0..1.0).contains(dropout), "model.dropout", "must be at least 0 and below 1")?;
    let mut chain = Chain::new();
    for (i, n) in channels.iter().enumerate() {
        let conv = Conv::<N>::new(*n, *kernel).padding(*padding);
        let number = i + 1;
        chain = match batch_norm {
            true => chain
                .named(&format!("conv{number}"), conv.without_bias())
                .named(&format!("norm{number}"), BatchNorm::new())
                .named(&format!("relu{number}"), Relu),
            false => chain.named(&format!("conv{number}"), conv.relu()),
        };
        if *pool == PoolPlace::Each || number == channels.len() {
            chain = chain.named(&format!("pool{number}"), MaxPoolOver::<N>::new(2));
        }
    }
    chain = chain.named("flatten", Flatten);
    for (i, width) in hidden.iter().chain([&outputs]).enumerate() {
        if *dropout > 0.0 {
            chain = chain.named(&format!("dropout{}", i + 1), Dropout::new(*dropout));
        }
        let linear = Linear::new(*width);
        let linear = if i < hidden.len() { linear.relu() } else { linear };
        chain = chain.named(&format!("fc{}", i + 1), linear);
    }
    Ok(chain)
}
