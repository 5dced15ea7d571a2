//! A multi-layer perceptron: linear layers with ReLU between them.

use super::demand;
use crate::device::Device;
use crate::error::EngineError;
use crate::stages::{BatchNorm, Chain, Dropout, Flatten, Linear, Relu};

/// Options of [`mlp`].
#[derive(Clone, Debug, PartialEq)]
pub struct MlpOptions {
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    /// Probability of dropping a hidden value in training.
    pub dropout: f32,
    /// Whether batch norm stands between each hidden layer and its ReLU.
    pub batch_norm: bool,
}

impl Default for MlpOptions {
    fn default() -> Self {
        Self { hidden: vec![128, 128], dropout: 0.0, batch_norm: false }
    }
}

/// Any input of values, flattened, to `outputs` values.
///
/// Tensors have the names that PyTorch's `Sequential(Linear, [BatchNorm1d,] ReLU, [Dropout,] ..., Linear)` gives
/// them. A layer in front of a batch norm has no bias.
///
/// *Errors*: [`EngineError::Option`].
pub fn mlp<D: Device>(options: &MlpOptions, outputs: usize) -> Result<Chain<D>, EngineError> {
    demand(outputs > 0, "model", "an mlp needs at least 1 output")?;
    demand(options.hidden.iter().all(|width| *width > 0), "model.hidden", "every width must be at least 1")?;
    demand((0.0..1.0).contains(&options.dropout), "model.dropout", "must be at least 0 and below 1")?;
    let mut chain = Chain::new().named("flatten", Flatten);
    let mut place = 0;
    let mut next = || {
        place += 1;
        (place - 1).to_string()
    };
    for width in &options.hidden {
        if options.batch_norm {
            // The norm takes off any mean, so a bias in front of it would change nothing.
            chain = chain.named(&next(), Linear::new(*width).without_bias()).named(&next(), BatchNorm::new());
            chain = chain.named(&next(), Relu);
        } else {
            chain = chain.named(&next(), Linear::new(*width).relu());
            // The fused ReLU keeps its place in the numbering.
            next();
        }
        if options.dropout > 0.0 {
            chain = chain.named(&next(), Dropout::new(options.dropout));
        }
    }
    Ok(chain.named(&next(), Linear::new(outputs)))
}
