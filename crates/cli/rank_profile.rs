//! Who a rank is: its process, its host and its device, as the supervisor is told.

use dtrain_engine::ModelReplica;
use dtrain_engine::cpu::Cpu;
use dtrain_engine::fingerprint::fingerprint;
use dtrain_protocol::{Fingerprint, Profile};
use dtrain_runtime::host_name;

/// Who a rank on this host's CPU is.
#[must_use]
pub fn on_cpu(replica: &ModelReplica<Cpu>) -> Profile {
    profile_of(fingerprint(replica.device()), "cpu".into())
}

/// Who a rank on this device is.
#[must_use]
pub fn profile_of(fingerprint: Fingerprint, device: String) -> Profile {
    Profile {
        fingerprint,
        pid: std::process::id(),
        host: host_name(),
        device,
        address: None,
        sees_run_folder: true,
    }
}
