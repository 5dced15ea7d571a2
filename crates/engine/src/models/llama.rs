//! Decoder-only transformers as Llama is one: rotary positions, RMS norms in front of each branch, gated feed-forward layers, and keys and
//! values that heads may share.
//!
//! *Source*: Touvron et al., "LLaMA", 2023, and "Llama 2", 2023; names, order and first weights of Hugging Face's transformers.

use super::demand;
use crate::device::{Device, RopeScaling, RotaryShape};
use crate::error::EngineError;
use crate::param_layout::Init;
use crate::stages::{
    Adapted, Attention, Chain, Embedding, HeadNorm, LayerNorm, Linear, LowRank, Residual, Rotary, SwiGlu,
};

/// Options of [`llama`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LlamaOptions {
    /// Tokens it knows.
    pub vocabulary: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Heads of keys and values, which divide the others: each is shared by as many.
    pub kv_heads: usize,
    /// Width of a head; none where they share the width.
    pub head_width: Option<usize>,
    /// Width of the feed-forward layers.
    pub feed_forward: usize,
    /// The slowest of a head's planes turns by nearly its reciprocal a place.
    pub rope_theta: f64,
    /// How positions are scaled.
    pub rope_scaling: RopeScaling,
    /// What norms add to the mean of squares.
    pub norm_epsilon: f64,
    /// Whether the layers of queries, keys and values have biases, as Qwen 2 has them.
    pub qkv_bias: bool,
    /// Whether heads of queries and keys are normed, as Qwen 3 has them.
    pub qk_norm: bool,
    /// Whether the head is the table of tokens.
    pub tied: bool,
    /// Adapters beside its layers, if it has some.
    pub lora: Option<Lora>,
}

/// Adapters beside layers of a block. What is trained of a model that has them is said by a [`Grouping`](crate::Grouping).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lora {
    /// Their rank, at least 1.
    pub rank: usize,
    /// What they say is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Which of [`Lora::TARGETS`] have one.
    pub targets: [bool; Lora::TARGETS.len()],
}

