//! A decoder-only transformer with learned positions and norms in front of each branch.
//!
//! *Source*: Radford et al., "Language models are unsupervised multitask learners", 2019; nanoGPT.

use super::demand;
use crate::device::Device;
use crate::error::EngineError;
use crate::stages::{Attention, Chain, Dropout, Embedding, Gelu, LayerNorm, Linear, Residual};

/// Options of [`gpt`]. The defaults are the model that the benchmarks run in PyTorch too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptOptions {
    /// Tokens it knows; 256 for bytes.
    pub vocabulary: usize,
    /// Tokens it sees at once.
    pub context: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads; they share the width.
    pub heads: usize,
    /// Probability of dropping a value of the embedding and of each branch's output in training.
    pub dropout: f32,
}

impl Default for GptOptions {
    fn default() -> Self {
        Self { vocabulary: 256, context: 128, layers: 4, width: 256, heads: 8, dropout: 0.0 }
    }
}

/// Token ids `[context]` to logits `[context, vocabulary]`; the head is its own matrix, without a bias.
///
/// Tensors: `tokens`, `places`, then per block `blocks.0.norm1.weight`, `blocks.0.qkv.weight`, `blocks.0.proj`,
/// `norm2`, `up`, `down`, then `norm` and `head.weight`.
///
/// *Errors*: [`EngineError::Option`].
pub fn gpt<D: Device>(options: &GptOptions) -> Result<Chain<D>, EngineError> {
    let GptOptions { vocabulary, context, layers, width, heads, dropout } = *options;
    demand(vocabulary > 1, "model.vocabulary", "must be at least 2")?;
    demand(context > 0, "model.context", "must be at least 1")?;
    demand(layers > 0, "model.layers", "must be at least 1")?;
    demand(heads > 0, "model.heads", "must be at least 1")?;
    demand(width > 0 && width.is_multiple_of(heads), "model.width", "must be a multiple of model.heads")?;
    demand((0.0..1.0).contains(&dropout), "model.dropout", "must be at least 0 and below 1")?;
    let mut chain = Chain::new().named("", Embedding::new(vocabulary, width));
    if dropout > 0.0 {
        chain = chain.named("dropout", Dropout::new(dropout));
    }
    for i in 0..layers {
        chain = chain.named(&format!("blocks.{i}"), block(options));
    }
    Ok(chain.named("norm", LayerNorm::new()).named("head", Linear::new(vocabulary).without_bias()))
}

/// One block: `h + proj(attention(qkv(norm1(h))))`, then `h + down(gelu(up(norm2(h))))`.
fn block<D: Device>(options: &GptOptions) -> Chain<D> {
    let GptOptions { width, heads, dropout, .. } = *options;
    let drop = |chain: Chain<D>| match dropout > 0.0 {
        true => chain.named("dropout", Dropout::new(dropout)),
        false => chain,
    };
    let attention = Chain::new()
        .named("norm1", LayerNorm::new())
        .named("qkv", Linear::new(3 * width))
        .named("attention", Attention::new(heads))
        .named("proj", Linear::new(width));
    let feed_forward = Chain::new()
        .named("norm2", LayerNorm::new())
        .named("up", Linear::new(4 * width))
        .named("gelu", Gelu)
        .named("down", Linear::new(width));
    Chain::new().named("", Residual::new(drop(attention))).named("", Residual::new(drop(feed_forward)))
}
