//! How a rank of the binary comes by its parts: the same configuration, the same choices, in its own process.
//!
//! A rank is given the run's configuration and opens data and model for itself; nothing else is handed
//! down. Programs with a model of their own bring a recipe of their own, see `lib.rs`.

use crate::blueprint::Blocks;
use crate::config::Redundancy;
use crate::external::{Brought, ExternalProgram, Purpose};
use crate::fabric::HostFabric;
use crate::gpus::{ByLibraries, open_gpu};
use crate::nccl::{ChosenBackend, NcclFabric};
use crate::plan::{ExternalBuilt, Plan};
use crate::rank_profile::{self, profile_of};
use crate::rank_setup::RunSetup;
use dtrain_collective::Geometry;
use dtrain_cuda::{CudaDevice, Precision};
use dtrain_engine::{DeviceReplica, Replica, device_fingerprint};
use dtrain_protocol::{Profile, RankSetup};
use dtrain_runtime::{ComputeParts, Fabric, RankParts, Recipe};
use dtrain_types::MemberId;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;

/// Builds ranks from a configuration file's text.
pub struct ConfigRecipe {
    /// Ranks that share this process reach each other here; the processes of a host by the arena that they inherit.
    pub threads: Option<HostFabric>,
    /// Data and model of a program of one's own.
    pub brought: Option<Brought>,
}

impl Recipe for ConfigRecipe {
    fn rank(&self, setup: &RankSetup, member: MemberId, arena: Option<OwnedFd>) -> Result<RankParts, String> {
        let run = RunSetup::read(setup)?;
        let plan = Plan::open(&run.config()?, self.brought).map_err(|error| error.to_string())?;
        let mut plan = plan.with_frozen(run.frozen_source());
        // The ranks of one host were told; on several each host has its own GPUs.
        plan.choose_offload(run.gpus.as_ref()).map_err(|problem| problem.to_string())?;
        let detect = plan.config.world.detect;
        // The library is this host's own, so every rank looks for it where it is.
        let backend =
            ChosenBackend::choose(&plan.told_places(&plan.config), run.host_count(), run.gpus.as_ref());
        let (backend, _) = backend.map_err(|problem| problem.to_string())?;
        let fabric = match &backend {
            ChosenBackend::Host => Some(self.fabric(member, arena)?),
            ChosenBackend::Nccl(_) => None,
        };
        // The members of a host have numbers in a row, wherever it begins.
        let ranks = plan.config.world.ranks;
        let gpu = run.gpus.as_ref().map(|list| list.of_rank(member.0 % ranks, ranks));
        let BuiltReplica { replica, mut profile, over_nccl } = match (plan.external(), gpu) {
            (Some(program), Some(gpu)) if plan.keeps_on_gpus() => {
                on_gpu(gpu, || external_on_gpu(&plan, program, gpu, (backend, &run)))?
            }
            (Some(program), gpu) => external(&plan, program, gpu, &run, fabric.as_ref())?,
            // Where it would be NCCL, the choice was an error.
            (None, None) => on_cpu(&plan, fabric.as_ref())?,
            (None, Some(gpu)) => on_gpu(gpu, || stages_on_gpu(&plan, gpu, backend, &run.by_libraries))?,
        };
        profile.sees_run_folder = run.sees_run_folder();
        if let Some(fabric) = over_nccl {
            return rank_parts(&plan, replica, profile, &run, fabric);
        }
        let mut fabric = fabric.ok_or(NO_ROUTE)?;
        if let Some(mesh) = run.hosts.as_ref().and_then(|hosts| hosts.mesh) {
            let address;
            (fabric, address) = fabric.among_hosts(mesh, detect)?;
            profile.address = Some(address);
        }
        rank_parts(&plan, replica, profile, &run, Box::new(fabric))
    }
}

impl ConfigRecipe {
    fn fabric(&self, member: MemberId, arena: Option<OwnedFd>) -> Result<HostFabric, String> {
        match (&self.threads, arena) {
            (Some(shared), _) => Ok(shared.for_member(member)),
            (None, Some(arena)) => HostFabric::from_arena(arena),
            (None, None) => Err(NO_ROUTE.into()),
        }
    }
}

const NO_ROUTE: &str = "this rank was given no way to reach the others";

/// A rank's parts around any replica.
///
/// *Errors*: a sentence for people.
pub fn rank_parts(
    plan: &Plan,
    replica: Box<dyn Replica>,
    profile: Profile,
    run: &RunSetup,
    fabric: Box<dyn Fabric>,
) -> Result<RankParts, String> {
    let timeouts = plan.config.world.timeouts(run.host_count()).map_err(|error| error.to_string())?;
    let compute = ComputeParts {
        replica,
        feed: plan.feed().map_err(|error| error.to_string())?,
        validation: plan.validation(),
        workers: plan.config.workers,
        schedule: plan.schedule(),
        redundancy: plan.config.world.redundancy.map(Redundancy::count),
        mode: plan.config.reduce,
        wire: plan.config.wire,
        bucket_bytes: plan.config.world.bucket_bytes.map(|bytes| bytes as usize),
        run_dir: run.run_dir.clone(),
        // What is written down must find its way to the others' parts.
        profile: plan.config.profile.filter(|_| profile.sees_run_folder),
    };
    Ok(RankParts { compute, profile, timeouts, fabric })
}

/// What the fingerprint of a GPU begins with.
pub const CUDA: &str = "cuda:";

/// A replica on its device, who its rank is, and its fabric if that is NCCL.
struct BuiltReplica {
    replica: Box<dyn Replica>,
    profile: Profile,
    over_nccl: Option<Box<dyn Fabric>>,
}

