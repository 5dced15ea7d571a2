//! The variables that a rank finds: those that torchrun sets, so that scripts written for it need no change.
//!
//! Two are left out on purpose: `TORCHELASTIC_ERROR_FILE` (the first cause is found from exits and output) and a value
//! of True for `TORCHELASTIC_USE_AGENT_STORE` (no store outlives the group: rank 0 opens it, on a fresh port).

use crate::Launch;

/// What differs from one start of the group to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Restarts so far.
    pub attempt: u32,
    /// Where rank 0 will listen.
    pub port: u16,
    /// The name of the run.
    pub run_id: String,
}

/// The variables of one rank. Those that the user may have set are only here when nobody has.
pub fn variables(launch: &Launch, start: &Start, local: u32) -> Vec<(&'static str, String)> {
    let rank = launch.rank(local).to_string();
    let world = launch.world().to_string();
    let mut all = vec![
        ("RANK", rank.clone()),
        ("LOCAL_RANK", local.to_string()),
        ("WORLD_SIZE", world.clone()),
        ("LOCAL_WORLD_SIZE", launch.processes.to_string()),
        ("GROUP_RANK", launch.hosts.this.to_string()),
        ("GROUP_WORLD_SIZE", launch.hosts.count.to_string()),
        ("ROLE_NAME", launch.role.clone()),
        ("ROLE_RANK", rank),
        ("ROLE_WORLD_SIZE", world),
        ("MASTER_ADDR", launch.master.address.clone()),
        ("MASTER_PORT", start.port.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", start.attempt.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", launch.restarts.to_string()),
        ("TORCHELASTIC_RUN_ID", start.run_id.clone()),
        ("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned()),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT".to_owned()),
    ];
    let mut unless_set = |name: &'static str, value: &str| {
        if std::env::var_os(name).is_none() {
            all.push((name, value.to_owned()));
        }
    };
    if launch.limits_threads() {
        unless_set("OMP_NUM_THREADS", "1");
    }
    unless_set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    // A rank writes to a pipe: without this Python would keep its lines until 8 KiB have come together.
    unless_set("PYTHONUNBUFFERED", "1");
    all
}
