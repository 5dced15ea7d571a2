//! Training data in the order of the batch plan: which samples go into which micro-batch, and with which key.
//!
//! It does not know which rank asks, nor how far ahead.

use crate::batch::Wanted;
use crate::{Batch, DataError, Dataset, Mix, SampleSpec};
use dtrain_types::{BatchPlan, Key, MicroBatch, Seed, Site, Step};
use std::sync::Arc;

/// Call sites with the highest bit set belong to this crate, so that no layer's dropout shares a stream with the
/// augmentation of a row.
const FIRST_SITE: u32 = 1 << 31;

/// The call site from which row `row` of a micro-batch draws its augmentation.
///
/// *Panics* if `row` is 2^31 or more.
#[must_use]
pub fn augment_site(row: u32) -> Site {
    assert!(row < FIRST_SITE, "row {row} of a micro-batch");
    Site(FIRST_SITE | row)
}

/// The call site from which a micro-batch draws how its samples are mixed: that of a row which none has.
const MIX_SITE: Site = Site(u32::MAX);

/// A training set with its plan: gives any micro-batch of any step.
///
/// *Order*: a micro-batch is a pure function of the data set, the plan, the seed and its place.
#[derive(Clone)]
pub struct Feed {
    dataset: Arc<dyn Dataset>,
    spec: SampleSpec,
    mix: Mix,
    plan: BatchPlan,
    seed: Seed,
}

impl Feed {
    /// Joins a training set, its plan and the run's seed (for augmentation).
    ///
    /// *Errors*: the plan is for another number of samples.
    pub fn new(dataset: Arc<dyn Dataset>, plan: BatchPlan, seed: Seed) -> Result<Self, DataError> {
        if plan.samples() != dataset.len() {
            return Err(DataError::PlanMismatch { plan: plan.samples(), dataset: dataset.len() });
        }
        let (spec, mix) = (dataset.spec(), dataset.mix());
        Ok(Self { dataset, spec, mix, plan, seed })
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// A batch that any micro-batch fits in.
    #[must_use]
    pub fn batch(&self) -> Batch {
        let batch = Batch::new(&self.spec, self.plan.micro_batch() as usize);
        if self.mix.is_none() { batch } else { batch.with_mixing() }
    }

    /// Reads one micro-batch; nothing is allocated.
    ///
    /// *Errors*: what the data set gives. *Panics* if the step has no such micro-batch, or the batch has too few rows.
    pub fn read_micro_batch(
        &self,
        step: Step,
        micro_batch: MicroBatch,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        let step = self.plan.step(step);
        let mut samples = self.plan.micro_batch_samples(&step, micro_batch);
        self.dataset.announce((step.step, micro_batch), &mut samples);
        let mut check = 0u64;
        let wanted = (0..).zip(self.plan.micro_batch_samples(&step, micro_batch)).map(|(row, sample)| {
            check = check.wrapping_add(self.plan.check(&step, sample));
            Wanted { sample, augment: Some(Key::new(self.seed, step.step, micro_batch, augment_site(row))) }
        });
        batch.fill(&*self.dataset, wanted)?;
        if !self.mix.is_none() {
            batch.mix(&self.mix, &Key::new(self.seed, step.step, micro_batch, MIX_SITE));
        }
        batch.step = step.step;
        batch.micro_batch = micro_batch;
        batch.check = check;
        Ok(())
    }
}
