//! Replicas on GPUs: which models can be trained there, and how much of one there is room for.

use super::Plan;
use crate::blueprint::Blocks;
use crate::config::{Backend, Model, Problem};
use crate::error::CliError;
use crate::gpus::Chosen;
use crate::nccl::ChosenBackend;
use dtrain_collective::{Assignment, Geometry};
use dtrain_cuda::driver::Gpu;
use dtrain_cuda::libraries::Libraries;
use dtrain_cuda::{CudaDevice, rehearsed};
use dtrain_engine::cpu::Pool;
use dtrain_engine::{About, DeviceReplica, EngineError, MemoryTable, OwnMemory, Replica};
use dtrain_nccl::staged_floats;
use dtrain_runtime::{cuts, step_counts};
use dtrain_types::{Generation, Rank, Reduce, cut_evenly};
use std::sync::Arc;

/// What is written down of a sum over NCCL: who sends what, and the order in which it is added. *Units*: floats.
const WRITTEN: usize = 256;

impl Plan {
    /// A replica with its first parameters on a GPU, and how its blocks are computed.
    ///
    /// *Errors*: as [`Plan::replica`]; a program's own model; not enough memory, with the micro-batch that there is room for.
    pub fn cuda_replica(
        &self,
        gpu: &Arc<Gpu>,
        libraries: &Libraries,
    ) -> Result<(DeviceReplica<CudaDevice>, Blocks), CliError> {
        self.check_device()?;
        let loss = self.blueprint().loss()?;
        let most = self.config.batch.micro;
        let mut full = String::new();
        for blocks in self.blocks() {
            match self.try_cuda_replica(gpu, most, *blocks, (&loss, libraries)) {
                Ok(mut replica) => {
                    self.complete(&mut replica)?;
                    return Ok((replica, *blocks));
                }
                Err(EngineError::NoRoom(words)) => full = words,
                Err(EngineError::Device(words)) => return Err(CliError::failed(words)),
                Err(error) => return Err(self.misfit(&error).into()),
            }
        }
        let words = match (full.split_once("\nhint: "), self.most_rows_on(gpu, most / 2, 1)) {
            (Some((words, _)), Some(rows)) => format!("{words}\nhint: there is room for micro_batch={rows}"),
            (Some((words, _)), None) if self.may_shard() => {
                format!("{words}\nhint: state=sharded takes less, the less the more ranks there are")
            }
            _ => full,
        };
        Err(CliError::failed(words))
    }

    /// The largest micro-batch that so many replicas have room for on a GPU: this one, half of it, half of that, and so on.
    pub fn most_rows_on(&self, gpu: &Arc<Gpu>, largest: u32, replicas: u32) -> Option<u32> {
        let loss = self.blueprint().loss().ok()?;
        let sizes = std::iter::successors(Some(largest), |rows| Some(rows / 2));
        let ways = || self.blocks().iter().copied();
        let fits = |rows: u32| {
            ways().any(|blocks| {
                let one = |_| self.try_cuda_replica(gpu, rows, blocks, (&loss, &Libraries::default()));
                (0..replicas).map(one).collect::<Result<Vec<_>, _>>().is_ok()
            })
        };
        sizes.take_while(|rows| *rows > 0).find(|rows| fits(*rows))
    }

    fn try_cuda_replica(
        &self,
        gpu: &Arc<Gpu>,
        rows: u32,
        blocks: Blocks,
        (loss, libraries): (&dtrain_engine::Loss, &Libraries),
    ) -> Result<DeviceReplica<CudaDevice>, EngineError> {
        let threads = Pool::new(CudaDevice::MOST_THREADS.min(self.config.world.threads as usize));
        let threads = threads.map_err(|error| EngineError::Device(error.to_string()))?;
        let device = CudaDevice::new(gpu, self.config.precision)?;
        let device = device.with_libraries(libraries)?.with_threads(threads);
        let model = self.blueprint().gpu_model(&device, rows, blocks, loss)?;
        let replica = DeviceReplica::begun(device, model, self.optimizer(), self.config.seed)?;
        // Held while the replica takes what it needs, and free again for the slots, and for the shards that it is told to hold.
        let floats = self.floats_beside(replica.about()) + self.floats_of_shards(replica.about());
        let _room = replica.device().floats(floats)?;
        rehearsed(replica)
    }

