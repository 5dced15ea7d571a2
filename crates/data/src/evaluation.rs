//! Validation data: every sample once, in its own order, cut by the micro-batch size.
//!
//! It does not know who computes which micro-batch; results are counts and sums, added in micro-batch order.

use crate::batch::Wanted;
use crate::{Batch, DataError, Dataset, Elements};
use dtrain_types::{MicroBatch, Step};

/// How a validation set is cut into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationPlan {
    samples: u64,
    micro_batch: u32,
}

impl EvaluationPlan {
    /// Cuts `samples` validation samples into micro-batches of `micro_batch`; the last may be shorter.
    ///
    /// *Panics* if `micro_batch` is 0, or if there would be 2^32 micro-batches or more.
    #[must_use]
    pub fn new(samples: u64, micro_batch: u32) -> Self {
        assert!(micro_batch > 0, "micro_batch must be at least 1");
        assert!(
            u32::try_from(samples.div_ceil(u64::from(micro_batch))).is_ok(),
            "{samples} validation samples"
        );
        Self { samples, micro_batch }
    }

    /// How many micro-batches there are; ranks share them as they share those of a step.
    #[must_use]
    pub fn micro_batches(&self) -> u32 {
        self.samples.div_ceil(u64::from(self.micro_batch)) as u32
    }

    /// A batch that any micro-batch fits in.
    #[must_use]
    pub fn batch(&self, dataset: &dyn Dataset) -> Batch {
        Batch::new(&dataset.spec(), self.micro_batch as usize)
    }

    /// Reads one micro-batch, without augmentation; nothing is allocated.
    ///
    /// *Errors*: what the data set gives. *Panics* if there is no such micro-batch, if the plan is for another
    /// number of samples, or if the batch has too few rows.
    pub fn read(
        &self,
        dataset: &dyn Dataset,
        micro_batch: MicroBatch,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        assert_eq!(self.samples, dataset.len(), "an evaluation plan is for one data set");
        assert!(
            micro_batch.0 < self.micro_batches(),
            "micro-batch {micro_batch} of {}",
            self.micro_batches()
        );
        let first = u64::from(micro_batch.0) * u64::from(self.micro_batch);
        let end = (first + u64::from(self.micro_batch)).min(self.samples);
        batch.fill(dataset, (first..end).map(|sample| Wanted { sample, augment: None }))?;
        batch.step = Step(0);
        batch.micro_batch = micro_batch;
        batch.check = 0;
        Ok(())
    }
}

/// Rows read at a time.
const ROWS: u32 = 64;

/// The variance of the targets of a data set, where they are one number a sample, as the model is trained on it.
///
/// *Errors*: what reading gives. *Panics* if targets are classes, or several numbers.
pub fn target_variance(dataset: &dyn Dataset) -> Result<f64, DataError> {
    let plan = EvaluationPlan::new(dataset.len(), ROWS);
    let mut batch = plan.batch(dataset);
    let (mut sum, mut squares) = (0.0, 0.0);
    for micro_batch in 0..plan.micro_batches() {
        plan.read(dataset, MicroBatch(micro_batch), &mut batch)?;
        let Elements::F32(targets) = batch.targets() else { panic!("targets are numbers") };
        for target in targets {
            sum += f64::from(*target);
            squares += f64::from(*target) * f64::from(*target);
        }
    }
    let count = dataset.len().max(1) as f64;
    Ok((squares / count - (sum / count) * (sum / count)).max(0.0))
}
