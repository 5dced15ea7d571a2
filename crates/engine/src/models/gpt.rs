//! Decoder-only transformers with learned positions and norms in front of each branch: one as small as you like, and GPT-2.
//!
//! *Source*: Radford et al., "Language models are unsupervised multitask learners", 2019; nanoGPT.

use super::demand;
use crate::device::Device;
use crate::error::EngineError;
use crate::param_layout::Init;
use crate::stages::{Attention, Chain, Dropout, Embedding, Gelu, LayerNorm, Linear, Residual};

/// Options of [`gpt`] and [`gpt2`]. The defaults are the model that the benchmarks run in PyTorch too.
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

impl GptOptions {
    /// GPT-2 small, 124 M parameters; without dropout, of which there is none inside of attention here.
    #[must_use]
    pub fn gpt2() -> Self {
        Self { vocabulary: 50_257, context: 1024, layers: 12, width: 768, heads: 12, dropout: 0.0 }
    }

    fn check(&self) -> Result<(), EngineError> {
        let Self { vocabulary, context, layers, width, heads, dropout } = *self;
        demand(vocabulary > 1, "model.vocabulary", "must be at least 2")?;
        demand(context > 0, "model.context", "must be at least 1")?;
        demand(layers > 0, "model.layers", "must be at least 1")?;
        demand(heads > 0, "model.heads", "must be at least 1")?;
        demand(width > 0 && width.is_multiple_of(heads), "model.width", "must be a multiple of model.heads")?;
        demand((0.0..1.0).contains(&dropout), "model.dropout", "must be at least 0 and below 1")
    }
}

/// What is the same in all blocks of a model.
#[derive(Clone, Copy)]
struct Style {
    options: GptOptions,
    /// How weights start inside of a branch, and those at its end; none: as PyTorch's linear layers do.
    starts: Option<[Init; 2]>,
    gelu: Gelu,
}

/// Token ids `[context]` to logits `[context, vocabulary]`; the head is its own matrix, without a bias.
///
/// Tensors: `tokens`, `places`, then per block `blocks.0.norm1.weight`, `blocks.0.qkv.weight`, `blocks.0.proj`,
/// `norm2`, `up`, `down`, then `norm` and `head.weight`.
///
/// *Errors*: [`EngineError::Option`].
pub fn gpt<D: Device>(options: &GptOptions) -> Result<Chain<D>, EngineError> {
    options.check()?;
    let GptOptions { vocabulary, width, .. } = *options;
    let style = Style { options: *options, starts: None, gelu: Gelu::Exact };
    let chain = style.body(Embedding::new(vocabulary, width));
    Ok(chain.named("head", Linear::new(vocabulary).without_bias()))
}

/// The same as OpenAI's GPT-2: the head is the table of tokens, GELU is by way of tanh, weights start with deviation 0.02, less
/// at the end of a branch, and biases at zero.
///
/// Tensors: those of [`gpt`] but for `head.weight`.
///
/// *Errors*: [`EngineError::Option`].
pub fn gpt2<D: Device>(options: &GptOptions) -> Result<Chain<D>, EngineError> {
    options.check()?;
    let GptOptions { vocabulary, width, layers, .. } = *options;
    // So that the sum of all branches does not grow with their number.
    let last = Init::Normal(DEVIATION / ((2 * layers) as f32).sqrt());
    let style = Style { options: *options, starts: Some([Init::Normal(DEVIATION), last]), gelu: Gelu::Tanh };
    let chain = style.body(Embedding::new(vocabulary, width).shared());
    Ok(chain.tied("head", Linear::new(vocabulary).without_bias(), "tokens"))
}

/// The deviation of GPT-2's first weights.
const DEVIATION: f32 = 0.02;

impl Style {
    /// Everything but the head.
    fn body<D: Device>(&self, embedding: Embedding) -> Chain<D> {
        let mut chain = self.drop(Chain::new().named("", embedding));
        for i in 0..self.options.layers {
            chain = chain.named(&format!("blocks.{i}"), self.block());
        }
        chain.named("norm", LayerNorm::new())
    }

    /// One block: `h + proj(attention(qkv(norm1(h))))`, then `h + down(gelu(up(norm2(h))))`.
    fn block<D: Device>(&self) -> Chain<D> {
        let GptOptions { width, heads, .. } = self.options;
        let attention = Chain::new()
            .named("norm1", LayerNorm::new())
            .named("qkv", self.linear(3 * width, 0))
            .named("attention", Attention::new(heads))
            .named("proj", self.linear(width, 1));
        let feed_forward = Chain::new()
            .named("norm2", LayerNorm::new())
            .named("up", self.linear(4 * width, 0).gelu(self.gelu))
            .named("down", self.linear(width, 1));
        Chain::new()
            .named("", Residual::new(self.drop(attention)))
            .named("", Residual::new(self.drop(feed_forward)))
    }

    /// A layer that starts as those inside of a branch do, or as that at its end.
    fn linear(&self, outputs: usize, place: usize) -> Linear {
        let layer = Linear::new(outputs);
        match self.starts {
            Some(starts) => layer.starting(starts[place], Init::Constant(0.0)),
            None => layer,
        }
    }

    fn drop<D: Device>(&self, chain: Chain<D>) -> Chain<D> {
        match self.options.dropout > 0.0 {
            true => chain.named("dropout", Dropout::new(self.options.dropout)),
            false => chain,
        }
    }
}
