//! The batch plan: which samples each numbered micro-batch of each step holds.
//!
//! A pure function of `(seed, data set length, global batch, micro-batch)`; the world size is not among its
//! arguments. No padding, no dropped tail: the last step of an epoch is shorter.

use crate::{Epoch, Key, MicroBatch, Permutation, Seed, Site, Step};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the training samples are cut into steps and micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPlan {
    seed: Seed,
    samples: u64,
    global_batch: u32,
    micro_batch: u32,
}

/// Why a batch plan cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The training set has no sample.
    NoSamples,
    /// A batch size is zero.
    ZeroBatch,
    /// The micro-batch is larger than the global batch.
    MicroAboveGlobal {
        /// Samples in a micro-batch.
        micro_batch: u32,
        /// Samples in a global batch.
        global_batch: u32,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSamples => write!(f, "the training set is empty"),
            Self::ZeroBatch => write!(f, "global_batch and micro_batch must be at least 1"),
            Self::MicroAboveGlobal { micro_batch, global_batch } => {
                write!(f, "micro_batch {micro_batch} is larger than global_batch {global_batch}")
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// One step of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// The step's number over the whole run, from 1.
    pub step: Step,
    /// The epoch it belongs to, from 0.
    pub epoch: Epoch,
    /// Its index in the epoch, from 0.
    pub index: u64,
    /// Place of its first sample in the epoch.
    pub first: u64,
    /// How many samples it has.
    pub samples: u32,
    /// How many micro-batches it has.
    pub micro_batches: u32,
    /// Whether it is the last of its epoch.
    pub ends_epoch: bool,
}

impl BatchPlan {
    /// Plans epochs over `samples` training samples.
    ///
    /// *Errors*: see [`PlanError`].
    pub fn new(seed: Seed, samples: u64, global_batch: u32, micro_batch: u32) -> Result<Self, PlanError> {
        if samples == 0 {
            return Err(PlanError::NoSamples);
        }
        if global_batch == 0 || micro_batch == 0 {
            return Err(PlanError::ZeroBatch);
        }
        if micro_batch > global_batch {
            return Err(PlanError::MicroAboveGlobal { micro_batch, global_batch });
        }
        Ok(Self { seed, samples, global_batch, micro_batch })
    }

    /// Training samples in an epoch.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Samples in a full step.
    #[must_use]
    pub fn global_batch(&self) -> u32 {
        self.global_batch
    }

    /// Samples in a full micro-batch.
    #[must_use]
    pub fn micro_batch(&self) -> u32 {
        self.micro_batch
    }

    /// `M`: micro-batches in a full step, fixed for the whole run.
    #[must_use]
    pub fn micro_batches(&self) -> u32 {
        self.global_batch.div_ceil(self.micro_batch)
    }

    /// Steps in an epoch.
    #[must_use]
    pub fn steps_per_epoch(&self) -> u64 {
        self.samples.div_ceil(u64::from(self.global_batch))
    }

    /// What step number `step` (from 1) does.
    ///
    /// *Panics* if `step` is 0: that is the state before the first step.
    #[must_use]
    pub fn step(&self, step: Step) -> StepPlan {
        assert!(step.0 > 0, "step 0 is the initial state");
        let per_epoch = self.steps_per_epoch();
        let (epoch, index) = ((step.0 - 1) / per_epoch, (step.0 - 1) % per_epoch);
        let first = index * u64::from(self.global_batch);
        let samples =
            u32::try_from((self.samples - first).min(u64::from(self.global_batch))).expect("at most a u32");
        StepPlan {
            step,
            epoch: Epoch(u32::try_from(epoch).expect("fewer than 2^32 epochs")),
            index,
            first,
            samples,
            micro_batches: samples.div_ceil(self.micro_batch),
            ends_epoch: index + 1 == per_epoch,
        }
    }

    /// The samples of one micro-batch, in order.
    ///
    /// *Panics* if the step has no such micro-batch.
    pub fn micro_batch_samples(
        &self,
        step: &StepPlan,
        micro_batch: MicroBatch,
    ) -> impl Iterator<Item = u64> + use<> {
        assert!(micro_batch.0 < step.micro_batches, "micro-batch {micro_batch} of {}", step.micro_batches);
        let order = Permutation::new(self.seed, step.epoch, self.samples);
        let lo = micro_batch.0 * self.micro_batch;
        let hi = (lo + self.micro_batch).min(step.samples);
        let first = step.first;
        (lo..hi).map(move |i| order.sample(first + u64::from(i)))
    }

    /// What the ledger adds up, wrapping, for each sample that a step fed.
    #[must_use]
    pub fn check(&self, step: &StepPlan, sample: u64) -> u64 {
        let key = Key::new(Seed(sample), step.step, MicroBatch(step.epoch.0), Site(0x4C45_4447));
        let words = key.block(0);
        u64::from(words[0]) | u64::from(words[1]) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_sample_of_an_epoch_is_used_exactly_once(
            samples in 1u64..700, global in 1u32..90, micro in 1u32..90, seed: u64, epoch in 0u64..3,
        ) {
            prop_assume!(micro <= global);
            let plan = BatchPlan::new(Seed(seed), samples, global, micro).unwrap();
            let mut seen = vec![0; samples as usize];
            for index in 0..plan.steps_per_epoch() {
                let step = plan.step(Step(epoch * plan.steps_per_epoch() + index + 1));
                prop_assert_eq!(u64::from(step.epoch.0), epoch);
                prop_assert!(step.micro_batches <= plan.micro_batches());
                for m in 0..step.micro_batches {
                    let before: u32 = seen.iter().sum();
                    for sample in plan.micro_batch_samples(&step, MicroBatch(m)) {
                        seen[sample as usize] += 1;
                    }
                    prop_assert!(seen.iter().sum::<u32>() > before, "a micro-batch is never empty");
                }
                prop_assert_eq!(step.ends_epoch, index + 1 == plan.steps_per_epoch());
            }
            prop_assert!(seen.iter().all(|n| *n == 1));
        }
    }

    #[test]
    fn bad_sizes_are_refused() {
        assert_eq!(BatchPlan::new(Seed(0), 0, 1, 1), Err(PlanError::NoSamples));
        assert_eq!(BatchPlan::new(Seed(0), 5, 0, 1), Err(PlanError::ZeroBatch));
        assert_eq!(
            BatchPlan::new(Seed(0), 5, 2, 3),
            Err(PlanError::MicroAboveGlobal { micro_batch: 3, global_batch: 2 })
        );
    }
}
