//! A replica whose passes are watched: what parameters they are lent is kept, for the checkers.
//!
//! It changes nothing, and does not know what becomes of what it keeps.

use dtrain_engine::cpu::Cpu;
use dtrain_engine::device::LossSums;
use dtrain_engine::{
    About, BatchFigures, BatchView, BringsParameters, EngineError, EvaluationCounts, Gathering, Gradient,
    Inputs, Keeping, MicroBatchGroup, ModelReplica, OwnParameters, Replica, Section, Sharding, Sharing,
    State, UpdateInfo,
};
use dtrain_types::{MicroBatch, Step, Wire};
use std::ops::Range;

/// Elements of a section that a pass read, from this one on.
pub type Lent = (Section, usize, Vec<f32>);

/// A replica, and what its passes were lent.
pub(super) struct Watched<'a> {
    replica: &'a mut ModelReplica<Cpu>,
    lent: Vec<Lent>,
}

impl<'a> Watched<'a> {
    pub fn new(replica: &'a mut ModelReplica<Cpu>) -> Self {
        Self { replica, lent: Vec::new() }
    }

    /// What its passes were lent.
    pub fn lent(self) -> Vec<Lent> {
        self.lent
    }
}

/// Lends what another one brings, and keeps a copy.
struct Noted<'a> {
    by: &'a mut dyn BringsParameters,
    lent: &'a mut Vec<Lent>,
}

impl BringsParameters for Noted<'_> {
    fn bring(&mut self, section: Section, elements: Range<usize>, own: &mut OwnParameters<'_>) -> &[f32] {
        let from = elements.start;
        let values = self.by.bring(section, elements, own);
        self.lent.push((section, from, values.to_vec()));
        values
    }
}

impl Gathering for Watched<'_> {
    fn compute_with(
        &mut self,
        group: &MicroBatchGroup,
        batch: &BatchView<'_>,
        parameters: &mut dyn BringsParameters,
        gradient: &mut dyn Gradient,
        figures: &mut [BatchFigures],
    ) -> Result<(), EngineError> {
        let mut noted = Noted { by: parameters, lent: &mut self.lent };
        self.replica.compute_with(group, batch, &mut noted, gradient, figures)
    }

    fn evaluate_with(
        &mut self,
        batch: &BatchView<'_>,
        parameters: &mut dyn BringsParameters,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        let mut noted = Noted { by: parameters, lent: &mut self.lent };
        self.replica.evaluate_with(batch, &mut noted, counts)
    }
}

impl Replica for Watched<'_> {
    fn about(&self) -> &About {
        self.replica.about()
    }

    fn prefetch(
        &mut self,
        group: &MicroBatchGroup,
        micro_batch: MicroBatch,
        batch: &BatchView<'_>,
    ) -> Result<(), EngineError> {
        self.replica.prefetch(group, micro_batch, batch)
    }

    fn compute(
        &mut self,
        group: &MicroBatchGroup,
        batch: &BatchView<'_>,
        gradient: &mut dyn Gradient,
        figures: &mut [BatchFigures],
    ) -> Result<(), EngineError> {
        self.replica.compute(group, batch, gradient, figures)
    }

    fn add(&self, wire: Wire, from: &[f32], into: &mut [f32]) {
        self.replica.add(wire, from, into);
    }

    fn update(
        &mut self,
        step: Step,
        gradient: &[f32],
        weight: f64,
        samples: u64,
    ) -> Result<UpdateInfo, EngineError> {
        self.replica.update(step, gradient, weight, samples)
    }

    fn evaluate(
        &mut self,
        batch: &BatchView<'_>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        self.replica.evaluate(batch, counts)
    }

    fn predict(&mut self, rows: usize, inputs: Inputs<'_>, outputs: &mut [f32]) -> Result<(), EngineError> {
        self.replica.predict(rows, inputs, outputs)
    }

    fn applied(&self) -> Step {
        self.replica.applied()
    }

    fn bring_state(&mut self) -> Result<&State, EngineError> {
        self.replica.bring_state()
    }

    fn swap_state(&mut self, other: &mut State) -> Result<(), EngineError> {
        self.replica.swap_state(other)
    }

    fn keeping(&mut self) -> Option<&mut dyn Keeping> {
        self.replica.keeping()
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        self.replica.sharing()
    }

    fn sharding(&mut self) -> Option<&mut dyn Sharding> {
        self.replica.sharding()
    }

    fn gathering(&mut self) -> Option<&mut dyn Gathering> {
        self.replica.gathering().is_some().then_some(self)
    }
}
