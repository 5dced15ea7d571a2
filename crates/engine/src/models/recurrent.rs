//! Recurrent classifiers of sequences: layers of LSTM or GRU, and a linear layer on what the last place says.

use super::demand;
use crate::device::{Cell, Device};
use crate::error::EngineError;
use crate::stages::{Chain, Dropout, Linear, Recurrent, Take, Turn};

/// Options of [`recurrent`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentOptions {
    /// What the layers are made of.
    pub cell: Cell,
    /// How many layers.
    pub layers: usize,
    /// Width of each.
    pub width: usize,
    /// Probability of dropping a value between layers and in front of the last in training.
    pub dropout: f32,
}

/// Sequences `[channels, length]` to `outputs` values. Tensors are those of PyTorch's `nn.LSTM` or `nn.GRU` under `lstm` or `gru`, and `fc`.
///
/// *Errors*: [`EngineError::Option`].
pub fn recurrent<D: Device>(options: &RecurrentOptions, outputs: usize) -> Result<Chain<D>, EngineError> {
    let RecurrentOptions { cell, layers, width, dropout } = *options;
    demand(outputs > 0, "model", "a recurrent model needs at least 1 output")?;
    demand(layers > 0, "model.layers", "must be at least 1")?;
    demand(width > 0, "model.width", "must be at least 1")?;
    demand((0.0..1.0).contains(&dropout), "model.dropout", "must be at least 0 and below 1")?;
    let mut chain = Chain::new().named("turn", Turn::new());
    for layer in 0..layers {
        if layer > 0 && dropout > 0.0 {
            chain = chain.named(&format!("dropout{layer}"), Dropout::new(dropout));
        }
        chain = chain.named(cell.name(), Recurrent::new(cell, width).layer(layer));
    }
    chain = chain.named("last", Take::last());
    if dropout > 0.0 {
        chain = chain.named("dropout", Dropout::new(dropout));
    }
    Ok(chain.named("fc", Linear::new(outputs)))
}
