//! `dtrain run`: starts any program on every device, as torchrun does. The work is done in [`crate::gang`].

use crate::arguments::{RunGang, RunRank};
use crate::error::CliError;
use crate::gang::{self, Gang};
use std::process::ExitCode;

/// Keeps the gang; its exit code is that of this command.
///
/// *Errors*: the process that watches the ranks could not be started, or was killed. *Blocks* for the whole run.
pub fn guard() -> Result<ExitCode, CliError> {
    gang::guard(std::env::args_os().skip(2))
}

/// Starts the ranks and watches them.
///
/// *Errors*: of the request (kind usage, nothing started), a rank failed, or somebody stopped it. *Blocks* for the
/// whole run.
pub fn gang(arguments: &RunGang) -> Result<(), CliError> {
    gang::supervise(&Gang::new(&arguments.run)?, arguments.guard)
}

/// Becomes the program.
///
/// *Errors*: it could not.
pub fn rank(arguments: &RunRank) -> Result<(), CliError> {
    Err(gang::become_rank(arguments.parent, &arguments.program))
}
