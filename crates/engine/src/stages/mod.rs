//! The stages that models are made of, each written once for every device.
//!
//! A stage learns its input's shape when the model is planned, so that `Linear::new(10)` is all there is to say.

mod apart;
mod attention;
mod chain;
mod conv;
mod embedding;
mod linear;
mod norm;
mod pointwise;
mod pool;
mod residual;

pub use attention::Attention;
pub use chain::Chain;
pub(crate) use chain::Child;
pub use conv::Conv2d;
pub use embedding::Embedding;
pub use linear::Linear;
pub use norm::{BatchNorm, LayerNorm};
pub use pointwise::{Dropout, Flatten, Gelu, Relu};
pub use pool::{AvgPool, MaxPool};
pub use residual::Residual;
