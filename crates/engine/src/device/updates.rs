//! The constants of one update, which are computed once per step.
//!
//! It does not know schedules, or which parameters decay.

/// Elements of a block of a [`Device::sum_of_squares`](super::Device::sum_of_squares).
pub const NORM_BLOCK: usize = 4096;

/// The constants of one AdamW update. `decay` and the corrections are computed once per step in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW<S = f32> {
    /// The gradient is multiplied by this first: 1 / normaliser, times the clip factor.
    pub scale: S,
    /// Learning rate divided by the first moment's bias correction.
    pub step_size: f32,
    /// `1 / sqrt(1 - beta2^t)`.
    pub root_correction: f32,
    /// `1 - lr * weight_decay`, or 1 where nothing decays.
    pub decay: f32,
    /// First moment's decay rate.
    pub beta1: f32,
    /// Second moment's decay rate.
    pub beta2: f32,
    /// Added to the root.
    pub epsilon: f32,
}

/// The constants of one SGD update, as PyTorch's: `g += wd * p; m = momentum * m + g` (`m = g` in the first step).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd<S = f32> {
    /// The gradient is multiplied by this first.
    pub scale: S,
    /// Learning rate.
    pub lr: f32,
    /// L2 penalty, or 0 where nothing decays.
    pub weight_decay: f32,
    /// Momentum, 0 for none.
    pub momentum: f32,
    /// Nesterov's look-ahead.
    pub nesterov: bool,
    /// Whether this is the first update: the momentum starts as the gradient.
    pub first: bool,
}

/// The constants of one Lion update. `decay` is computed once per step in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion<S = f32> {
    /// The gradient is multiplied by this first.
    pub scale: S,
    /// Learning rate: how far each parameter goes.
    pub lr: f32,
    /// `1 - lr * weight_decay`, or 1 where nothing decays.
    pub decay: f32,
    /// Share of the momentum in the direction.
    pub beta1: f32,
    /// The momentum's decay rate.
    pub beta2: f32,
}

/// The constants of a step along a way that was found of all of a matrix. `decay` and `step` are computed once per step in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Along<S = f32> {
    /// What gradients are multiplied by, which the way has seen: the step is made where there is such a number.
    pub scale: S,
    /// `1 - lr * weight_decay`, or 1 where nothing decays.
    pub decay: f32,
    /// How far the parameters go.
    pub step: f32,
}

impl<S> Along<S> {
    /// The same with another scale.
    #[must_use]
    pub fn with<T>(&self, scale: T) -> Along<T> {
        let Self { decay, step, .. } = *self;
        Along { scale, decay, step }
    }
}

impl<S> AdamW<S> {
    /// The same with another scale.
    #[must_use]
    pub fn with<T>(&self, scale: T) -> AdamW<T> {
        let Self { step_size, root_correction, decay, beta1, beta2, epsilon, .. } = *self;
        AdamW { scale, step_size, root_correction, decay, beta1, beta2, epsilon }
    }
}

impl<S> Sgd<S> {
    /// The same with another scale.
    #[must_use]
    pub fn with<T>(&self, scale: T) -> Sgd<T> {
        let Self { lr, weight_decay, momentum, nesterov, first, .. } = *self;
        Sgd { scale, lr, weight_decay, momentum, nesterov, first }
    }
}

impl<S> Lion<S> {
    /// The same with another scale.
    #[must_use]
    pub fn with<T>(&self, scale: T) -> Lion<T> {
        let Self { lr, decay, beta1, beta2, .. } = *self;
        Lion { scale, lr, decay, beta1, beta2 }
    }
}
