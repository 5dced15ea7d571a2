//! `dtrain run`: starts any program on every device, as torchrun does. The work is done in [`dtrain_launch`].

mod request;

use crate::arguments::{RunLauncher, RunRank};
use crate::error::{CliError, Kind};
use crate::hosts::forget_token;
use crate::report::Voice;
use dtrain_launch::{LaunchError, Wrong};
use std::process::ExitCode;

/// Keeps the processes; its exit code is that of this command.
///
/// *Errors*: the process that watches the ranks could not be started, or was killed. *Blocks* for the whole run.
pub fn guard() -> Result<ExitCode, CliError> {
    Ok(dtrain_launch::guard(std::env::args_os().skip(2))?)
}

/// Starts the ranks and watches them.
///
/// *Errors*: of the request (kind usage, nothing started), a rank failed, or somebody stopped it. *Blocks* for the
/// whole run.
pub fn launcher(arguments: &RunLauncher) -> Result<(), CliError> {
    let launch = request::read(&arguments.run)?;
    let hosts = request::meeting(&arguments.run, &launch)?;
    let (meet, leads) = (hosts.is_some(), launch.hosts.this == 0);
    let voice = if arguments.run.quiet { Voice::Quiet } else { Voice::here() };
    let ended = dtrain_launch::supervise(&launch, arguments.guard, hosts, &|text| voice.say(text));
    if meet && leads {
        forget_token();
    }
    Ok(ended?)
}

/// Becomes the program.
///
/// *Errors*: it could not.
pub fn rank(arguments: &RunRank) -> Result<(), CliError> {
    Err(dtrain_launch::become_rank(arguments.parent, &arguments.program).into())
}

impl From<LaunchError> for CliError {
    fn from(error: LaunchError) -> Self {
        let kind = match error.wrong {
            Wrong::Failed => Kind::Failed,
            Wrong::Usage => Kind::Usage,
            Wrong::Interrupted => Kind::Interrupted,
        };
        let mut told = Self::new(kind, error.message);
        if let Some(cause) = error.cause {
            told = told.cause(cause);
        }
        match error.hint {
            Some(hint) => told.hint(hint),
            None => told,
        }
    }
}
