//! How a rank of the binary comes by its parts: the same configuration, the same choices, in its own process.
//!
//! A rank is given the text of the run's configuration and opens data and model for itself; nothing else is handed
//! down. Programs with a model of their own bring a recipe of their own, see `lib.rs`.

use crate::fabric::HostFabric;
use crate::nccl::{Carrier, Hosts, NcclFabric};
use crate::plan::{Own, Plan};
use crate::welcome::Welcome;
use dtrain_engine::Replica;
use dtrain_protocol::{Digest, Fingerprint, Profile, Timeouts};
use dtrain_runtime::{ComputeParts, Fabric, RankParts, Recipe, host_name};
use dtrain_types::MemberId;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Builds ranks from a configuration file's text.
pub struct ConfigRecipe {
    /// Ranks that share this process reach each other here; the processes of a host by the arena that they inherit.
    pub threads: Option<HostFabric>,
    /// Data and model of a program of one's own.
    pub own: Option<Own>,
}

impl Recipe for ConfigRecipe {
    fn rank(&self, config: &str, member: MemberId, arena: Option<OwnedFd>) -> Result<RankParts, String> {
        if crate::bench_step::is_for(config) {
            return crate::bench_step::rank(config, arena);
        }
        let welcome = Welcome::read(config)?;
        let plan = Plan::open(&welcome.config()?, self.own).map_err(|error| error.to_string())?;
        let replica = plan.replica().map_err(|error| error.to_string())?;
        let mut profile = profile(&replica);
        profile.sees_run_folder = welcome.sees_run_folder();
        let hosts = if welcome.hosts.is_some() { Hosts::Several } else { Hosts::One };
        let detect = plan.config.world.detect;
        // The library is this host's own, so every rank looks for it where it is.
        let carrier = Carrier::choose(&plan.config, hosts).map_err(|problem| problem.to_string())?;
        if let Carrier::Nccl(library) = carrier {
            let fabric = Box::new(NcclFabric::new(library, detect));
            return rank_parts(&plan, Box::new(replica), profile, welcome.run_dir, fabric);
        }
        let mut fabric = self.fabric(member, arena)?;
        if let Some(mesh) = welcome.hosts.and_then(|hosts| hosts.mesh) {
            let address;
            (fabric, address) = fabric.among_hosts(mesh, detect)?;
            profile.address = Some(address);
        }
        rank_parts(&plan, Box::new(replica), profile, welcome.run_dir, Box::new(fabric))
    }
}

impl ConfigRecipe {
    fn fabric(&self, member: MemberId, arena: Option<OwnedFd>) -> Result<HostFabric, String> {
        match (&self.threads, arena) {
            (Some(shared), _) => Ok(shared.for_member(member)),
            (None, Some(arena)) => HostFabric::from_arena(arena),
            (None, None) => Err("this rank was given no way to reach the others".into()),
        }
    }
}

/// A rank's parts around any replica.
///
/// *Errors*: a sentence for people.
pub fn rank_parts(
    plan: &Plan,
    replica: Box<dyn Replica>,
    profile: Profile,
    run_dir: PathBuf,
    fabric: Box<dyn Fabric>,
) -> Result<RankParts, String> {
    let timeouts = Timeouts::derive(plan.config.world.detect).map_err(|error| error.to_string())?;
    let compute = ComputeParts {
        replica,
        feed: plan.feed().map_err(|error| error.to_string())?,
        validation: plan.validation(),
        workers: plan.config.workers,
        schedule: plan.schedule(),
        mode: plan.mode(),
        run_dir,
    };
    Ok(RankParts { compute, profile, timeouts, fabric })
}

/// Who a rank on this host's CPU is.
#[must_use]
pub fn profile(replica: &dtrain_engine::ModelReplica<dtrain_engine::cpu::Cpu>) -> Profile {
    let fingerprint = dtrain_engine::fingerprint::fingerprint(replica.device());
    Profile {
        fingerprint: Fingerprint {
            isa: fingerprint.isa,
            self_test: Digest(fingerprint.self_test),
            kernel_revision: fingerprint.kernels,
        },
        pid: std::process::id(),
        host: host_name(),
        device: "cpu".into(),
        address: None,
        sees_run_folder: true,
    }
}
