//! Which model is trained, and what it begins with.
//!
//! Read from resolved values only; `blueprint.rs` makes its stages.

use super::choice::{ModelKind, StemKind};
use super::parts::{choice, path, patterns};
use super::resolve::Resolved;
use super::value::{Value, counts};
use dtrain_engine::device::{Cell, RopeScaling};
use dtrain_engine::models::{LlamaOptions, Lora};
use std::path::PathBuf;

/// What the parameters of a model begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// A file with the first parameters, if one is given.
    pub file: Option<PathBuf>,
    /// Patterns of tensors that begin anew all the same.
    pub except: Vec<String>,
    /// The folder of first adapters, if one is given.
    pub adapters: Option<PathBuf>,
}

impl Beginning {
    pub(super) fn from_resolved(r: &Resolved) -> Self {
        Self {
            file: path(r, "model.init_from"),
            except: patterns(r, "model.init_except"),
            adapters: r.get("model.lora_from").and_then(|_| path(r, "model.lora_from")),
        }
    }
}

/// What the samples of a model are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// `[channels, length]`.
    Sequences,
    /// `[channels, height, width]`.
    Images,
    /// `[channels, depth, height, width]`.
    Volumes,
}

impl Over {
    /// A sample of this shape as the model takes it, or `None` if it is something else. A sequence of one channel may
    /// come as plain columns; and an array of sequences in a file cannot be told from one of images of one channel.
    #[must_use]
    pub fn sample(self, shape: &[usize]) -> Option<Vec<usize>> {
        match (self, shape) {
            (Self::Sequences, [length]) => Some(vec![1, *length]),
            (Self::Sequences, [1, channels, length]) => Some(vec![*channels, *length]),
            (Self::Sequences, [_, _]) | (Self::Images, [_, _, _]) | (Self::Volumes, [_, _, _, _]) => {
                Some(shape.to_vec())
            }
            _ => None,
        }
    }
}

/// Where a cnn halves its images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// After each convolution.
    Each,
    /// After the last one only.
    Last,
}

/// Which causal transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpt {
    /// One of any size.
    Small,
    /// OpenAI's GPT-2: its head is the table of tokens.
    Gpt2,
}

/// What is trained.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// Fully connected layers.
    Mlp {
        /// Width of each hidden layer.
        hidden: Vec<usize>,
        /// Whether each hidden layer is normalised.
        batch_norm: bool,
        /// Share dropped.
        dropout: f64,
    },
    /// Convolutions, then fully connected layers.
    Cnn {
        /// What the convolutions slide over.
        over: Over,
        /// Channels of each convolution.
        channels: Vec<usize>,
        /// Side of the kernels.
        kernel: usize,
        /// Zeros around each image.
        padding: usize,
        /// Where images are halved.
        pool: Pool,
        /// Width of each layer between the convolutions and the output.
        hidden: Vec<usize>,
        /// Whether each convolution is normalised.
        batch_norm: bool,
        /// Share dropped.
        dropout: f64,
    },
    /// A residual network over images.
    ResNet {
        /// How many layers.
        depth: usize,
        /// Channels of the first blocks.
        width: usize,
        /// What stands in front.
        stem: StemKind,
    },
    /// A transformer over patches of images, or over the places of sequences.
    Encoder {
        /// What it reads.
        over: Over,
        /// Side of a patch of images; none is as suits them.
        patch: Option<usize>,
        /// Blocks.
        layers: usize,
        /// Width of the residual stream.
        width: usize,
        /// Attention heads.
        heads: usize,
        /// Share dropped.
        dropout: f64,
    },
    /// Recurrent layers over sequences.
    Recurrent {
        /// What they are made of.
        cell: Cell,
        /// How many.
        layers: usize,
        /// Width of each.
        width: usize,
        /// Share dropped.
        dropout: f64,
    },
    /// A causal transformer.
    Gpt {
        /// Which of its kind.
        like: Gpt,
        /// Blocks.
        layers: usize,
        /// Width of the residual stream.
        width: usize,
        /// Attention heads.
        heads: usize,
        /// Share dropped.
        dropout: f64,
    },
    /// A causal transformer as Llama is one, of all but its vocabulary: the data have that.
    Llama(LlamaOptions),
    /// What a program of one's own brings.
    Own,
    /// What a Python program brings.
    Torch,
}

impl Model {
    /// Which family it is of.
    #[must_use]
    pub fn kind(&self) -> ModelKind {
        match self {
            Self::Mlp { .. } => ModelKind::Mlp,
            Self::Cnn { over: Over::Sequences, .. } => ModelKind::Cnn1d,
            Self::Cnn { over: Over::Images, .. } => ModelKind::Cnn,
            Self::Cnn { over: Over::Volumes, .. } => ModelKind::Cnn3d,
            Self::ResNet { .. } => ModelKind::ResNet,
            Self::Encoder { over: Over::Images, .. } => ModelKind::Vit,
            Self::Encoder { .. } => ModelKind::Transformer,
            Self::Recurrent { cell: Cell::Lstm, .. } => ModelKind::Lstm,
            Self::Recurrent { cell: Cell::Gru, .. } => ModelKind::Gru,
            Self::Gpt { like: Gpt::Small, .. } => ModelKind::Gpt,
            Self::Gpt { like: Gpt::Gpt2, .. } => ModelKind::Gpt2,
            Self::Llama(_) => ModelKind::Llama,
            Self::Own => ModelKind::Own,
            Self::Torch => ModelKind::Torch,
        }
    }

