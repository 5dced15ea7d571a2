//! What the tests of the machines have in common: how long they wait, and what a rank says of itself.

use dtrain_protocol::{Digest, Fingerprint, Profile, Timeouts};
use std::time::Duration;

pub fn timeouts() -> Timeouts {
    Timeouts::derive(Duration::from_secs(1)).expect("in range")
}

pub fn profile() -> Profile {
    Profile {
        fingerprint: Fingerprint { isa: "scalar".into(), self_test: Digest([1; 32]), kernel_revision: 1 },
        pid: 1,
        host: "a".into(),
        device: "cpu".into(),
        address: None,
        sees_run_folder: true,
    }
}