    /// The model as a GPU has it, for micro-batches of so many rows.
    ///
    /// *Errors*: a program's own model that is made for the CPU; as [`Plan::replica`].
    pub(super) fn gpu_model(
        &self,
        device: &CudaDevice,
        rows: u32,
        blocks: Blocks,
    ) -> Result<dtrain_engine::Model<CudaDevice>, CliError> {
        let loss = self.blueprint().loss()?;
        self.blueprint().gpu_model(device, rows, blocks, &loss).map_err(|error| self.misfit(&error).into())
    }

    /// The slots that a rank needs for gradients of so many elements, as long as all ranks are there.
    #[must_use]
    pub fn slots(&self, gradient: usize) -> Geometry {
        let counts = step_counts(&self.batches);
        let ranges = cut_evenly(self.batches.micro_batches(), self.config.world.ranks);
        Geometry::plan(gradient, &ranges, &counts, self.config.reduce)
    }

    /// Where the memory of a rank on these devices goes.
    #[must_use]
    pub fn memory(&self, replica: &dyn Replica, chosen: &Chosen) -> MemoryTable {
        let plain = || self.in_shards(replica.about());
        // Another program's passes take what they take.
        if matches!(chosen, Chosen::Cpu { .. }) || self.external().is_some() || self.check_device().is_err() {
            return plain();
        }
        let table = |blocks: &Blocks| {
            let counted = self.gpu_memory(*blocks);
            counted.inspect_err(|error| tracing::warn!(%error, "the memory of a GPU cannot be counted")).ok()
        };
        let mut tables = self.blocks().iter().filter_map(table);
        let mut table = tables.next().unwrap_or_else(plain);
        for smaller in tables {
            if chosen.has_room(&self.config, table.total()).is_err() {
                table = smaller;
            }
        }
        table
    }

    /// Notes what carries the gradients, where that was left to dtrain.
    pub fn carried_by(&mut self, backend: &ChosenBackend) {
        self.carried = Some(backend.kind());
    }

    /// What carries the gradients: as it was asked for, or noted.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.carried.unwrap_or(self.config.backend)
    }

    /// How many floats a rank has on its GPU beside its replica: where NCCL carries the gradients, the slots in which they are
    /// computed, and room for a bucket of those of its peers; or windows.
    #[must_use]
    pub fn floats_beside(&self, about: &About) -> usize {
        let gradient = about.gradient_len();
        match (self.backend(), &about.windows) {
            (Backend::Nccl, Some(windows)) => self.windows_beside(about, windows),
            (Backend::Nccl, None) => gradient * self.slots(gradient).slots() + self.staged(about),
            (Backend::Auto | Backend::Host, _) => 0,
        }
    }

    /// Where sums over NCCL are cut, if they are.
    #[must_use]
    pub fn cuts(&self, about: &About) -> Vec<usize> {
        // How a library cuts its own sums is part of their bits.
        let bytes = self.config.world.bucket_bytes.filter(|_| self.config.reduce == Reduce::Exact);
        bytes.map_or_else(Vec::new, |bytes| cuts(&about.layout, bytes as usize))
    }

    /// Of what its peers send it, the most that a rank has at once, and what is written down of each sum.
    fn staged(&self, about: &About) -> usize {
        if self.config.reduce == Reduce::Ring {
            return 0;
        }
        let (ranks, counts, cuts) = (self.config.world.ranks, step_counts(&self.batches), self.cuts(about));
        let sums = counts.len() * (cuts.len() + 2);
        let ranges = cut_evenly(self.batches.micro_batches(), ranks);
        let of = |rank| {
            let membership = Assignment { generation: Generation(0), rank, ranges: ranges.clone() };
            staged_floats(&membership, &counts, about.gradient_len(), &cuts)
        };
        (0..ranks).map(Rank).map(of).max().unwrap_or(0) + WRITTEN * sums
    }

    /// Whether the model can be trained on another device than the CPU.
    ///
    /// *Errors*: a program's own model that is made for the CPU alone.
    pub fn check_device(&self) -> Result<(), Problem> {
        let for_gpus = self.blueprint().own.is_some_and(|own| own.gpu_model.is_some());
        match self.config.model {
            Model::Own | Model::Torch if !for_gpus => {
                let problem = self.config.problem("devices", "the model of this program is made for the CPU");
                Err(problem.hint("devices=cpu trains on the cores"))
            }
            _ => Ok(()),
        }
    }
}