    /// What samples must look like, where it is not all the same.
    #[must_use]
    pub fn over(&self) -> Option<Over> {
        match self {
            Self::Cnn { over, .. } | Self::Encoder { over, .. } => Some(*over),
            Self::ResNet { .. } => Some(Over::Images),
            Self::Recurrent { .. } => Some(Over::Sequences),
            Self::Mlp { .. } | Self::Gpt { .. } | Self::Llama(_) | Self::Own | Self::Torch => None,
        }
    }

    pub(super) fn from_resolved(r: &Resolved) -> Self {
        // A model of one's own has no such key.
        let dropout = r.get("model.dropout").and_then(|_| r.number("model.dropout")).unwrap_or(0.0);
        let hidden = || counts(r.list("model.hidden"));
        let cnn = |over| Self::Cnn {
            over,
            channels: counts(r.list("model.channels")),
            kernel: r.count("model.kernel"),
            padding: r.count("model.padding"),
            pool: if r.word("model.pool") == "last" { Pool::Last } else { Pool::Each },
            hidden: hidden(),
            batch_norm: r.flag("model.batch_norm"),
            dropout,
        };
        let gpt = |like| Self::Gpt {
            like,
            layers: r.count("model.layers"),
            width: r.count("model.width"),
            heads: r.count("model.heads"),
            dropout,
        };
        let encoder = |over| Self::Encoder {
            over,
            patch: r.get("model.patch").and_then(|_| r.int("model.patch")),
            layers: r.count("model.layers"),
            width: r.count("model.width"),
            heads: r.count("model.heads"),
            dropout,
        };
        let recurrent = |cell| Self::Recurrent {
            cell,
            layers: r.count("model.layers"),
            width: r.count("model.width"),
            dropout,
        };
        match choice(r, "model.kind", ModelKind::from_name) {
            ModelKind::ResNet => Self::ResNet {
                depth: r.count("model.depth"),
                width: r.count("model.width"),
                stem: choice(r, "model.stem", StemKind::from_name),
            },
            ModelKind::Vit => encoder(Over::Images),
            ModelKind::Transformer => encoder(Over::Sequences),
            ModelKind::Lstm => recurrent(Cell::Lstm),
            ModelKind::Gru => recurrent(Cell::Gru),
            ModelKind::Mlp => Self::Mlp { hidden: hidden(), batch_norm: r.flag("model.batch_norm"), dropout },
            ModelKind::Cnn1d => cnn(Over::Sequences),
            ModelKind::Cnn => cnn(Over::Images),
            ModelKind::Cnn3d => cnn(Over::Volumes),
            ModelKind::Llama => Self::Llama(llama(r)),
            ModelKind::Own => Self::Own,
            ModelKind::Torch => Self::Torch,
            ModelKind::Gpt => gpt(Gpt::Small),
            ModelKind::Gpt2 => gpt(Gpt::Gpt2),
        }
    }
}

fn llama(r: &Resolved) -> LlamaOptions {
    let number = |key| r.number(key).expect("the table makes it a number");
    let (width, heads) = (r.count("model.width"), r.count("model.heads"));
    LlamaOptions {
        layers: r.count("model.layers"),
        width,
        heads,
        kv_heads: r.int("model.kv_heads").unwrap_or(heads),
        feed_forward: r.int("model.feed_forward").unwrap_or_else(|| LlamaOptions::feed_forward_of(width)),
        rope_theta: number("model.rope_theta"),
        rope_scaling: rope_scaling(r),
        norm_epsilon: number("model.norm_eps"),
        head_width: r.int("model.head_width"),
        qkv_bias: r.flag("model.qkv_bias"),
        qk_norm: r.flag("model.qk_norm"),
        tied: r.flag("model.tied"),
        lora: lora(r),
        ..LlamaOptions::default()
    }
}

/// Adapters, where a rank says so.
fn lora(r: &Resolved) -> Option<Lora> {
    let rank: usize = r.int("model.lora_rank")?;
    let named = patterns(r, "model.lora_targets");
    Some(Lora {
        rank,
        alpha: match r.get("model.lora_alpha") {
            Some(Value::Number(alpha)) => *alpha,
            _ => 2.0 * rank as f64,
        },
        targets: Lora::TARGETS.map(|target| named.iter().any(|name| name == target)),
    })
}

fn rope_scaling(r: &Resolved) -> RopeScaling {
    let number = |key| r.number(key).expect("the table makes it a number");
    let factor = || number("model.rope_factor");
    match r.word("model.rope_scaling") {
        "linear" => RopeScaling::Linear { factor: factor() },
        "llama3" => RopeScaling::Llama3 {
            factor: factor(),
            low: number("model.rope_low_freq_factor"),
            high: number("model.rope_high_freq_factor"),
            context: r.count::<u32>("model.rope_context").into(),
        },
        _ => RopeScaling::None,
    }
}
