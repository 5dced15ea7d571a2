//! The libraries that a device may use, opened, with what each is to do; and what a device would ask them for.
//!
//! It does not know who opened them.

use super::attention::AttentionKey;
use super::convolution::ConvolutionKey;
use super::cublaslt::CublasLt;
use super::cudnn::Cudnn;
use super::pins::{AttentionPins, ConvolutionPins, ProductPins};
use super::product::ProductKey;
use std::sync::Arc;

/// What libraries do on a device; the rest is done by this crate's own kernels.
#[derive(Debug, Default)]
pub struct Libraries {
    /// cuBLASLt.
    pub products: Option<(ProductPins, Arc<CublasLt>)>,
    /// cuDNN.
    pub convolutions: Option<(ConvolutionPins, Cudnn)>,
    /// cuDNN, by its graphs.
    pub attention: Option<(AttentionPins, Cudnn)>,
}

/// What libraries might be asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Of cuBLASLt.
    pub products: Vec<ProductKey>,
    /// Of cuDNN.
    pub convolutions: Vec<ConvolutionKey>,
    /// Of cuDNN, by its graphs.
    pub attention: Vec<AttentionKey>,
}

impl Wanted {
    /// Whether it is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.products.is_empty() && self.convolutions.is_empty() && self.attention.is_empty()
    }
}
