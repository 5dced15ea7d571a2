//! The stages that models are made of, each written once for every device.
//!
//! A stage learns its input's shape when the model is planned, so that `Linear::new(10)` is all there is to say.

mod adapted;
mod apart;
mod attention;
mod between;
mod chain;
mod child;
mod conv;
mod embedding;
mod head_norm;
mod lies;
mod linear;
mod max_pool;
mod norm;
mod pointwise;
mod pool;
mod projected;
mod recomputed;
mod recurrent;
mod residual;
mod rotary;
mod swiglu;
mod tokens;
mod traced;
mod turn;

pub use crate::device::Gelu;
pub use adapted::{Adapted, LowRank};
pub use attention::Attention;
pub use chain::Chain;
pub(crate) use chain::Outer;
pub(crate) use child::Child;
pub use conv::{Conv, Conv1d, Conv2d, Conv3d};
pub use embedding::Embedding;
pub use head_norm::HeadNorm;
pub(crate) use lies::{Gradients, Inside, Parameters, Whole};
pub use linear::Linear;
pub use max_pool::{MaxPool, MaxPool1d, MaxPool3d, MaxPoolOver};
pub use norm::{BatchNorm, LayerNorm};
pub use pointwise::{Dropout, Flatten, Relu, Sigmoid};
pub use pool::AvgPool;
pub use projected::Projected;
pub use recurrent::Recurrent;
pub use residual::Residual;
pub use rotary::Rotary;
pub use swiglu::SwiGlu;
pub use tokens::{ClassToken, Take};
pub use traced::{Expr, Traced};
pub use turn::Turn;

/// Sides of an image as people write them: `28 x 28`.
fn by(sides: &[usize]) -> String {
    sides.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ")
}
