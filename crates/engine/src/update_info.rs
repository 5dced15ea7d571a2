//! What an update says of itself.

use crate::LossScale;

/// What an update says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateInfo {
    /// The learning rate used.
    pub lr: f64,
    /// Norm of the mean gradient, before clipping; infinite where the step was skipped.
    pub gradient_norm: f64,
    /// What the loss is scaled by from now on, if it is scaled.
    pub loss_scale: Option<LossScale>,
}

impl UpdateInfo {
    /// Whether the gradient of a scaled loss was not finite, so that nothing was changed but the scale.
    #[must_use]
    pub fn skipped(&self) -> bool {
        !self.gradient_norm.is_finite()
    }
}
