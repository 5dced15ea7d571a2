//! The memory that a rank takes on a GPU, counted on a GPU on paper: the rank's own replica is made there, makes the greatest pass and
//! an update, and every buffer that it asks for is counted. No GPU has to be there.
//!
//! It does not know how much memory a GPU has.

use super::Plan;
use crate::blueprint::Blocks;
use crate::config::{Backend, Kernels, Precision};
use crate::error::CliError;
use dtrain_cuda::driver::{About, Gpu};
use dtrain_cuda::libraries::{Libraries, Wanted};
use dtrain_cuda::{CudaDevice, rehearsed};
use dtrain_engine::{
    DeviceReplica, EngineError, Keeping, Lies, MemoryTable, OwnMemory, ReducedSum, Replica, Sharding,
    UpdateShare,
};
use dtrain_runtime::step_counts;
use dtrain_types::{Bytes, Merger, Reduce, Step, Wire, cut_evenly, roots};
use std::sync::Arc;

/// The variable that tests set: operations of the least that a library is asked for. A stand-in for a GPU has no time for large
/// ones.
const LEAST: &str = "DTRAIN_TEST_LIBRARIES_FROM";

/// A GPU with room for everything.
#[must_use]
pub fn paper_gpu() -> About {
    About {
        ordinal: 0,
        name: "a GPU on paper".into(),
        capability: [9, 0],
        multiprocessors: 132,
        memory: 1 << 40,
    }
}

/// What a rank has beside its replica for the gradients of its micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    /// Gradients in the memory of its GPU.
    gradients: usize,
    /// Losses that are told behind.
    losses: usize,
}

impl Plan {
    /// What a rank takes on a GPU that computes its blocks so.
    ///
    /// *Errors*: as [`Plan::cuda_replica`].
    pub(super) fn gpu_memory(&self, blocks: Blocks) -> Result<MemoryTable, CliError> {
        self.counted_on_paper(blocks).map_err(|error| match error {
            Counted::Plan(error) => error,
            Counted::Engine(error) => self.misfit(&error).into(),
        })
    }

    /// What libraries might do for the ranks on these GPUs, of the greatest pass: on paper.
    ///
    /// *Errors*: as [`Plan::cuda_replica`].
    pub fn wanted(&self) -> Result<Wanted, CliError> {
        if self.config.kernels == Kernels::Own || self.config.precision == Precision::F32 {
            return Ok(Wanted::default());
        }
        let noted = || -> Result<Wanted, Counted> {
            let device = self.paper_device(&Gpu::on_paper(paper_gpu()))?;
            let model = self.gpu_model(&device, self.config.batch.micro, Blocks::Once)?;
            let replica =
                rehearsed(DeviceReplica::blank(device, model, self.optimizer(), self.config.seed)?)?;
            Ok(replica.device().wanted())
        };
        noted().map_err(|error| match error {
            Counted::Plan(error) => error,
            Counted::Engine(error) => self.misfit(&error).into(),
        })
    }

    /// A device on paper that computes as the ranks' do; the memory of a library is counted where one might be used.
    fn paper_device(&self, gpu: &Arc<Gpu>) -> Result<CudaDevice, EngineError> {
        let device = CudaDevice::new(gpu, self.config.precision)?;
        let least = std::env::var(LEAST).ok().and_then(|least| least.parse().ok());
        Ok(match self.config.kernels {
            Kernels::Auto => match least {
                Some(least) => device.noting(least),
                None => device,
            },
            Kernels::Own => device.with_libraries(&Libraries::default())?,
        })
    }

    fn counted_on_paper(&self, blocks: Blocks) -> Result<MemoryTable, Counted> {
        let gpu = Gpu::on_paper(paper_gpu());
        let device = self.paper_device(&gpu)?;
        let model = self.gpu_model(&device, self.config.batch.micro, blocks)?;
        let replica = DeviceReplica::blank(device, model, self.optimizer(), self.config.seed)?;
        let mut table = self.in_shards_on_gpu(replica.about());
        let gradient = replica.about().gradient_len();
        let beside = self.floats_beside(replica.about());
        let slots = (beside > 0).then(|| replica.device().floats(beside)).transpose()?;
        let mut replica = rehearsed(replica)?;
        let fullest = self.fullest(replica.about());
        if let Some((_, holding)) = &fullest {
            let moments = replica.prepare(holding)?;
            replica.adopt(moments, Step(0))?;
        }
        let kept = self.kept();
        let windows = replica.about().windows.is_some();
        if self.backend() != Backend::Nccl && !windows {
            assert!(replica.keep(kept.gradients), "there is room on paper");
        }
        if let Some((rank, holding)) = &fullest {
            // On paper nothing is finite, and the update itself takes no memory.
            let (lies, of) = match windows {
                true => {
                    let kept = self.needs_of(replica.about(), *rank, holding);
                    let sum = replica.lend_sum(kept.elements());
                    (Lies::Folded { kept, sum }, self.config.world.ranks as usize)
                }
                false => (Lies::Kept, 1),
            };
            replica.measure(
                Step(1),
                ReducedSum { lies, weight: 1.0, samples: 1 },
                UpdateShare { index: if windows { rank.index() } else { 0 }, of },
            )?;
        } else {
            assert!(replica.work_ahead(kept.losses), "there is room on paper");
            replica.update_kept(Step(1), 1.0, 1)?;
        }
        drop(slots);
        let named: u64 = table.total().0;
        let beside = 4 * beside as u64;
        let kept_beside = if windows { 0 } else { kept.gradients.max(1) - 1 };
        let more = 4 * (gradient * kept_beside) as u64;
        if beside > 0 {
            let what = if windows { "windows for NCCL" } else { "gradients for NCCL" };
            table.rows.push((what, Bytes(beside)));
        } else if more > 0 {
            table.rows.push(("more gradient buffers", Bytes(more)));
        }
        let counted = if beside > 0 { named + beside } else { named + more };
        let all = gpu.context().peak_memory();
        table.rows.push(("batches and partial results", Bytes(all.saturating_sub(counted))));
        Ok(table)
    }

    /// What the rank with most micro-batches keeps, where the host carries the gradients.
    fn kept(&self) -> Kept {
        let counts = step_counts(&self.batches);
        let ranks = self.config.world.ranks;
        let ranges = cut_evenly(self.batches.micro_batches(), ranks);
        let roots = || counts.iter().flat_map(|count| ranges.iter().flat_map(|range| roots(*range, *count)));
        let keeps = self.config.wire == Wire::F32;
        let gradients = roots().map(|root| Merger::buffers(root.len())).max().unwrap_or(1);
        let losses = if ranks == 1 && keeps && self.config.reduce == Reduce::Exact {
            roots().map(|root| root.len() as usize).max().unwrap_or(1)
        } else {
            1
        };
        Kept { gradients: if keeps { gradients } else { 1 }, losses }
    }
}

/// Why nothing could be counted.
enum Counted {
    Plan(CliError),
    Engine(EngineError),
}

impl From<CliError> for Counted {
    fn from(error: CliError) -> Self {
        Self::Plan(error)
    }
}

impl From<EngineError> for Counted {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}
