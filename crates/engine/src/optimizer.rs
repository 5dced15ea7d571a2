//! How a reduced gradient changes the parameters: one division, clipping by the global norm, SGD, AdamW or Lion.
//!
//! Works on flat buffers. It does not know layers; it knows which runs of parameters decay.

use crate::adam::{Adam, Pace};
use crate::device::{AdamW, Device, Lion, Sgd};
use crate::error::{EngineError, within};
use crate::groups::{MOST_GROUPS, Runs};
use crate::host_device::HostDevice;
use crate::layout::{Layout, Tensor};
use crate::muon::{self, Muon};
use crate::schedule::LrSchedule;
use crate::sharding::HeldSections;
use crate::shared_memory::PARTS;
use crate::state::StateShape;
use dtrain_types::{ShardLevel, Step};
use std::ops::Range;

/// The rule of one update, as PyTorch defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Stochastic gradient descent; weight decay is an L2 penalty.
    Sgd {
        /// Momentum, 0 for none.
        momentum: f32,
        /// Nesterov's look-ahead.
        nesterov: bool,
        /// L2 penalty.
        weight_decay: f32,
    },
    /// Adam with decoupled weight decay.
    AdamW {
        /// Decay rates of the two moments.
        betas: [f32; 2],
        /// Added to the root of the second moment.
        epsilon: f32,
        /// Decoupled decay, times the learning rate.
        weight_decay: f32,
    },
    /// Lion: the sign of a momentum, with decoupled weight decay. *Source*: Chen et al., "Symbolic discovery of optimization
    /// algorithms", 2023.
    Lion {
        /// Share of the momentum in the direction, and its decay rate.
        betas: [f32; 2],
        /// Decoupled decay, times the learning rate.
        weight_decay: f32,
    },
    /// Matrices of hidden layers by orthogonal momentum, all else by Adam: it keeps [`Layout::kept`].
    Muon(Muon),
    /// Whatever another program does: it keeps [`Layout::kept`], and learning rates are factors for it.
    External,
}

impl Rule {
    /// AdamW with PyTorch's defaults.
    #[must_use]
    pub fn adamw() -> Self {
        Self::AdamW { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.01 }
    }

    /// Buffers as long as the parameters that the rule keeps.
    #[must_use]
    pub fn moments(&self) -> usize {
        match self {
            Self::Sgd { momentum, .. } => usize::from(*momentum != 0.0),
            Self::AdamW { .. } => 2,
            Self::Lion { .. } => 1,
            Self::Muon(_) | Self::External => 0,
        }
    }

    /// Whether its updates can be cut anywhere, so that each rank of a host makes a share: not of an optimizer that takes parameters
    /// together.
    #[must_use]
    pub fn in_shares(&self) -> bool {
        !matches!(self, Self::Muon(_) | Self::External)
    }
}

/// Which parameters weight decay applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecayGroup {
    /// Matrices, convolutions and embeddings; not biases and gains.
    #[default]
    Matrices,
    /// Every parameter, as `torch.optim` does when it is given `model.parameters()`.
    All,
}

/// All that decides an update besides the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// What decays.
    pub decays: DecayGroup,
    /// The greatest norm of the mean gradient, if it is clipped.
    pub clip_norm: Option<f64>,
    /// The learning rate of each step.
    pub schedule: LrSchedule,
    /// How much of the moving average of the parameters a step leaves, if one is kept; see [`Optimizer::averages`].
    pub ema: Option<f64>,
    /// Updates that its buffers have seen before the first one of this run.
    pub updates_before: u64,
    /// Which of them a replica keeps.
    pub keeps: Keeps,
}

/// What a replica keeps of an optimizer's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// All of them.
    All,
    /// Those of the shards that it is told to hold ([`Replica::sharding`](crate::Replica::sharding)); until then those of a file, if it begins with
    /// one. At some levels it keeps less of other things too.
    Shards(ShardLevel),
}

impl Keeps {
    /// Whether gradients are to be had window by window alone.
    #[must_use]
    pub fn in_windows(self) -> bool {
        matches!(self, Self::Shards(level) if level >= ShardLevel::Gradients)
    }
}

/// The flat buffers that an update changes; moments that the rule does not keep are empty.
pub struct Buffers<'a, D: Device> {
    /// Parameters.
    pub parameters: D::Mut<'a>,
    /// First moment, or momentum.
    pub first: D::Mut<'a>,
    /// Second moment.
    pub second: D::Mut<'a>,
    /// Moving average of the parameters.
    pub average: D::Mut<'a>,
}

/// What an update multiplies by. A device that settles an update by itself has them when it comes to it.
#[derive(Clone, Copy, Debug)]
pub struct Factors<S = f32> {
    /// Gradients: one over the normaliser, times the clip factor.
    pub gradient: S,
    /// Parameters on their way into their moving average.
    pub parameters: S,
}

