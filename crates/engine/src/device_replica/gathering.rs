//! A replica on a device of its own that has but the shards of the parameters that it holds: a stage's come to the device when a pass needs them.
//!
//! What brings them is the host's. This file does not know who holds what.

use super::{DeviceReplica, To};
use crate::OwnMemory;
use crate::batch::{BatchFigures, BatchView, EvaluationCounts};
use crate::device::LossSums;
use crate::error::EngineError;
use crate::gathering::{BringsParameters, Gathering};
use crate::gradient::{Gradient, MicroBatchGroup};

impl<D: OwnMemory> Gathering for DeviceReplica<D> {
    fn compute_with(
        &mut self,
        group: &MicroBatchGroup,
        batch: &BatchView<'_>,
        parameters: &mut dyn BringsParameters,
        gradient: &mut dyn Gradient,
        figures: &mut [BatchFigures],
    ) -> Result<(), EngineError> {
        let [figures] = figures else { panic!("{group:?}, of a replica that takes one at a time") };
        let to = To::Windows(gradient, group.wire);
        self.train((group.step, group.first()), batch, Some(parameters), to)?;
        *figures = self.under_way_figures();
        Ok(())
    }

    fn evaluate_with(
        &mut self,
        batch: &BatchView<'_>,
        parameters: &mut dyn BringsParameters,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        self.look(Some(parameters), |passes, reads| passes.evaluate(reads, batch, counts))
    }
}
