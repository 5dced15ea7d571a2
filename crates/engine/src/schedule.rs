//! The learning rate as a function of the step alone.
//!
//! It does not know the epoch, the world size or the data: spans in epochs are turned into steps before.

use crate::error::EngineError;
use dtrain_types::Step;
use dtrain_types::numbers::{cos_pi, power};

/// How the learning rate falls after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Decay {
    /// It does not.
    #[default]
    Constant,
    /// In a straight line to `last` times the base.
    Linear {
        /// Share of the base at the end.
        last: f64,
    },
    /// Along half a cosine to `last` times the base.
    Cosine {
        /// Share of the base at the end.
        last: f64,
    },
    /// Up along half a cosine from `first` times the base, which it reaches after the share `peak` of all steps, and down along half a
    /// cosine to `last` times the base; without another warm-up. *Source*: Smith and Topin, "Super-convergence", 2017, as PyTorch's
    /// `OneCycleLR` has it, without its momentum.
    OneCycle {
        /// Share of the steps after which the base is reached.
        peak: f64,
        /// Share of the base at the beginning.
        first: f64,
        /// Share of the base at the end.
        last: f64,
    },
    /// Times `factor` after every `every` steps.
    Step {
        /// Steps between two drops.
        every: u64,
        /// What each drop multiplies by.
        factor: f64,
    },
}

/// A length of training as a person says it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    /// So many optimizer updates.
    Steps(u64),
    /// So many passes over the training data.
    Epochs(f64),
}

impl Span {
    /// As steps, rounded to the nearest.
    #[must_use]
    pub fn steps(self, steps_per_epoch: u64) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::Epochs(epochs) => (epochs * steps_per_epoch as f64).round() as u64,
        }
    }
}

dtrain_types::words!(
    /// How the learning rate follows the global batch.
    #[derive(Default)]
    LrScaling {
        /// It does not.
        #[default]
        None = "none",
        /// In proportion (*Source*: Goyal et al., "Accurate, large minibatch SGD", 2017).
        Linear = "linear",
        /// With the square root, as suits Adam.
        Sqrt = "sqrt",
    }
);

impl LrScaling {
    /// What the learning rate is multiplied by for this global batch, if it was chosen for `base_batch`.
    #[must_use]
    pub fn factor(self, global_batch: u32, base_batch: u32) -> f64 {
        let ratio = f64::from(global_batch) / f64::from(base_batch);
        match self {
            Self::None => 1.0,
            Self::Linear => ratio,
            Self::Sqrt => ratio.sqrt(),
        }
    }
}

/// The learning rate of every step of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrSchedule {
    /// The learning rate after the warm-up, already scaled.
    pub base: f64,
    /// Steps of warm-up: the first has `base / warmup`, the last `base`.
    pub warmup: u64,
    /// Steps of the whole run; at its end [`Decay::Linear`] and [`Decay::Cosine`] reach their last value.
    pub total: u64,
    /// How it falls after that.
    pub decay: Decay,
}

impl LrSchedule {
    /// One learning rate for ever.
    #[must_use]
    pub fn constant(base: f64) -> Self {
        Self { base, warmup: 0, total: 0, decay: Decay::Constant }
    }

    /// Whether every number makes sense.
    ///
    /// *Errors*: [`EngineError::Option`].
    pub fn check(&self) -> Result<(), EngineError> {
        let wrong = |key, reason: String| Err(EngineError::Option { key, reason });
        if !(self.base.is_finite() && self.base >= 0.0) {
            return wrong(
                "optimizer.lr",
                format!("must be a finite number of at least 0, got {}", self.base),
            );
        }
        match self.decay {
            Decay::Linear { last } | Decay::Cosine { last } if !(last.is_finite() && last >= 0.0) => {
                wrong("schedule.last", format!("must be a finite number of at least 0, got {last}"))
            }
            Decay::OneCycle { peak, .. } if !(0.0..=1.0).contains(&peak) => {
                wrong("schedule.peak", format!("must be a share from 0 to 1, got {peak}"))
            }
            Decay::OneCycle { first, last, .. } if !(first.is_finite() && last.is_finite()) => {
                wrong("schedule.first_factor", "must be a finite number".into())
            }
            Decay::Step { every: 0, .. } => wrong("schedule.every", "must be at least 1 step".into()),
            Decay::Step { factor, .. } if !(factor.is_finite() && factor >= 0.0) => {
                wrong("schedule.factor", format!("must be a finite number of at least 0, got {factor}"))
            }
            _ => Ok(()),
        }
    }