impl<S: From<f32>> Factors<S> {
    /// Those of an update whose clip factor is known.
    #[must_use]
    pub fn known(gradient: f32) -> Self {
        Self { gradient: gradient.into(), parameters: 1.0.into() }
    }
}

impl Optimizer {
    /// A rule at these learning rates and nothing else: matrices decay, nothing is clipped, no average is kept.
    #[must_use]
    pub fn new(rule: Rule, schedule: LrSchedule) -> Self {
        let decays = DecayGroup::Matrices;
        let keeps = Keeps::All;
        Self { rule, decays, clip_norm: None, schedule, ema: None, updates_before: 0, keeps }
    }

    /// Whether every number makes sense.
    ///
    /// *Errors*: [`EngineError::Option`].
    pub fn check(&self) -> Result<(), EngineError> {
        self.schedule.check()?;
        if let Some(norm) = self.clip_norm.filter(|norm| !(norm.is_finite() && *norm > 0.0)) {
            let reason = format!("must be a finite number above 0, got {norm}");
            return Err(EngineError::Option { key: "optimizer.clip_norm", reason });
        }
        if let Some(ema) = self.ema.filter(|ema| !(0.0..1.0).contains(ema)) {
            let reason = format!("must be at least 0 and below 1, got {ema}");
            return Err(EngineError::Option { key: "ema", reason });
        }
        match self.rule {
            Rule::Sgd { momentum, nesterov, weight_decay } => {
                within("optimizer.weight_decay", weight_decay, f32::MAX)?;
                within("optimizer.momentum", momentum, 1.0)?;
                if nesterov && momentum == 0.0 {
                    let reason = "needs a momentum above 0".into();
                    return Err(EngineError::Option { key: "optimizer.nesterov", reason });
                }
                Ok(())
            }
            Rule::AdamW { betas, epsilon, weight_decay } => Adam { betas, epsilon, weight_decay }.check(),
            Rule::Lion { betas, weight_decay } => {
                within("optimizer.weight_decay", weight_decay, f32::MAX)?;
                betas.into_iter().try_for_each(|beta| within("optimizer.betas", beta, 1.0))
            }
            Rule::Muon(muon) => muon.check(),
            Rule::External => Ok(()),
        }
    }

    /// Adds to a layout what this optimizer keeps in place of moments as long as the parameters.
    pub fn complete(&self, layout: &mut Layout) {
        if let Rule::Muon(_) = self.rule {
            layout.kept = muon::kept(layout);
        }
    }

    /// Whether weight decay applies to a parameter.
    #[must_use]
    pub fn is_decayed(&self, tensor: &Tensor) -> bool {
        (self.decays == DecayGroup::All || tensor.decays) && !tensor.never_decays
    }

    /// The shape of a state of these tensors, to which [`Optimizer::complete`] has added what is kept.
    #[must_use]
    pub fn state(&self, layout: &Layout) -> StateShape {
        StateShape {
            parameters: layout.parameters,
            stats: layout.stats,
            moments: self.rule.moments(),
            kept: if self.rule.in_shares() { 0 } else { layout.kept_len() },
            averages: self.ema.is_some(),
        }
    }

    /// The share of the parameters that goes into their moving average in a step: `1 - ema`; more in the first steps, so that the
    /// average soon forgets where the parameters began: `1 - min(ema, (1 + step) / (10 + step))`, as TensorFlow has it.
    #[must_use]
    pub fn averages(&self, step: Step) -> Option<f32> {
        let step = (self.updates_before + step.0) as f64;
        self.ema.map(|ema| (1.0 - ema.min((1.0 + step) / (10.0 + step))) as f32)
    }

    /// The shape of a state of these tensors as a replica begins with it: the same, without moments that it is not told to hold yet.
    #[must_use]
    pub fn first_state(&self, layout: &Layout) -> StateShape {
        let whole = self.state(layout);
        match self.keeps {
            Keeps::Shards(_) if self.updates_before == 0 => StateShape { moments: 0, ..whole },
            Keeps::Shards(_) | Keeps::All => whole,
        }
    }

    /// Of which sections a replica has but the shards that it holds; none where it keeps all.
    pub(crate) fn held_sections(&self) -> HeldSections {
        match self.keeps {
            Keeps::Shards(level) => self.sections_at(level),
            Keeps::All => HeldSections::default(),
        }
    }

    /// Of which sections holders of shards have but those, at this level.
    pub(crate) fn sections_at(&self, level: ShardLevel) -> HeldSections {
        let (moments, parameters) = (self.rule.moments(), level == ShardLevel::Parameters);
        [parameters, false, moments > 0, moments > 1, parameters && self.ema.is_some()]
    }

