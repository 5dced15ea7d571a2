//! A replica on a device of its own that keeps the gradients that it computes, and works ahead of what the host knows.
//!
//! It does not know which gradient is whose.

use super::{DeviceReplica, Found, Given, MOST_GIVEN, To};
use crate::OwnMemory;
use crate::batch::{BatchFigures, BatchView};
use crate::error::EngineError;
use crate::keeping::{Keeping, Kept, StepOutcome};
use crate::loss::expect_length;
use crate::optimizer::Rule;
use crate::passes::{self, Divisor, Seen};
use crate::settling::{Findings, Verdict};
use crate::update_info::UpdateInfo;
use dtrain_types::{Bytes, DeviceMemory, MicroBatch, Step};
use std::ops::Range;

impl<D: OwnMemory> DeviceReplica<D> {
    /// *Blocks* until it is known. *Errors*: of the device.
    fn found(&self, found: Found<D>) -> Result<Findings, EngineError> {
        match found {
            Found::Pending(found) => self.device.findings(found),
            Found::Known(found) => Ok(found),
        }
    }
}

impl<D: OwnMemory> Keeping for DeviceReplica<D> {
    fn keep(&mut self, gradients: usize) -> bool {
        while self.gradients.len() < gradients {
            let Ok(more) = self.device.floats(self.about.gradient_len()) else {
                // Some of them are of no use.
                self.gradients.truncate(1);
                return false;
            };
            self.gradients.push(more);
        }
        true
    }

    fn keep_in(&mut self, slots: &[DeviceMemory]) -> bool {
        let taken: Option<Vec<_>> = slots.iter().map(D::slot).collect();
        let fits = |slot: &D::Floats| D::len(D::look(slot)) == self.about.gradient_len();
        let Some(gradients) = taken.filter(|taken| !taken.is_empty() && taken.iter().all(fits)) else {
            return false;
        };
        self.gradients = gradients;
        true
    }

    fn begin(
        &mut self,
        step: Step,
        micro_batch: MicroBatch,
        batch: &BatchView<'_>,
        to: Kept<'_>,
    ) -> Result<(), EngineError> {
        self.train((step, micro_batch), batch, None, To::Kept(to))?;
        self.device.submit();
        Ok(())
    }

    fn figures(&mut self) -> BatchFigures {
        self.under_way_figures()
    }

    fn add_kept(&mut self, from: usize, into: usize) {
        assert_ne!(from, into, "a gradient is not added to itself");
        let [from, into] = self.gradients.get_disjoint_mut([from, into]).expect("two that are kept");
        self.device.add_to(D::look(from), D::take(into));
    }

    fn lay(&mut self, parameters: Range<usize>) {
        let Self { device, gradients, sections, .. } = self;
        let mut gradient = D::take(&mut gradients[0]);
        let from = D::part(D::look(&sections[0]), parameters.clone());
        device.copy(from, D::part_mut(&mut gradient, parameters));
    }

    fn pick(&mut self, parameters: Range<usize>) {
        let Self { device, gradients, sections, is_home, .. } = self;
        let from = D::part(D::look(&gradients[0]), parameters.clone());
        device.copy_to(from, &mut sections[0], parameters.start);
        *is_home = false;
    }

    fn bring(&mut self, kept: usize, to: &mut [f32]) -> Result<(), EngineError> {
        expect_length("gradient", self.about.gradient_len(), to.len())?;
        self.device.fetch(&self.gradients[kept], to)
    }

    fn update_kept(&mut self, step: Step, weight: f64, samples: u64) -> Result<UpdateInfo, EngineError> {
        assert!(self.given.is_empty(), "updates that were given are told first");
        self.give_update(step, Some(weight), samples)?;
        let outcome = self.outcome()?.expect("it was given");
        outcome.update.ok_or(EngineError::NonFinite { step })
    }

    fn figures_later(&mut self) -> BatchFigures {
        let (loss, rows) = self.under_way.take().expect("a micro-batch is under way");
        self.losses.push(loss);
        BatchFigures { samples: rows as u64, ..BatchFigures::default() }
    }

    fn peak_memory(&self) -> Bytes {
        self.device.peak_memory()
    }

    fn work_ahead(&mut self, micro_batches: usize) -> bool {
        if self.optimizer.rule == Rule::External {
            // Whoever makes the updates is told whether there is one.
            return false;
        }
        // Of a step that was left.
        self.losses.clear();
        self.losses.reserve(micro_batches);
        self.device.keep_losses(micro_batches).is_ok()
    }

    fn update_ahead(&mut self, step: Step, samples: u64) -> Result<(), EngineError> {
        assert!(self.given.len() < MOST_GIVEN, "the update before the last one is told first");
        self.give_update(step, None, samples)
    }

    fn outcome(&mut self) -> Result<Option<StepOutcome>, EngineError> {
        let Some(Given { step, found, weight }) = self.given.pop_front() else { return Ok(None) };
        let found = self.found(found)?;
        let weight = weight.unwrap_or(found.sums.weight);
        let divisor = Divisor { weight, scale: self.loss_scale };
        let seen = Seen { squares: found.squares, stats_finite: found.stats_finite };
        let settled = match found.non_finite {
            Some(_) => Err(EngineError::NonFinite { step }),
            None => passes::settle(&self.facts, &self.optimizer, step, divisor, seen),
        };
        let verdict = match &settled {
            Ok(settled) if settled.scale.is_some() => Verdict::Made,
            Ok(_) => Verdict::Skipped,
            Err(_) => Verdict::Halted,
        };
        assert_eq!(verdict, found.verdict, "host and device have one rule");
        let update = match settled {
            Ok(settled) => {
                self.loss_scale = settled.info.loss_scale;
                Some(settled.info)
            }
            Err(_) => {
                // What was given behind it has changed nothing either.
                while let Some(Given { found, .. }) = self.given.pop_front() {
                    self.found(found)?;
                }
                self.device.go_on()?;
                self.host.applied = Step(step.0 - 1);
                None
            }
        };
        Ok(Some(StepOutcome { step, sums: found.sums, non_finite: found.non_finite, update }))
    }
}
