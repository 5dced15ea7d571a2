//! Adam with decoupled weight decay: its options, and the numbers of one update.
//!
//! It does not know schedules, or which parameters decay.

use crate::device::AdamW;
use crate::error::{EngineError, within};
use dtrain_types::numbers::power;

/// The options of Adam with decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Decay rates of the two moments.
    pub betas: [f32; 2],
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled decay, times the learning rate.
    pub weight_decay: f32,
}

/// Which update it is, and how fast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace<S = f32> {
    /// Its number, from 1: how many updates the moments have seen after it.
    pub number: u64,
    /// Learning rate.
    pub lr: f64,
    /// What the gradient is multiplied by to become that of the mean, clipped.
    pub scale: S,
}

impl Adam {
    /// Whether every number makes sense.
    ///
    /// *Errors*: [`EngineError::Option`].
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        within("optimizer.weight_decay", self.weight_decay, f32::MAX)?;
        within("optimizer.epsilon", self.epsilon, f32::MAX)?;
        self.betas.into_iter().try_for_each(|beta| within("optimizer.betas", beta, 1.0))
    }

    /// The numbers of one update.
    pub(crate) fn constants<S>(&self, Pace { number, lr, scale }: Pace<S>) -> AdamW<S> {
        let Self { betas: [beta1, beta2], epsilon, weight_decay } = *self;
        let correction = |beta: f32| 1.0 - power(f64::from(beta), number);
        let decay = 1.0 - lr * f64::from(weight_decay);
        AdamW {
            scale,
            step_size: (lr / correction(beta1)) as f32,
            root_correction: (1.0 / correction(beta2).sqrt()) as f32,
            decay: decay as f32,
            beta1,
            beta2,
            epsilon,
        }
    }
}
