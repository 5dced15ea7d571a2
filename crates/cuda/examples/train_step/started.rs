//! A workload on a GPU, and a step of it.

use crate::asked::Asked;
use dtrain_cuda::driver::DriverError;
use dtrain_cuda::{CudaDevice, Precision, rehearsed};
use dtrain_engine::models::peer::{Large, PeerData, Work, initialise};
use dtrain_engine::{
    BatchView, DeviceReplica, EngineError, Keeping, Kept, Loss, LossScaling, LrSchedule, MicroBatchGroup,
    Model, Optimizer, Replica,
};
use dtrain_types::{MicroBatch, Seed, Step};

/// A workload on a GPU, with its batch.
pub struct Started {
    pub replica: DeviceReplica<CudaDevice>,
    pub data: PeerData,
    /// What is counted, and how many of them a row has.
    pub unit: &'static str,
    pub each: usize,
    /// The last step of which it is known what it came to.
    told: u64,
}

/// The optimizer of every workload, with its own learning rate or another one.
pub fn optimizer(rate: Option<f64>) -> Optimizer {
    let optimizer = Work::Mlp.optimizer();
    match rate {
        Some(rate) => Optimizer { schedule: LrSchedule::constant(rate), ..optimizer },
        None => optimizer,
    }
}

/// A model whose loss is scaled where it has to be.
fn scaled(model: Model<CudaDevice>, precision: Precision) -> Model<CudaDevice> {
    match precision {
        Precision::F16 => model.scaling_loss(LossScaling::default()),
        Precision::F32 | Precision::Tf32 | Precision::Bf16 => model,
    }
}

impl Started {
    /// What is asked for, on a device that `open` makes: a large one with the largest batch that there is room for.
    ///
    /// *Errors*: [`EngineError::NoRoom`] where nothing that is asked for has room.
    pub fn new(
        asked: &Asked,
        precision: Precision,
        open: impl Fn() -> Result<CudaDevice, DriverError>,
    ) -> Result<Self, EngineError> {
        if let Some(work) = asked.peer() {
            let (device, rows) = (open()?, asked.batch.unwrap_or(work.batch()));
            let model = scaled(work.model_for(&device, rows)?, precision);
            let replica = rehearsed(DeviceReplica::new(device, model, optimizer(None), Seed(7))?)?;
            return Ok(Self { replica, data: work.data_for(rows), unit: "samples/s", each: 1, told: 0 });
        }
        let large = asked.large().expect("it is a large one, where it is no other");
        let batches = asked.batch.map_or(large.batches().to_vec(), |batch| vec![batch]);
        let mut batches = batches.into_iter();
        let first = batches.next().expect("there is one at least");
        let started = |rows| Self::large(large, precision, open()?, rows, None);
        batches.fold(started(first), |tried, rows| match tried {
            Err(EngineError::NoRoom(_)) => started(rows),
            tried => tried,
        })
    }

    /// A large one with a batch of `rows`, at its own learning rate or another one. *Errors*: as [`Started::new`].
    pub fn large(
        large: Large,
        precision: Precision,
        device: CudaDevice,
        rows: usize,
        rate: Option<f64>,
    ) -> Result<Self, EngineError> {
        let (stages, input) = large.stages(rows)?;
        let model = scaled(Model::new(&device, stages, input, Loss::cross_entropy())?, precision);
        let optimizer = optimizer(Some(rate.unwrap_or(large.rate())));
        let replica = rehearsed(DeviceReplica::new(device, model, optimizer, Seed(7))?)?;
        let (unit, each) = large.counted();
        Ok(Self { replica, data: large.data_for(rows), unit, each, told: 0 })
    }

    /// Begins with PyTorch's numbers, and keeps its gradient on the GPU.
    pub fn begin(&mut self) {
        let replica = &mut self.replica;
        let mut state = replica.bring_state().unwrap_or_else(|error| panic!("{error}")).clone();
        initialise(&replica.about().layout, &mut state);
        replica.swap_state(&mut state).unwrap_or_else(|error| panic!("{error}"));
        assert!(replica.keep(1), "one gradient is always there");
        assert!(replica.work_ahead(1), "one loss has room");
    }

    /// Step `number` on its one batch, as far as the GPU has been told of it. *Blocks* for the one before it, as a rank's loop does.
    pub fn step(&mut self, number: u64) {
        let Self { replica, data, told, .. } = self;
        let batch = data.batch();
        give(replica, number, &batch, Some(&batch));
        if number > *told + 1 {
            (*told, _) = loss(replica);
        }
    }

    /// *Blocks* until all steps are done.
    pub fn finish(&mut self) {
        while self.replica.applied().0 > self.told {
            (self.told, _) = loss(&mut self.replica);
        }
        self.replica.device().finish().unwrap_or_else(|error| panic!("{error}"));
    }

    /// What is counted of one step.
    pub fn of_a_step(&self) -> usize {
        self.data.batch().rows * self.each
    }
}

/// Gives the GPU step `number`, and the batch of the next one ahead if it is known.
fn give(
    replica: &mut DeviceReplica<CudaDevice>,
    number: u64,
    batch: &BatchView<'_>,
    next: Option<&BatchView<'_>>,
) {
    let (step, micro_batch) = (Step(number), MicroBatch(0));
    let begun = replica.begin(step, micro_batch, batch, Kept::alone(0));
    begun.unwrap_or_else(|error| panic!("{error}"));
    if let Some(next) = next {
        let group = MicroBatchGroup::of_one(step.next(), micro_batch);
        replica.prefetch(&group, micro_batch, next).unwrap_or_else(|error| panic!("{error}"));
    }
    let figures = replica.figures_later();
    replica.update_ahead(step, figures.samples).unwrap_or_else(|error| panic!("{error}"));
}

/// The oldest step that was given and not told, and its mean loss. *Blocks* for it.
fn loss(replica: &mut DeviceReplica<CudaDevice>) -> (u64, f64) {
    let outcome = replica.outcome().unwrap_or_else(|error| panic!("{error}")).expect("a step was given");
    let (number, sums) = (outcome.step.0, outcome.sums);
    assert!(outcome.update.is_some(), "the loss of step {number} is {}", sums.loss);
    (number, sums.loss / sums.weight)
}

/// Makes step `number`; gives its mean loss.
pub fn one_step(replica: &mut DeviceReplica<CudaDevice>, number: u64, batch: &BatchView<'_>) -> f64 {
    give(replica, number, batch, None);
    loss(replica).1
}
