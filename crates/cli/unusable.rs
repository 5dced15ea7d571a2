//! A checkpoint that cannot be used, in words: damage is one thing, another version of dtrain another.
//!
//! It does not know who wanted to use it.

use crate::error::CliError;
use dtrain_checkpoint::{Damage, Fault, ManifestError};
use std::error::Error;
use std::path::Path;

/// The version of the format, in words, where that is all that is wrong.
fn other_version<'a>(damage: &'a (dyn Error + 'static)) -> Option<&'a ManifestError> {
    match damage.downcast_ref() {
        Some(Damage { fault: Fault::Manifest(version @ ManifestError::Version { .. }), .. }) => Some(version),
        _ => None,
    }
}

/// Whether its version is all that is wrong with a checkpoint.
#[must_use]
pub fn is_of_another_version(damage: &Damage) -> bool {
    other_version(damage).is_some()
}

/// Why a checkpoint cannot be used, as a list shows it.
#[must_use]
pub fn state(damage: &Damage) -> String {
    match other_version(damage) {
        Some(version) => format!("made by another version of dtrain: {version}"),
        None => format!("damaged: {damage}"),
    }
}

/// The note of a checkpoint in whose place an older one is used.
#[must_use]
pub fn passed_over(damage: &Damage) -> String {
    match other_version(damage) {
        Some(version) => {
            format!(
                "passed over checkpoint {}, made by another version of dtrain: {version}",
                damage.checkpoint
            )
        }
        None => format!("passed over a damaged checkpoint: {damage}"),
    }
}

/// The error of a checkpoint that is shown so and is needed.
#[must_use]
pub fn unusable(shown: &str, damage: &(dyn Error + 'static)) -> CliError {
    match other_version(damage) {
        Some(version) => {
            let error = CliError::usage(format!("another version of dtrain made {shown}: {version}"));
            error.hint("use that version, or train again with this one")
        }
        None => {
            let error = CliError::failed(format!("{shown} is damaged")).because(damage);
            error.hint("`dtrain checkpoint verify RUN` tells which checkpoints are whole")
        }
    }
}

/// The error of a run of whose checkpoints none can be used; none is there if none is damaged.
#[must_use]
pub fn none_usable(run: &Path, damaged: &[Damage]) -> CliError {
    let shown = run.display();
    let others = damaged.iter().filter(|damage| is_of_another_version(damage)).count();
    let (message, hint) = match others {
        0 => (format!("{shown} has no valid checkpoint to resume from"), "start a new run without --resume"),
        _ if others == damaged.len() => (
            format!("another version of dtrain made every checkpoint of {shown}"),
            "use that version, or start a new run without --resume",
        ),
        _ => (
            format!("{shown} has no checkpoint that this version of dtrain can use"),
            "use the version that made the whole ones, or start a new run without --resume",
        ),
    };
    damaged.iter().map(state_of).fold(CliError::usage(message), CliError::cause).hint(hint)
}

fn state_of(damage: &Damage) -> String {
    match other_version(damage) {
        Some(version) => format!("{}: {version}", damage.checkpoint),
        None => format!("damaged: {damage}"),
    }
}
