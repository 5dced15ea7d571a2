//! The library face: train data and a model of your own, with everything that the binary does around them.
//!
//! A program that calls [`train_own`] has the command line of `dtrain train`: overrides, `--resume`, `--json`. Its
//! ranks are the same program again.

use crate::arguments::{OwnArguments, Train};
use crate::commands;
use crate::own::Own;
use crate::session::serve_if_rank;
use std::process::ExitCode;

/// Trains `own` as the arguments of this process say. Call it first thing in `main` and return what it gives.
///
/// *Blocks* for the whole run. *Errors*: printed with a hint; the exit code is that of `dtrain train`.
#[must_use]
pub fn train_own(own: Own) -> ExitCode {
    crate::log::start();
    if let Some(code) = serve_if_rank(Some(own)) {
        return code;
    }
    let mut arguments: Train = match OwnArguments::read() {
        Ok(arguments) => arguments,
        // Help is an "error" of clap with exit code 0; the others have exit code 2, which is ours too.
        Err(error) => error.exit(),
    };
    let ours = ["data.kind=own".to_owned(), format!("data.name={}", own.name), "model.kind=own".to_owned()];
    arguments.settings.overrides.splice(0..0, ours);
    match commands::train::run(&arguments, Some(own), None) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("{}", error.render());
            error.exit_code()
        }
    }
}
