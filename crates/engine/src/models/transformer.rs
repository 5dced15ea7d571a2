//! Transformers over values: of images, cut into patches (ViT), and of windows of sequences. A learned vector stands in front, and what it
//! comes to is classified.
//!
//! *Source*: Dosovitskiy et al., "An image is worth 16 x 16 words", 2020; names and order of torchvision.

use super::demand;
use crate::device::Device;
use crate::error::EngineError;
use crate::stages::{
    Attention, Chain, ClassToken, Conv2d, Dropout, Gelu, LayerNorm, Linear, Residual, Take, Turn,
};

/// What torchvision's transformers add to a variance.
const EPSILON: f32 = 1e-6;

fn norm() -> LayerNorm {
    LayerNorm::new().epsilon(EPSILON)
}

/// Options of [`vit`] and [`transformer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderOptions {
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads; they share the width.
    pub heads: usize,
    /// Probability of dropping a value behind the positions and of each branch's output in training.
    pub dropout: f32,
}

impl EncoderOptions {
    fn check(&self, outputs: usize) -> Result<(), EngineError> {
        let Self { layers, width, heads, dropout } = *self;
        demand(outputs > 0, "model", "a transformer needs at least 1 output")?;
        demand(layers > 0, "model.layers", "must be at least 1")?;
        demand(heads > 0, "model.heads", "must be at least 1")?;
        demand(width > 0 && width.is_multiple_of(heads), "model.width", "must be a multiple of model.heads")?;
        demand((0.0..1.0).contains(&dropout), "model.dropout", "must be at least 0 and below 1")
    }

    /// What follows the vectors of places: positions, blocks, a norm, and the head.
    fn behind<D: Device>(&self, chain: Chain<D>, outputs: usize) -> Chain<D> {
        let mut chain = self.drop(chain.named("", ClassToken::new()), "encoder.dropout");
        for i in 0..self.layers {
            chain = chain.named(&format!("encoder.layers.encoder_layer_{i}"), self.block());
        }
        chain
            .named("encoder.ln", norm())
            .named("class", Take::first())
            .named("heads.head", Linear::new(outputs))
    }

    /// One block: `h + attention(ln_1(h))`, then `h + mlp(ln_2(h))`.
    fn block<D: Device>(&self) -> Chain<D> {
        let Self { width, heads, .. } = *self;
        let attention = Chain::new()
            .named("ln_1", norm())
            .named("self_attention.in_proj", Linear::new(3 * width))
            .named("attention", Attention::new(heads).unmasked())
            .named("self_attention.out_proj", Linear::new(width));
        let feed_forward = Chain::new()
            .named("ln_2", norm())
            .named("mlp.0", Linear::new(4 * width).gelu(Gelu::Exact))
            .named("mlp.3", Linear::new(width));
        Chain::new()
            .named("", Residual::new(self.drop(attention, "dropout")))
            .named("", Residual::new(self.drop(feed_forward, "dropout")))
    }

    fn drop<D: Device>(&self, chain: Chain<D>, name: &str) -> Chain<D> {
        match self.dropout > 0.0 {
            true => chain.named(name, Dropout::new(self.dropout)),
            false => chain,
        }
    }
}

/// Images `[channels, height, width]`, cut into squares of side `patch`, to `outputs` values.
///
/// Tensors: `conv_proj`, `class_token`, `encoder.pos_embedding`, per block `encoder.layers.encoder_layer_0.ln_1`,
/// `self_attention.in_proj`, `self_attention.out_proj`, `ln_2`, `mlp.0`, `mlp.3`, then `encoder.ln` and `heads.head`.
///
/// *Errors*: [`EngineError::Option`]; a patch larger than the image is found when the model is planned.
pub fn vit<D: Device>(
    options: &EncoderOptions,
    patch: usize,
    outputs: usize,
) -> Result<Chain<D>, EngineError> {
    options.check(outputs)?;
    demand(patch > 0, "model.patch", "must be at least 1")?;
    let patches = Chain::new()
        .named("conv_proj", Conv2d::new(options.width, patch).stride(patch))
        .named("turn", Turn::new());
    Ok(options.behind(patches, outputs))
}

/// Sequences `[channels, length]` to `outputs` values: each place is a vector, `embed` brings it to the width.
///
/// Tensors: `embed`, then those of [`vit`] but for `conv_proj`.
///
/// *Errors*: [`EngineError::Option`].
pub fn transformer<D: Device>(options: &EncoderOptions, outputs: usize) -> Result<Chain<D>, EngineError> {
    options.check(outputs)?;
    let places = Chain::new().named("turn", Turn::new()).named("embed", Linear::new(options.width));
    Ok(options.behind(places, outputs))
}