    /// The learning rate of update number `step`, from 1.
    ///
    /// *Order*: the same bits on every machine.
    #[must_use]
    pub fn lr(&self, step: Step) -> f64 {
        let done = step.0.saturating_sub(1);
        if let Decay::OneCycle { peak, first, last } = self.decay {
            let top = peak * self.total as f64 - 1.0;
            let end = self.total.saturating_sub(1) as f64;
            let at = (done as f64).min(end);
            let [from, to, progress] = match at <= top {
                true => [first, 1.0, at / top],
                false => [1.0, last, (at - top.max(0.0)) / (end - top.max(0.0))],
            };
            let progress = if progress.is_finite() { progress } else { 1.0 };
            return self.base * (to + (from - to) * 0.5 * (1.0 + cos_pi(progress)));
        }
        if done < self.warmup {
            return self.base * (done + 1) as f64 / self.warmup as f64;
        }
        let (after, length) = (done - self.warmup, self.total.saturating_sub(self.warmup));
        let progress = if length == 0 { 1.0 } else { (after as f64 / length as f64).min(1.0) };
        self.base
            * match self.decay {
                Decay::Constant => 1.0,
                Decay::Linear { last } => 1.0 - (1.0 - last) * progress,
                Decay::Cosine { last } => last + (1.0 - last) * 0.5 * (1.0 + cos_pi(progress)),
                Decay::Step { every, factor } => power(factor, after / every),
                Decay::OneCycle { .. } => unreachable!("it has no warm-up of another kind"),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: LrSchedule, steps: u64) -> Vec<f64> {
        (1..=steps).map(|step| (schedule.lr(Step(step)) * 1e6).round() / 1e6).collect()
    }

    #[test]
    fn each_schedule_warms_up_and_falls_as_its_name_says() {
        let with = |decay| LrSchedule { base: 1.0, warmup: 2, total: 6, decay };
        assert_eq!(rates(with(Decay::Constant), 5), [0.5, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(rates(with(Decay::Linear { last: 0.0 }), 7), [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]);
        let cosine = [0.5, 1.0, 1.0, 0.868_198, 0.55, 0.231_802, 0.1, 0.1];
        assert_eq!(rates(with(Decay::Cosine { last: 0.1 }), 8), cosine);
        let cycle = Decay::OneCycle { peak: 0.3, first: 0.04, last: 4e-6 };
        let cycle = LrSchedule { base: 1.0, warmup: 0, total: 10, decay: cycle };
        // As PyTorch 2.15 has it.
        let wanted =
            [0.04, 0.52, 1.0, 0.950_485, 0.811_746, 0.611_262, 0.388_742, 0.188_258, 0.049_519, 4e-6];
        assert_eq!(rates(cycle, 10), wanted);
        let stairs = with(Decay::Step { every: 2, factor: 0.5 });
        assert_eq!(rates(stairs, 7), [0.5, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25]);
    }

    #[test]
    fn spans_and_scaling_do_the_arithmetic() {
        assert_eq!(Span::Epochs(1.5).steps(23), 35);
        assert_eq!(Span::Steps(7).steps(23), 7);
        assert_eq!(LrScaling::Linear.factor(256, 64), 4.0);
        assert_eq!(LrScaling::Sqrt.factor(256, 64), 2.0);
        assert_eq!(LrScaling::None.factor(256, 64), 1.0);
    }

    #[test]
    fn nonsense_is_refused_with_the_key_to_change() {
        let refused = |schedule: LrSchedule| schedule.check().expect_err("it makes no sense").to_string();
        assert_eq!(
            refused(LrSchedule::constant(f64::NAN)),
            "optimizer.lr: must be a finite number of at least 0, got NaN"
        );
        let decay = Decay::Step { every: 0, factor: 0.5 };
        assert_eq!(
            refused(LrSchedule { decay, ..LrSchedule::constant(0.1) }),
            "schedule.every: must be at least 1 step"
        );
        LrSchedule::constant(0.1).check().expect("a plain rate is fine");
    }
}
