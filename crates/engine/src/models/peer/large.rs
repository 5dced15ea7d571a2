//! The workloads that fill a GPU: models that people train, on data that mean nothing.

use super::{PeerData, integers, uniform};
use crate::device::Device;
use crate::error::EngineError;
use crate::models::{EncoderOptions, GptOptions, LlamaOptions, gpt2, llama, vit};
use crate::stage::Shape;
use crate::stages::Chain;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Large {
    /// A member of the family of GPT-2.
    Gpt2(GptOptions),
    /// ViT-B/16 as torchvision has it, over images of 224 x 224 and 1 000 classes.
    Vit,
    /// SmolLM2 135M, a Llama, over texts of 2 048 tokens.
    Llama,
}

/// GPT-2 small as the peers have it: its vocabulary of 50 257 padded to a multiple of 64.
#[must_use]
pub fn gpt2_options() -> GptOptions {
    GptOptions { vocabulary: 50_304, ..GptOptions::gpt2() }
}

fn llama_options() -> LlamaOptions {
    LlamaOptions {
        vocabulary: 49_152,
        layers: 30,
        width: 576,
        heads: 9,
        kv_heads: 3,
        feed_forward: 1_536,
        rope_theta: 100_000.0,
        tied: true,
        ..LlamaOptions::default()
    }
}

impl Large {
    const CLASSES: usize = 1_000;
    const SIDE: usize = 224;
    /// Tokens of a text of [`Large::Llama`].
    const TEXT: usize = 2_048;

    /// The one of that name on the command line; GPT-2 is small.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "gpt2" => Some(Self::Gpt2(GptOptions::gpt2())),
            "vit" => Some(Self::Vit),
            "llama" => Some(Self::Llama),
            _ => None,
        }
    }

    /// Its stages, and its input for micro-batches of `rows` samples.
    ///
    /// *Errors*: options of GPT-2 that make no model.
    pub fn stages<D: Device>(&self, rows: usize) -> Result<(Chain<D>, Shape), EngineError> {
        Ok(match self {
            Self::Gpt2(options) => (gpt2(options)?, Shape::Tokens { rows, time: options.context }),
            Self::Vit => {
                let options = EncoderOptions { layers: 12, width: 768, heads: 12, dropout: 0.0 };
                (vit(&options, 16, Self::CLASSES)?, Shape::values(rows, &[3, Self::SIDE, Self::SIDE]))
            }
            Self::Llama => (llama(&llama_options())?, Shape::Tokens { rows, time: Self::TEXT }),
        })
    }

    /// A batch of so many rows.
    #[must_use]
    pub fn data_for(&self, rows: usize) -> PeerData {
        let of_tokens = |time: usize, below: usize| {
            let tokens = |stream| integers(stream, rows * time, below as u32);
            PeerData { rows, values: Vec::new(), tokens: tokens(1000), classes: tokens(1001) }
        };
        match self {
            // None of those that pad a vocabulary.
            Self::Gpt2(options) => of_tokens(options.context, options.vocabulary - 47),
            Self::Vit => PeerData {
                rows,
                values: uniform(1000, rows * 3 * Self::SIDE * Self::SIDE, 1.0),
                tokens: Vec::new(),
                classes: integers(1001, rows, Self::CLASSES as u32),
            },
            Self::Llama => of_tokens(Self::TEXT, llama_options().vocabulary),
        }
    }

    /// The batches that are tried, the largest that fits first, as PyTorch's are.
    #[must_use]
    pub fn batches(&self) -> &'static [usize] {
        match self {
            Self::Gpt2(_) => &[64, 32, 16, 8],
            Self::Vit => &[256, 128, 64, 32],
            Self::Llama => &[32, 16, 8, 4],
        }
    }

    /// The learning rate at which it learns something without a warm-up.
    #[must_use]
    pub fn rate(&self) -> f64 {
        match self {
            Self::Gpt2(_) => 1e-3,
            Self::Vit | Self::Llama => 1e-4,
        }
    }

    /// What is counted, and how many of them a row has.
    #[must_use]
    pub fn counted(&self) -> (&'static str, usize) {
        match self {
            Self::Gpt2(options) => ("tokens/s", options.context),
            Self::Vit => ("samples/s", 1),
            Self::Llama => ("tokens/s", Self::TEXT),
        }
    }
}
