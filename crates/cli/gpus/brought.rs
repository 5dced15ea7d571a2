//! What the program says of itself that dtrain is a module of, where there is one: how dtrain alone is started from it.
//!
//! It is said once, before anything is asked: a process is one program's. It does not know what is computed.

use crate::external::ExternalProgram;
use std::process::Command;
use std::sync::OnceLock;

static PROGRAM: OnceLock<&'static dyn ExternalProgram> = OnceLock::new();

/// Says that this process is this program's.
pub fn is_brought(program: &'static dyn ExternalProgram) {
    // A script may train one model after the other: what is asked here, all of them answer alike.
    let _ = PROGRAM.set(program);
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
