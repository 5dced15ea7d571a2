//! An update on a device that a program makes as a whole: the host has to know whether there is one.
//!
//! It does not know how a gradient came about.

use super::making::{Made, MakesPasses};
use crate::OwnMemory;
use crate::device::reborrow;
use crate::error::EngineError;
use crate::loss_scale::LossScale;
use crate::optimizer::Optimizer;
use crate::passes::{self, Divisor, Seen};
use crate::settling::{Findings, Verdict};
use crate::update_facts::UpdateFacts;
use dtrain_types::Step;

/// What makes it, and by what rule.
pub(super) struct MadeWhole<'a, D: OwnMemory> {
    pub device: &'a D,
    pub facts: &'a UpdateFacts,
    pub optimizer: &'a Optimizer,
    pub by: &'a mut dyn MakesPasses<D>,
}

impl<D: OwnMemory> MadeWhole<'_, D> {
    /// Makes the update that the device has settled, if there is one, of these parameters, of what is kept, and of the average; tells what
    /// the device found. Without a weight, that of the losses of the step.
    ///
    /// *Blocks* for the device. *Errors*: of the device or the program.
    pub fn update(
        self,
        step: Step,
        (weight, scale): (Option<f64>, Option<LossScale>),
        gradient: D::Ref<'_>,
        [parameters, kept, average]: [&mut D::Mut<'_>; 3],
    ) -> Result<Findings, EngineError> {
        let Self { device, facts, optimizer, by } = self;
        let found = device.findings(device.send_findings()?)?;
        if found.verdict != Verdict::Made {
            return Ok(found);
        }
        let divisor = Divisor { weight: weight.unwrap_or(found.sums.weight), scale };
        let seen = Seen { squares: found.squares, stats_finite: found.stats_finite };
        let settled = passes::settle(facts, optimizer, step, divisor, seen)?;
        let (len, all) = (facts.parameters, D::len_mut(kept));
        by.update(Made {
            device,
            step,
            lr: settled.info.lr,
            scale: settled.scale.expect("host and device have one rule"),
            gradient: reborrow::<D>(gradient),
            parameters: D::part_mut(parameters, 0..len),
            kept: D::part_mut(kept, 0..all),
        })?;
        if let Some(share) = optimizer.averages(step) {
            device.blend(share, 1.0.into(), D::read(parameters), D::part_mut(average, 0..len));
        }
        Ok(found)
    }
}
