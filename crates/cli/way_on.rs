//! How a run that ended early goes on, in the words of a hint.

use crate::external::PROGRAM;
use dtrain_checkpoint::{FileStore, Store};
use dtrain_protocol::{Cause, ExitCause, Failure, What};
use std::path::Path;

/// The command that goes on with a run, if it has a checkpoint.
fn resume_command(run: &str) -> Option<String> {
    let any = FileStore::new(Path::new(run)).ids().is_ok_and(|ids| !ids.is_empty());
    let program = Path::new(run).join(PROGRAM).exists();
    let command = if program { "python YOUR-PROGRAM.py" } else { "dtrain train" };
    any.then(|| format!("{command} --resume {run}"))
}

/// How a run that ended early goes on.
pub fn way_on(run: &str) -> String {
    match resume_command(run) {
        Some(command) => format!("go on with `{command}`"),
        None => "there is no checkpoint yet: start again".to_owned(),
    }
}

/// What a person can do about a first cause.
pub fn hint_for(first: &Cause, run: &str) -> String {
    let way_on = way_on(run);
    match &first.what {
        What::Reported(Failure::NonFinite { .. }) => {
            let often = "a lower optimizer.lr or optimizer.clip_norm=1 often helps";
            // Going on with the same bits comes to the same end, and others make another run.
            let fork = |command| {
                format!("{often}; from the last good checkpoint: `{command} --fork optimizer.lr=...`")
            };
            resume_command(run).map_or(often.to_owned(), fork)
        }
        What::Reported(Failure::Data(_) | Failure::Setup(_)) => {
            format!("repair what it names; then {way_on}")
        }
        What::Reported(Failure::Program(_)) => format!("mend what the traceback names; then {way_on}"),
        What::Exited(ExitCause::Signal(9)) => {
            format!("somebody killed it, or the kernel did for want of memory (see `dmesg`); {way_on}")
        }
        What::Exited(ExitCause::Signal(7)) => {
            format!("a data file that was cut off while it was read does this; restore it, then {way_on}")
        }
        _ => way_on,
    }
}
