//! What not every device has.
//!
//! It does not know which device has what.

/// Operations that not every device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// [`Device::transpose`](super::Device::transpose).
    Transpose,
    /// Attention with [`Mask::None`](super::Mask::None).
    Unmasked,
    /// [`Device::recurrent_cells`](super::Device::recurrent_cells) and its gradient.
    Recurrent,
    /// [`Device::scale_rows`](super::Device::scale_rows) and [`Device::dot_rows`](super::Device::dot_rows).
    Products,
    /// [`Device::sigmoid`](super::Device::sigmoid) and its gradient.
    Sigmoid,
    /// [`Device::mixed_cross_entropy`](super::Device::mixed_cross_entropy).
    Mixtures,
}

impl Extra {
    /// What it is, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Transpose => "transposition of samples",
            Self::Unmasked => "attention to all positions",
            Self::Recurrent => "recurrent cells",
            Self::Products => "products of values",
            Self::Sigmoid => "sigmoid",
            Self::Mixtures => "cross entropy of mixed targets",
        }
    }
}