    /// The parameters as runs of one group each.
    #[must_use]
    pub fn runs(&self, layout: &Layout) -> Runs {
        Runs::of(layout, |tensor| self.is_decayed(tensor))
    }

    /// The factor of the one division, and what clipping makes of it. Zero weight gives a zero gradient.
    #[must_use]
    pub fn scale(&self, weight: f64, norm: f64) -> f32 {
        // PyTorch's clip_grad_norm_ adds the same 1e-6.
        let clip = self.clip_norm.map_or(1.0, |most| (most / (norm + 1e-6)).min(1.0));
        if weight == 0.0 { 0.0 } else { (clip / weight) as f32 }
    }

    /// Applies update number `step` in place over all runs. Every gradient element must be finite. *Panics* if the rule takes
    /// parameters together.
    ///
    /// *Order*: element-wise, so the bits do not depend on how the runs are cut.
    pub fn apply<D: Device>(
        &self,
        device: &D,
        step: Step,
        factors: Factors<D::Scalar>,
        runs: &Runs,
        gradient: D::Ref<'_>,
        mut to: Buffers<'_, D>,
    ) {
        let constants = self.constants(step, factors.gradient, runs);
        for (run, group) in &runs.runs {
            let g = D::part(gradient, run.clone());
            let p = D::part_mut(&mut to.parameters, run.clone());
            match &constants.of[*group] {
                Rates::Sgd(constants) => {
                    let kept = if constants.momentum == 0.0 { 0..0 } else { run.clone() };
                    device.sgd(constants, g, p, D::part_mut(&mut to.first, kept));
                }
                Rates::Lion(constants) => {
                    device.lion(constants, g, p, D::part_mut(&mut to.first, run.clone()));
                }
                Rates::AdamW(constants) => {
                    let m = D::part_mut(&mut to.first, run.clone());
                    device.adamw(constants, g, p, m, D::part_mut(&mut to.second, run.clone()));
                }
            }
        }
        if let Some(share) = constants.average {
            device.blend(share, factors.parameters, D::read(&to.parameters), to.average);
        }
    }

    /// The numbers of one update, which all its parts have in common. *Panics* if the rule takes parameters together.
    pub fn constants<S: Copy>(&self, step: Step, scale: S, runs: &Runs) -> Constants<S> {
        let plain = match self.rule {
            Rule::Sgd { momentum, nesterov, .. } => Rule::Sgd { momentum, nesterov, weight_decay: 0.0 },
            Rule::AdamW { betas, epsilon, .. } => Rule::AdamW { betas, epsilon, weight_decay: 0.0 },
            Rule::Lion { betas, .. } => Rule::Lion { betas, weight_decay: 0.0 },
            Rule::Muon(_) | Rule::External => self.rule,
        };
        let lr = self.schedule.lr(step);
        let mut of = [self.rates(&plain, (step, lr), scale); MOST_GROUPS];
        for (rates, group) in of.iter_mut().zip(&runs.groups) {
            let rule = if group.decays { &self.rule } else { &plain };
            *rates = self.rates(rule, (step, lr * group.lr_factor), scale);
        }
        Constants { of, average: self.averages(step) }
    }

    fn rates<S>(&self, rule: &Rule, (step, lr): (Step, f64), scale: S) -> Rates<S> {
        let number = self.updates_before + step.0;
        match *rule {
            Rule::Sgd { momentum, nesterov, weight_decay } => {
                Rates::Sgd(Sgd { scale, lr: lr as f32, weight_decay, momentum, nesterov, first: number == 1 })
            }
            Rule::AdamW { betas, epsilon, weight_decay } => {
                Rates::AdamW(Adam { betas, epsilon, weight_decay }.constants(Pace { number, lr, scale }))
            }
            Rule::Lion { betas: [beta1, beta2], weight_decay } => {
                let decay = (1.0 - lr * f64::from(weight_decay)) as f32;
                Rates::Lion(Lion { scale, lr: lr as f32, decay, beta1, beta2 })
            }
            Rule::Muon(_) | Rule::External => panic!("this update is made as a whole"),
        }
    }
}

/// The numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct Constants<S = f32> {
    /// Of each group of parameters; what is behind the last one counts for nothing.
    of: [Rates<S>; MOST_GROUPS],
    /// The share of the parameters that goes into their moving average.
    average: Option<f32>,
}

/// What a device is told of an update.
#[derive(Clone, Copy, Debug)]
enum Rates<S> {
    Sgd(Sgd<S>),
    Lion(Lion<S>),
    AdamW(AdamW<S>),
}

