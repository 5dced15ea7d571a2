//! Passes that another program in this process makes, on the device's own memory.
//!
//! It lends the program places and does not know what is computed there.

use super::making::{Made, MakesPasses, Reads, Writes};
use crate::batch::{BatchView, EvaluationCounts, Inputs};
use crate::device::LossSums;
use crate::error::EngineError;
use crate::lends_memory::LendsMemory;
use crate::program_on_device::{ComputesOn, DevicePlaces, DeviceUpdate, DeviceView, ProgramOnDevice};
use crate::update_facts::UpdateFacts;
use dtrain_types::{MicroBatch, Step};

/// A program, and how much it reads and writes.
pub(super) struct ByProgram {
    program: Box<dyn ProgramOnDevice>,
    facts: UpdateFacts,
}

impl ByProgram {
    /// Of a model with these tensors.
    pub fn new(program: Box<dyn ProgramOnDevice>, facts: UpdateFacts) -> Self {
        Self { program, facts }
    }

    /// What the program reads, when it may begin.
    fn lend<D: LendsMemory>(&self, reads: Reads<'_, D>) -> DeviceView {
        let Reads { device, applied, params, frozen: _, stats } = reads;
        let view = DeviceView {
            applied,
            parameters: D::lent(params.part(0..self.facts.parameters)),
            stats: D::lent(D::part(stats, 0..self.facts.stats)),
        };
        self.let_begin(device);
        view
    }

    /// Has what was given come before what the program does.
    fn let_begin<D: LendsMemory>(&self, device: &D) {
        match self.program.computes_on() {
            ComputesOn::Queue => device.submit(),
            ComputesOn::Host => device.wait(),
        }
    }
}

impl<D: LendsMemory> MakesPasses<D> for ByProgram {
    fn prefetch(&mut self, _: &D, _: (Step, MicroBatch), _: &BatchView<'_>) -> Result<(), EngineError> {
        // The program reads ahead for itself.
        Ok(())
    }

    fn train(
        &mut self,
        reads: Reads<'_, D>,
        place: (Step, MicroBatch),
        batch: &BatchView<'_>,
        writes: Writes<'_, D>,
    ) -> Result<D::Sums, EngineError> {
        let device = reads.device;
        let Writes { all, scale } = writes;
        let (end, len) = (self.facts.sums().end, self.facts.gradient_len());
        if end < len {
            // The sums of ranks have nothing to say of the loss scale.
            device.fill(all.part(end..len), 0.0);
        }
        let (sums, at) = device.lent_sums();
        let gradient = D::lent_mut(&all.part(0..end));
        let to = DevicePlaces { gradient, sums: at, scale: scale.map(|_| device.lent_scale()) };
        let view = self.lend(reads);
        self.program.compute(view, place, batch, to, &mut |from| all.settle(from))?;
        Ok(sums)
    }

    fn evaluate(
        &mut self,
        reads: Reads<'_, D>,
        batch: &BatchView<'_>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        let view = self.lend(reads);
        self.program.evaluate(view, batch, &mut counts.own)
    }

    fn predict(
        &mut self,
        _: Reads<'_, D>,
        _: usize,
        _: Inputs<'_>,
        _: &mut [f32],
    ) -> Result<(), EngineError> {
        Err(EngineError::External("its program predicts".into()))
    }

    fn update(&mut self, update: Made<'_, D>) -> Result<(), EngineError> {
        let Made { device, step, lr, scale, gradient, parameters, kept } = update;
        self.let_begin(device);
        self.program.update(DeviceUpdate {
            step,
            lr,
            scale,
            gradient: D::lent(gradient),
            parameters: D::lent_mut(&parameters),
            kept: D::lent_mut(&kept),
        })
    }

    fn rehearse(&mut self, _: Reads<'_, D>, _: Writes<'_, D>) -> Result<D::Sums, EngineError> {
        panic!("the program has tried its own passes")
    }
}