impl Lora {
    /// The layers that may have an adapter, by the ends of their names.
    pub const TARGETS: [&'static str; 7] =
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    /// Patterns of the names of all adapters' parameters.
    pub const PARAMETERS: [&'static str; 2] = ["*.lora_A.weight", "*.lora_B.weight"];

    /// What an adapter's output is multiplied by.
    #[must_use]
    pub fn scale(&self) -> f32 {
        (self.alpha / self.rank as f64) as f32
    }

    /// Those of these layers that have one.
    fn among(&self, names: &[&'static str]) -> Vec<&'static str> {
        let has =
            |name: &&&str| Self::TARGETS.iter().zip(self.targets).any(|(layer, has)| has && layer == *name);
        names.iter().filter(has).copied().collect()
    }
}

impl Default for LlamaOptions {
    fn default() -> Self {
        Self {
            vocabulary: 256,
            layers: 4,
            width: 128,
            heads: 4,
            kv_heads: 4,
            head_width: None,
            feed_forward: 352,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            norm_epsilon: 1e-5,
            qkv_bias: false,
            qk_norm: false,
            tied: false,
            lora: None,
        }
    }
}

/// How all weights start.
const START: Init = Init::Normal(0.02);

impl LlamaOptions {
    /// The width of feed-forward layers that have as many parameters as those of four times the width without gates, a multiple of 32.
    #[must_use]
    pub fn feed_forward_of(width: usize) -> usize {
        (8 * width).div_ceil(3).next_multiple_of(32)
    }

    fn check(&self) -> Result<(), EngineError> {
        let Self {
            vocabulary, layers, width, heads, kv_heads, feed_forward, rope_theta, norm_epsilon, ..
        } = *self;
        demand(vocabulary > 1, "model.vocabulary", "must be at least 2")?;
        demand(layers > 0, "model.layers", "must be at least 1")?;
        demand(heads > 0, "model.heads", "must be at least 1")?;
        let (most, has_turned_planes) = (RotaryShape::MOST_HEAD, |head: usize| {
            head > 0 && head.is_multiple_of(2) && head <= RotaryShape::MOST_HEAD
        });
        match self.head_width {
            None => demand(
                width.is_multiple_of(heads) && has_turned_planes(width / heads),
                "model.width",
                &format!("must be model.heads times an even number of at most {most}"),
            )?,
            Some(head) => {
                let reason = format!("must be an even number of at most {most}");
                demand(has_turned_planes(head), "model.head_width", &reason)?;
                demand(width > 0, "model.width", "must be at least 1")?;
            }
        }
        demand(kv_heads > 0 && heads.is_multiple_of(kv_heads), "model.kv_heads", "must divide model.heads")?;
        demand(feed_forward > 0, "model.feed_forward", "must be at least 1")?;
        if let Some(Lora { rank, alpha, targets }) = self.lora {
            demand(
                rank > 0 && rank <= width.min(feed_forward),
                "model.lora_rank",
                "must be at least 1, and at most model.width and model.feed_forward",
            )?;
            demand(alpha > 0.0 && alpha.is_finite(), "model.lora_alpha", "must be above 0")?;
            demand(targets.contains(&true), "model.lora_targets", "must name a layer")?;
        }
        let scales = match self.rope_scaling {
            RopeScaling::None => true,
            RopeScaling::Linear { factor } => factor >= 1.0,
            RopeScaling::Llama3 { factor, low, high, context } => {
                demand(
                    low > 0.0 && high > low,
                    "model.rope_high_freq_factor",
                    "must be above model.rope_low_freq_factor",
                )?;
                factor >= 1.0 && context > 0.0
            }
        };
        demand(scales, "model.rope_factor", "must be at least 1")?;
        demand(rope_theta >= 1.0 && rope_theta.is_finite(), "model.rope_theta", "must be at least 1")?;
        let epsilon = norm_epsilon as f32;
        demand(epsilon > 0.0 && epsilon.is_finite(), "model.norm_eps", "must be above 0")
    }

    fn norm(&self) -> LayerNorm {
        LayerNorm::rms().epsilon(self.norm_epsilon as f32)
    }

    /// A layer without bias.
    fn linear(outputs: usize) -> Linear {
        Linear::new(outputs).starting(START, Init::Constant(0.0)).without_bias()
    }

    /// Adds a layer to a chain, with an adapter beside it, or beside those of `names` that it is side by side, if the options say so.
    fn layer<D: Device>(
        &self,
        chain: Chain<D>,
        name: &str,
        linear: Linear,
        names: &[&'static str],
    ) -> Chain<D> {
        let Some(lora) = self.lora else { return chain.named(name, linear) };
        let adapted = lora.among(names);
        let low = LowRank { rank: lora.rank, scale: lora.scale() };
        match (adapted.is_empty(), names) {
            (true, _) => chain.named(name, linear),
            // One alone has the name of its stage.
            (false, [_]) => chain.named(name, Adapted::new(linear, low, &[""])),
            (false, _) => chain.named(name, Adapted::new(linear, low, &adapted)),
        }
    }

    /// One block: `h + o(attention(rotary(qkv(norm(h)))))`, then `h + down(swiglu(gate_up(norm(h))))`; in front of `rotary` perhaps norms of
    /// heads.
    fn block<D: Device>(&self) -> Chain<D> {
        let Self { width, heads, kv_heads, feed_forward, rope_theta, qkv_bias, qk_norm, .. } = *self;
        let head = self.head_width.unwrap_or(width / heads);
        let (queries, keys) = (heads * head, kv_heads * head);
        let qkv = Linear::side_by_side(&[("q_proj", queries), ("k_proj", keys), ("v_proj", keys)]);
        let qkv = qkv.starting(START, Init::Constant(0.0));
        let qkv = if qkv_bias { qkv } else { qkv.without_bias() };
        let mut attention = Chain::new().named("input_layernorm", self.norm());
        attention = self.layer(attention, "self_attn", qkv, &["q_proj", "k_proj", "v_proj"]);
        if qk_norm {
            attention =
                attention.named("self_attn", HeadNorm::new(heads, kv_heads, self.norm_epsilon as f32));
        }
        let attention = attention
            .named("rotary", Rotary::new(heads, kv_heads, rope_theta).scaled(self.rope_scaling))
            .named("attention", Attention::new(heads));
        let attention = self.layer(attention, "self_attn.o_proj", Self::linear(width), &["o_proj"]);
        let both = Linear::side_by_side(&[("gate_proj", feed_forward), ("up_proj", feed_forward)]);
        let both = both.starting(START, Init::Constant(0.0)).without_bias();
        let norm = Chain::new().named("post_attention_layernorm", self.norm());
        let gated = self.layer(norm, "mlp", both, &["gate_proj", "up_proj"]).named("swiglu", SwiGlu::new());
        let feed_forward = self.layer(gated, "mlp.down_proj", Self::linear(width), &["down_proj"]);
        Chain::new().named("", Residual::new(attention)).named("", Residual::new(feed_forward))
    }
}

/// Token ids `[context]` to logits `[context, vocabulary]`.
///
/// Tensors: `embed_tokens.weight`, then per block `layers.0.input_layernorm.weight`, `layers.0.self_attn.q_proj.weight`, `k_proj`, `v_proj`,
/// `o_proj` (with norms of heads also `q_norm` and `k_norm`), `layers.0.post_attention_layernorm.weight`, `layers.0.mlp.gate_proj.weight`, `up_proj`, `down_proj`, then `norm.weight` and
/// `lm_head.weight`, where it is a table of its own. An adapter of `q_proj` has `q_proj.lora_A.weight` and `q_proj.lora_B.weight`.
///
/// *Errors*: [`EngineError::Option`].
pub fn llama<D: Device>(options: &LlamaOptions) -> Result<Chain<D>, EngineError> {
    options.check()?;
    let LlamaOptions { vocabulary, layers, width, tied, .. } = *options;
    let tokens = Embedding::new(vocabulary, width).without_places();
    let mut chain = Chain::new().named("embed_tokens", if tied { tokens.shared() } else { tokens });
    for i in 0..layers {
        chain = chain.named(&format!("layers.{i}"), options.block());
    }
    let chain = chain.named("norm", options.norm());
    let head = LlamaOptions::linear(vocabulary);
    Ok(match tied {
        true => chain.tied("lm_head", head, "embed_tokens.weight"),
        false => chain.named("lm_head", head),
    })
}
