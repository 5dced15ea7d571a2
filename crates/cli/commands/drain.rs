//! `dtrain ready` and `dtrain drain`: what a cluster asks of a host that trains, from a process beside `dtrain node`.

use super::print;
use crate::arguments::{Drain, Ready};
use crate::error::CliError;
use crate::node_process::NodeProcess;
use dtrain_types::counted;
use std::time::Duration;

/// Says whether this host has ranks in a run.
///
/// *Errors*: it has not, or nothing of it is here; of kind failed.
pub fn ready(arguments: &Ready) -> Result<(), CliError> {
    let node = NodeProcess::find(arguments.pid)?;
    match node.ranks() {
        0 => Err(CliError::failed(format!(
            "`dtrain node` (pid {}) has no rank: it waits to join, or has ended its part",
            node.pid
        ))),
        ranks => print(&format!("{} of `dtrain node` (pid {})\n", counted(ranks as u64, "rank"), node.pid)),
    }
}

/// Lets this host leave its run after the step in hand; the first host of several ends the run, with a checkpoint.
///
/// *Blocks* until its process has ended. *Errors*: nothing of it is here, or it takes longer than it may; of kind failed.
pub fn drain(arguments: &Drain) -> Result<(), CliError> {
    let node = NodeProcess::find(arguments.pid)?;
    node.warn().map_err(|error| {
        let message = format!("cannot signal `dtrain node` (pid {})", node.pid);
        CliError::failed(message).because(&error).hint("be the user who started it")
    })?;
    if node.ends_within(arguments.timeout.map(|seconds| Duration::from_secs(seconds.into()))) {
        return Ok(());
    }
    let waited = arguments.timeout.unwrap_or_default();
    Err(CliError::failed(format!("`dtrain node` (pid {}) has not ended within {waited} s", node.pid))
        .hint("it was told, and goes on with its step or its checkpoint; SIGTERM twice ends it at once"))
}
