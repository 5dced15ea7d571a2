//! What an update has to know of a model: how long its parts are, and what becomes of its running statistics and its loss scale.
//!
//! It does not know what the model computes, nor whether stages of this crate or another program do.

use crate::layout::Layout;
use crate::loss_scale::{LossScale, LossScaling};
use std::ops::Range;

/// What an update has to know of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateFacts {
    /// Elements of the parameters, and of their gradients.
    pub parameters: usize,
    /// Elements of the running statistics, without a loss scale, and of their sums.
    pub stats: usize,
    /// The share of a running statistic that is replaced by the mean of a step.
    pub momentum: f32,
    /// How the loss is scaled, if it is.
    pub scaling: Option<LossScaling>,
}

impl UpdateFacts {
    /// Of the tensors of a program that makes the passes: a statistic becomes the mean of what the micro-batches of a step leave behind, of
    /// which each began with the same.
    pub(crate) fn of_program(layout: &Layout, scaling: Option<LossScaling>) -> Self {
        let stats = layout.stats - scaling.map_or(0, |_| LossScale::ELEMENTS);
        Self { parameters: layout.parameters, stats, momentum: 1.0, scaling }
    }

    /// What the loss is scaled by, as this section of a state says.
    pub(crate) fn loss_scale(&self, stats: &[f32]) -> Option<LossScale> {
        self.scaling.map(|_| LossScale::read(&stats[self.stats..]))
    }

    /// Where the sums of the statistics lie in a gradient.
    pub(crate) fn sums(&self) -> Range<usize> {
        self.parameters..self.parameters + self.stats
    }

    /// Elements of a gradient: those of the parameters, the sums of the statistics, and room where the state has the loss scale.
    pub(crate) fn gradient_len(&self) -> usize {
        self.parameters + self.stats + self.scaling.map_or(0, |_| LossScale::ELEMENTS)
    }
}