fn on_cpu(plan: &Plan, fabric: Option<&HostFabric>) -> Result<BuiltReplica, String> {
    let mut replica = plan.replica().map_err(|error| error.to_string())?;
    if let Some(state) = fabric.and_then(HostFabric::state) {
        replica.share(Box::new(state));
    }
    Ok(BuiltReplica { profile: rank_profile::on_cpu(&replica), replica: Box::new(replica), over_nccl: None })
}

/// A replica whose passes another program makes, on the CPU or on this GPU: its state is the host's.
fn external(
    plan: &Plan,
    program: &'static dyn ExternalProgram,
    gpu: Option<u32>,
    run: &RunSetup,
    fabric: Option<&HostFabric>,
) -> Result<BuiltReplica, String> {
    let built = plan.external_replica(program, Purpose::Training, gpu).map_err(|error| error.to_string())?;
    let ExternalBuilt { mut replica, fingerprint, device, agreement } = built;
    run.external.as_ref().map_or(Ok(()), |expected| expected.check(&agreement))?;
    if let Some(state) = fabric.and_then(HostFabric::state).filter(|_| replica.may_share()) {
        replica.share(Box::new(state));
    }
    Ok(BuiltReplica { replica: Box::new(replica), profile: profile_of(fingerprint, device), over_nccl: None })
}

/// What `build` makes on the GPU of this number.
///
/// *Errors*: also what the device fails in, which its operations tell by a panic.
fn on_gpu(number: u32, build: impl FnOnce() -> Result<BuiltReplica, String>) -> Result<BuiltReplica, String> {
    let made = std::panic::catch_unwind(AssertUnwindSafe(build));
    made.unwrap_or_else(|panic| match panic.downcast::<String>() {
        Ok(words) => Err(format!("cuda:{number}: {words}")),
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// A replica whose passes another program makes on the GPU of this number, where its state is.
fn external_on_gpu(
    plan: &Plan,
    program: &'static dyn ExternalProgram,
    number: u32,
    (backend, run): (ChosenBackend, &RunSetup),
) -> Result<BuiltReplica, String> {
    let gpu = open_gpu(number).map_err(|error| format!("cuda:{number}: {error}"))?;
    let built = plan.external_on_gpu(program, (number, &gpu)).map_err(|error| error.to_string())?;
    let ExternalBuilt { replica, fingerprint, device, agreement } = built;
    run.external.as_ref().map_or(Ok(()), |expected| expected.check(&agreement))?;
    let over_nccl = over_nccl(plan, backend, &replica).map_err(|error| format!("cuda:{number}: {error}"))?;
    Ok(BuiltReplica { replica: Box::new(replica), profile: profile_of(fingerprint, device), over_nccl })
}

/// The fabric of a replica on a GPU, if gradients go over NCCL.
fn over_nccl(
    plan: &Plan,
    backend: ChosenBackend,
    replica: &DeviceReplica<CudaDevice>,
) -> Result<Option<Box<dyn Fabric>>, String> {
    let ChosenBackend::Nccl(library) = backend else { return Ok(None) };
    let (computes, detect, about) = (replica.device().stream(), plan.config.world.detect, replica.about());
    // Ranks that exchange windows have no sum made: one slot is all that it takes.
    let (slots, cuts) = match about.windows {
        Some(_) => (Geometry::without_sums(about.slot_len(plan.batches.micro_batches())), Vec::new()),
        None => (plan.slots(about.gradient_len()), plan.cuts(about)),
    };
    let fabric = NcclFabric::new(library, detect, computes, slots).map_err(|error| error.to_string())?;
    Ok(Some(Box::new(fabric.cut_at(cuts))))
}

/// A replica made of stages on the GPU of this number.
fn stages_on_gpu(
    plan: &Plan,
    number: u32,
    backend: ChosenBackend,
    by_libraries: &ByLibraries,
) -> Result<BuiltReplica, String> {
    let fail = |error: String| format!("cuda:{number}: {error}");
    let gpu = open_gpu(number).map_err(fail)?;
    let about = gpu.context().about();
    // One word, as those of a CPU.
    let rounds = match plan.config.precision {
        Precision::F32 => "",
        Precision::Tf32 => ":tf32",
        Precision::Bf16 => ":bf16",
        Precision::F16 => ":f16",
    };
    let by = by_libraries.word().map_or(String::new(), |word| format!(":{word}"));
    let name = format!("{CUDA}{}:{}{rounds}{by}", about.architecture(), about.name.replace(' ', "-"));
    let open = || Ok(CudaDevice::new(&gpu, plan.config.precision)?);
    // Its models are gone before the replica takes what memory there is.
    let fingerprint = device_fingerprint(open, name, dtrain_cuda::kernels::revision());
    let fingerprint = fingerprint.map_err(|error| error.to_string())?;
    // The models of the test are no part of the run.
    gpu.context().forget_peak();
    let libraries = by_libraries.open(&gpu).map_err(|error| fail(error.to_string()))?;
    let (replica, blocks) = plan.cuda_replica(&gpu, &libraries).map_err(|error| error.to_string())?;
    let over_nccl = over_nccl(plan, backend, &replica).map_err(fail)?;
    let note = if blocks == Blocks::Twice { ", blocks computed twice" } else { "" };
    let profile = profile_of(fingerprint, format!("cuda:{number} {}{note}", about.name));
    Ok(BuiltReplica { replica: Box::new(replica), profile, over_nccl })
}
