//! Residual networks over images, as torchvision has them: its names, its shapes, its start.
//!
//! *Source*: He et al., "Deep residual learning for image recognition", 2015, with the stride of a bottleneck in its 3 x 3 convolution.

use super::demand;
use crate::device::Device;
use crate::error::EngineError;
use crate::param_layout::Init;
use crate::stages::{AvgPool, BatchNorm, Chain, Conv2d, Flatten, Linear, MaxPool, Projected, Relu, Residual};

/// What stands in front of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stem {
    /// A convolution of 7 x 7 with stride 2 and a max-pooling: for large images, as published.
    Large,
    /// A convolution of 3 x 3: for images of some 32 x 32.
    Small,
}

/// Options of [`resnet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResNetOptions {
    /// Layers: 18, 34 or 50.
    pub depth: usize,
    /// Channels of the first group of blocks; 64 as published. Each group behind has twice as many.
    pub width: usize,
    /// What stands in front.
    pub stem: Stem,
}

/// Convolutions of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    /// Two of 3 x 3.
    Basic,
    /// One of 1 x 1, one of 3 x 3, and one of 1 x 1 to four times as many channels.
    Bottleneck,
}

impl Block {
    fn expansion(self) -> usize {
        match self {
            Self::Basic => 1,
            Self::Bottleneck => 4,
        }
    }
}

/// Images `[channels, height, width]` to `outputs` values.
///
/// Tensors: `conv1.weight`, `bn1`, per block `layer1.0.conv1.weight`, `bn1`, `conv2`, `bn2`, `downsample.0` and `downsample.1`, then `fc`.
///
/// *Errors*: [`EngineError::Option`]; images too small are found when the model is planned.
pub fn resnet<D: Device>(options: &ResNetOptions, outputs: usize) -> Result<Chain<D>, EngineError> {
    let (block, groups) = match options.depth {
        18 => (Block::Basic, [2, 2, 2, 2]),
        34 => (Block::Basic, [3, 4, 6, 3]),
        50 => (Block::Bottleneck, [3, 4, 6, 3]),
        _ => return demand(false, "model.depth", "must be 18, 34 or 50").map(|()| Chain::new()),
    };
    demand(outputs > 0, "model", "a resnet needs at least 1 output")?;
    demand(options.width > 0, "model.width", "must be at least 1")?;
    let mut chain = match options.stem {
        Stem::Large => normed(Chain::new(), "1", conv(options.width, 7).stride(2).padding(3))
            .named("relu", Relu)
            .named("maxpool", MaxPool::new(3).stride(2).padding(1)),
        Stem::Small => normed(Chain::new(), "1", conv(options.width, 3).padding(1)).named("relu", Relu),
    };
    let mut channels = options.width;
    for (group, blocks) in groups.into_iter().enumerate() {
        let width = options.width << group;
        for number in 0..blocks {
            let stride = if group > 0 && number == 0 { 2 } else { 1 };
            let name = format!("layer{}.{number}", group + 1);
            chain = chain.named(&name, one_block(block, channels, width, stride));
            channels = width * block.expansion();
        }
    }
    Ok(chain.named("avgpool", AvgPool::whole()).named("flatten", Flatten).named("fc", Linear::new(outputs)))
}

/// A convolution in front of a batch norm; its weights start by the number of values that it makes of one.
fn conv(outputs: usize, kernel: usize) -> Conv2d {
    let fan_out = (outputs * kernel * kernel) as f32;
    Conv2d::new(outputs, kernel).without_bias().starting(Init::Normal((2.0 / fan_out).sqrt()))
}

/// A convolution and its norm, under this number.
fn normed<D: Device>(chain: Chain<D>, number: &str, conv: Conv2d) -> Chain<D> {
    chain.named(&format!("conv{number}"), conv).named(&format!("bn{number}"), BatchNorm::new())
}

/// A block and the ReLU behind it.
fn one_block<D: Device>(block: Block, channels: usize, width: usize, stride: usize) -> Chain<D> {
    let outputs = width * block.expansion();
    let branch = Chain::new();
    let branch = match block {
        Block::Basic => {
            let branch = normed(branch, "1", conv(width, 3).stride(stride).padding(1)).named("relu1", Relu);
            normed(branch, "2", conv(width, 3).padding(1))
        }
        Block::Bottleneck => {
            let branch = normed(branch, "1", conv(width, 1)).named("relu1", Relu);
            let branch = normed(branch, "2", conv(width, 3).stride(stride).padding(1)).named("relu2", Relu);
            normed(branch, "3", conv(outputs, 1))
        }
    };
    let chain = if stride == 1 && channels == outputs {
        Chain::new().named("", Residual::new(branch))
    } else {
        let shortcut = Chain::new().then(conv(outputs, 1).stride(stride)).then(BatchNorm::new());
        Chain::new().named("", Projected::new(branch, "downsample", shortcut))
    };
    chain.named("relu", Relu)
}
