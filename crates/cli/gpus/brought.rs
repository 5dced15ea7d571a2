//! What the program says of itself that dtrain is a module of, where there is one: whose GPUs it computes on, and how dtrain alone is
//! started from it.
//!
//! It is said once, before anything is asked: a process is one program's. It does not know what is computed.

use crate::external::{BuiltFor, ExternalProgram};
use std::process::Command;
use std::sync::OnceLock;

static PROGRAM: OnceLock<&'static dyn ExternalProgram> = OnceLock::new();

/// Says that this process is this program's.
pub fn is_brought(program: &'static dyn ExternalProgram) {
    // A script may train one model after the other: what is asked here, all of them answer alike.
    let _ = PROGRAM.set(program);
}

/// What a program computes on, as far as it can be asked here.
#[derive(Clone, Copy, Debug)]
pub struct OfProgram {
    /// Whose GPUs.
    pub built_for: BuiltFor,
    /// Whether it can compute on those of this host.
    pub reaches: fn() -> Result<(), String>,
    /// Whether dtrain's own kernels can, which a state on GPUs takes.
    pub kernels: fn() -> Result<(), String>,
}

impl OfProgram {
    /// That of this process; one that computes on no GPU, where there is none.
    pub(super) fn here(kernels: fn() -> Result<(), String>) -> Self {
        let built_for = PROGRAM.get().map_or(BuiltFor::Cpus, |program| program.built_for());
        Self {
            built_for,
            reaches: || PROGRAM.get().map_or(Ok(()), |program| program.reaches_gpus()),
            kernels,
        }
    }
}

/// dtrain alone, in a process of its own, which is told what to do by this word and those that are put behind it.
///
/// *Errors*: nobody knows which program this is.
pub(super) fn child(word: &str) -> std::io::Result<Command> {
    let mut child = match PROGRAM.get().map(|program| program.dtrain_alone()) {
        Some(alone) => {
            let mut child = Command::new(alone.path);
            child.args(alone.arguments).envs(alone.environment);
            child
        }
        None => Command::new(std::env::current_exe()?),
    };
    child.arg(word);
    Ok(child)
}
