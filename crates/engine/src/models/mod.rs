//! The built-in models, as chains of stages.

mod cnn;
mod gpt;
mod llama;
mod mlp;
pub mod peer;
mod recurrent;
mod resnet;
mod transformer;

pub use cnn::{CnnOptions, PoolPlace, cnn, cnn1d, cnn3d};
pub use gpt::{GptOptions, gpt, gpt2};
pub use llama::{LlamaOptions, Lora, llama};
pub use mlp::{MlpOptions, mlp};
pub use recurrent::{RecurrentOptions, recurrent};
pub use resnet::{ResNetOptions, Stem, resnet};
pub use transformer::{EncoderOptions, transformer, vit};

use crate::error::EngineError;

/// *Errors*: an option of a model that makes no sense, under its key.
fn demand(holds: bool, key: &'static str, reason: &str) -> Result<(), EngineError> {
    if holds { Ok(()) } else { Err(EngineError::Option { key, reason: reason.into() }) }
}