impl Constants {
    /// Updates the parameters of `part` alone, which are read in one place and written to another: parameters, moments and moving
    /// average, each as long as `part`, or empty where none is kept. `gradient` is whole, `runs` rise.
    ///
    /// *Order*: the bits are those of [`Optimizer::apply`].
    pub fn apply_part<D: HostDevice>(
        &self,
        device: &D,
        (runs, part): (&Runs, Range<usize>),
        gradient: &[f32],
        from: [&[f32]; PARTS],
        to: [&mut [f32]; PARTS],
    ) {
        let ([p, m, v, average], [from @ .., old_average]) = (to, from);
        let runs = &runs.runs;
        let first = runs.partition_point(|(run, _)| run.end <= part.start);
        for (run, group) in runs[first..].iter().take_while(|(run, _)| run.start < part.end) {
            let met = run.start.max(part.start)..run.end.min(part.end);
            let g = &gradient[met.clone()];
            let at = met.start - part.start..met.end - part.start;
            match &self.of[*group] {
                Rates::Sgd(constants) => {
                    let kept = if constants.momentum == 0.0 { 0..0 } else { at.clone() };
                    device.copy(&from[0][at.clone()], &mut p[at.clone()]);
                    device.copy(&from[1][kept.clone()], &mut m[kept.clone()]);
                    device.sgd(constants, g, &mut p[at], &mut m[kept]);
                }
                Rates::Lion(constants) => {
                    device.copy(&from[0][at.clone()], &mut p[at.clone()]);
                    device.copy(&from[1][at.clone()], &mut m[at.clone()]);
                    device.lion(constants, g, &mut p[at.clone()], &mut m[at]);
                }
                Rates::AdamW(constants) => {
                    let to = [&mut p[at.clone()], &mut m[at.clone()], &mut v[at.clone()]];
                    device.adamw_to(constants, g, from.map(|from| &from[at.clone()]), to);
                }
            }
        }
        if let Some(share) = self.average {
            device.copy(old_average, average);
            device.blend(share, 1.0, p, average);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn optimizer(rule: Rule) -> Optimizer {
        Optimizer {
            decays: DecayGroup::All,
            clip_norm: Some(2.0),
            ..Optimizer::new(rule, LrSchedule::constant(0.1))
        }
    }

    #[test]
    fn the_scale_divides_once_and_clips_only_above_the_norm() {
        let optimizer = optimizer(Rule::adamw());
        assert_eq!(optimizer.scale(4.0, 1.0), 0.25);
        assert!((optimizer.scale(4.0, 8.0) - 0.0625).abs() < 1e-7);
        assert_eq!(optimizer.scale(0.0, 8.0), 0.0);
        assert_eq!(Optimizer { clip_norm: None, ..optimizer }.scale(4.0, 8.0), 0.25);
    }

    #[test]
    fn nonsense_is_refused_with_the_key_to_change() {
        let refused = |o: Optimizer| o.check().expect_err("it makes no sense").to_string();
        let sgd = |momentum, nesterov| optimizer(Rule::Sgd { momentum, nesterov, weight_decay: 0.0 });
        assert_eq!(refused(sgd(0.0, true)), "optimizer.nesterov: needs a momentum above 0");
        assert_eq!(refused(sgd(1.0, false)), "optimizer.momentum: must be at least 0 and below 1, got 1");
        let clip = Optimizer { clip_norm: Some(0.0), ..sgd(0.9, true) };
        assert_eq!(refused(clip), "optimizer.clip_norm: must be a finite number above 0, got 0");
        sgd(0.9, true).check().expect("the usual momentum");
        optimizer(Rule::adamw()).check().expect("the defaults");
    }

    #[test]
    fn lion_goes_as_far_as_the_learning_rate_whatever_the_gradient() {
        let device = crate::cpu::Cpu::new(crate::cpu::CpuOptions::default()).expect("it is here");
        let o = Lion { scale: 0.5, lr: 0.25, decay: 0.5, beta1: 0.5, beta2: 0.75 };
        let (mut p, mut m) = ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, -4.0, 2.0]);
        device.lion(&o, &[8.0, 0.0, 2.0, -4.0], &mut p, &mut m);
        // Directions: 2, 0, -1.5, 0.
        assert_eq!(p, [0.25, 0.5, 0.75, 0.5]);
        assert_eq!(m, [1.0, 0.0, -2.75, 1.0]);
    }

    #[test]
    fn a_rule_keeps_as_many_buffers_as_it_needs() {
        assert_eq!(Rule::adamw().moments(), 2);
        assert_eq!(Rule::Lion { betas: [0.9, 0.99], weight_decay: 0.1 }.moments(), 1);
        assert_eq!(Rule::Muon(Muon::default()).moments(), 0);
        assert_eq!(Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }.moments(), 1);
        assert_eq!(Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 }.moments(), 0);
    }
}
