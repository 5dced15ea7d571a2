//! A rank of `dtrain bench step`: the peers' model, and their one batch over and over.
//!
//! It does not know who measures it.

use crate::error::CliError;
use crate::fabric::HostFabric;
use crate::rank_profile::on_cpu;
use dtrain_collective::Reduce;
use dtrain_data::{DataError, Dataset, Feed, InputSpec, SampleSlot, SampleSpec, TargetSpec};
use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_engine::models::peer::{PeerData, Work, initialise};
use dtrain_engine::{Inputs, ModelReplica, Replica, Targets};
use dtrain_protocol::{CheckpointEvery, Schedule, Timeouts};
use dtrain_runtime::{ComputeParts, RankParts};
use dtrain_types::{BatchPlan, Seed, Step, Wire};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Of the peers and of dtrain alike.
pub const SEED: Seed = Seed(7);

/// What is measured, as its ranks are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    #[serde(with = "workload")]
    pub work: Work,
    pub ranks: u32,
    pub threads: u32,
    /// The peers' batches in a global batch.
    pub batches: u32,
    /// Micro-batches that each of them is cut into.
    pub micro_batches: u32,
    pub steps: u64,
    #[serde(with = "crate::serde_path")]
    pub run_dir: PathBuf,
}

/// Workloads by their names: the engine does not know that they travel.
mod workload {
    use super::Work;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(work: &Work, to: S) -> Result<S::Ok, S::Error> {
        work.name().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Work, D::Error> {
        let name = String::deserialize(from)?;
        super::work(&name).map_err(D::Error::custom)
    }
}

/// The workload of this name.
///
/// *Errors*: there is none.
pub fn work(name: &str) -> Result<Work, CliError> {
    let found = Work::ALL.into_iter().find(|work| work.name() == name);
    found.ok_or_else(|| CliError::usage(format!("there is no workload {name}")))
}

pub fn timeouts() -> Timeouts {
    Timeouts::derive(Duration::from_secs(1)).expect("a second is in range")
}

impl Measure {
    pub fn plan(&self) -> BatchPlan {
        let micro = self.work.batch() as u32 / self.micro_batches;
        let global = self.work.batch() as u32 * self.batches;
        BatchPlan::new(SEED, global.into(), global, micro).expect("the peers' batches are not empty")
    }

    pub fn schedule(&self) -> Schedule {
        Schedule {
            last: Step(self.steps),
            steps_per_epoch: 1,
            checkpoint: CheckpointEvery::Never,
            validation_micro_batches: 0,
            verify: 0,
        }
    }

    pub fn replica(&self) -> Result<ModelReplica<Cpu>, String> {
        let device = Cpu::new(CpuOptions { isa: Isa::best(), threads: self.threads as usize });
        let device = device.map_err(|error| error.to_string())?;
        let (plan, rows) = (self.plan(), self.plan().micro_batch() as usize);
        let model = self.work.model_in_groups(&device, rows, plan.micro_batches());
        let model = model.map_err(|error| error.to_string())?;
        let replica = ModelReplica::new(device, model, self.work.optimizer(), SEED);
        let mut replica = replica.map_err(|error| error.to_string())?;
        let mut state = replica.state().clone();
        initialise(&replica.about().layout, &mut state);
        replica.swap_state(&mut state).map_err(|error| error.to_string())?;
        Ok(replica)
    }
}

/// A rank of a benchmark.
///
/// *Errors*: a sentence for people.
pub fn rank(measure: &Measure, arena: Option<OwnedFd>) -> Result<RankParts, String> {
    let mut replica = measure.replica()?;
    let profile = on_cpu(&replica);
    let fabric = HostFabric::from_arena(arena.ok_or("a benchmark's ranks share an arena")?)?;
    if let Some(state) = fabric.state() {
        replica.share(Box::new(state));
    }
    let dataset = OneBatch { data: measure.work.data(), samples: measure.plan().samples() };
    let feed = Feed::new(Arc::new(dataset), measure.plan(), SEED).map_err(|error| error.to_string())?;
    let compute = ComputeParts {
        replica: Box::new(replica),
        feed,
        validation: None,
        workers: 0,
        schedule: measure.schedule(),
        mode: Reduce::Exact,
        wire: Wire::F32,
        bucket_bytes: None,
        run_dir: measure.run_dir.clone(),
        profile: None,
    };
    Ok(RankParts { compute, profile, timeouts: timeouts(), fabric: Box::new(fabric) })
}

/// The peers' one batch, over and over.
struct OneBatch {
    data: PeerData,
    samples: u64,
}

impl Dataset for OneBatch {
    fn len(&self) -> u64 {
        self.samples
    }

    fn spec(&self) -> SampleSpec {
        let batch = self.data.batch();
        let (rows, Targets::Classes(classes)) = (batch.rows, batch.targets) else {
            unreachable!("the peers' targets are classes")
        };
        let widest = classes.iter().max().map_or(1, |class| class + 1).max(10);
        match batch.inputs {
            Inputs::Values(values) => SampleSpec {
                input: InputSpec::Values { shape: vec![values.len() / rows] },
                target: TargetSpec::Class { classes: widest },
            },
            Inputs::Tokens(tokens) => SampleSpec {
                input: InputSpec::Tokens { length: tokens.len() / rows, vocabulary: 256 },
                target: TargetSpec::ClassPerToken { classes: 256 },
            },
        }
    }

    fn read(
        &self,
        index: u64,
        _: Option<&dtrain_types::Key>,
        sample: &mut SampleSlot<'_>,
    ) -> Result<(), DataError> {
        let batch = self.data.batch();
        let row = index as usize % batch.rows;
        let of = |len: usize| row * (len / batch.rows)..(row + 1) * (len / batch.rows);
        let Targets::Classes(classes) = batch.targets else { unreachable!("the peers' targets are classes") };
        match batch.inputs {
            Inputs::Values(values) => {
                sample.values().copy_from_slice(&values[of(values.len())]);
                sample.set_class(classes[row]);
            }
            Inputs::Tokens(tokens) => {
                sample.tokens().copy_from_slice(&tokens[of(tokens.len())]);
                sample.token_classes().copy_from_slice(&classes[of(classes.len())]);
            }
        }
        Ok(())
    }
}
