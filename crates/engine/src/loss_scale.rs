//! Dynamic loss scaling: the gradient of the loss is multiplied by a power of two, so that what comes of it on its way back is
//! not too small for numbers of 16 bits. The update divides by it again; both are exact.
//!
//! The rule is that of PyTorch's `GradScaler`: where a reduced gradient is not finite the step changes nothing but the scale,
//! which is halved; after so many finite steps in a row it doubles. Scale and count are a tensor of the state, behind the
//! running statistics of the model: so a copy, a checkpoint and a digest have them as they have everything else (P1, P2).
//!
//! It does not know which device rounds, nor to what.

use crate::layout::{Section, Tensor};
use crate::param_layout::Init;

/// How a loss is scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaling {
    /// The scale of the first step: a power of two, of 1 to 2^64.
    pub start: f32,
    /// Finite steps in a row after which the scale doubles; at least one.
    pub interval: u32,
}

impl Default for LossScaling {
    /// Half of what PyTorch begins with: the gradient of a logit is at most the scale, and lies in f16, which holds 65 504.
    fn default() -> Self {
        Self { start: 32_768.0, interval: 2_000 }
    }
}

/// The scale of a step, and how it came about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// What the gradient of the loss is multiplied by.
    pub factor: f32,
    /// Steps in a row whose gradient was finite, since the factor is what it is.
    pub finite_steps: u32,
}

impl LossScaling {
    /// The tensor of a state that holds the scale, from this element of the running statistics on.
    ///
    /// *Panics* on a start that is no power of two from 1 to 2^64, and on an interval of no step.
    pub(crate) fn tensor(&self, offset: usize) -> Tensor {
        let is_power = self.start.to_bits() & 0x7f_ffff == 0;
        assert!(
            is_power && (LossScale::LEAST..=LossScale::MOST).contains(&self.start),
            "a loss scale of {}",
            self.start
        );
        assert!(self.interval > 0, "a loss scale that doubles after no step");
        let init = Init::First(self.start);
        Tensor::new(LossScale::NAME, &[LossScale::ELEMENTS], Section::Stats, offset, init)
    }

    /// What the scale is after a step whose gradient was finite.
    pub(crate) fn grown(&self, scale: LossScale) -> LossScale {
        let LossScale { factor, finite_steps } = scale;
        match finite_steps + 1 >= self.interval {
            true => LossScale { factor: (factor * 2.0).min(LossScale::MOST), finite_steps: 0 },
            false => LossScale { factor, finite_steps: finite_steps + 1 },
        }
    }

    /// What it is after one whose gradient was not finite; nothing where there is no scale to blame.
    pub(crate) fn halved(&self, scale: LossScale) -> Option<LossScale> {
        (scale.factor > LossScale::LEAST).then(|| LossScale { factor: scale.factor / 2.0, finite_steps: 0 })
    }
}

impl LossScale {
    /// The least factor: a gradient that is not finite without any scale is the model's own fault.
    pub const LEAST: f32 = 1.0;
    /// The greatest one: beyond it what an update multiplies by could be too small to be exact. No gradient of f16 is finite there.
    pub const MOST: f32 = 18_446_744_073_709_551_616.0;
    /// The name of its tensor.
    pub const NAME: &'static str = "loss_scale";
    /// Elements of its tensor: the factor, and the count of steps.
    pub(crate) const ELEMENTS: usize = 2;

    /// What these elements of a state say. *Panics* unless there are two.
    pub(crate) fn read(elements: &[f32]) -> Self {
        let [factor, finite_steps] = *elements else { panic!("{} elements of a loss scale", elements.len()) };
        Self { factor, finite_steps: finite_steps as u32 }
    }

    /// What a state says of it.
    pub(crate) fn elements(&self) -> [f32; Self::ELEMENTS] {
        [self.factor, self.finite_steps as f32]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_halves_at_once_doubles_after_the_interval_and_stays_within_its_bounds() {
        let scaling = LossScaling { start: 4.0, interval: 2 };
        let steps = |start: LossScale, finite: &[bool]| {
            let next = |scale, finite: &bool| match finite {
                true => Some(scaling.grown(scale)),
                false => scaling.halved(scale),
            };
            finite.iter().try_fold(start, next)
        };
        let start = LossScale { factor: 4.0, finite_steps: 0 };
        assert_eq!(steps(start, &[true]), Some(LossScale { factor: 4.0, finite_steps: 1 }));
        assert_eq!(steps(start, &[true, true]), Some(LossScale { factor: 8.0, finite_steps: 0 }));
        assert_eq!(steps(start, &[true, false]), Some(LossScale { factor: 2.0, finite_steps: 0 }));
        assert_eq!(steps(start, &[true, false, true]), Some(LossScale { factor: 2.0, finite_steps: 1 }));
        assert_eq!(steps(start, &[false, false]), Some(LossScale { factor: 1.0, finite_steps: 0 }));
        assert_eq!(steps(start, &[false, false, false]), None);
        let most = LossScale { factor: LossScale::MOST, finite_steps: 1 };
        assert_eq!(steps(most, &[true]), Some(LossScale { factor: LossScale::MOST, finite_steps: 0 }));
    }

    #[test]
    fn a_state_says_what_was_written() {
        let scale = LossScale { factor: 32_768.0, finite_steps: 1_999 };
        assert_eq!(LossScale::read(&scale.elements()), scale);
    }

    #[test]
    #[should_panic(expected = "a loss scale of 3")]
    fn a_scale_that_is_no_power_of_two_is_a_bug() {
        LossScaling { start: 3.0, interval: 1 }.tensor(0);
    }
}
