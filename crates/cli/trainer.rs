//! The library face: train data and a model of your own, with everything that the binary does around them.
//!
//! A program that calls [`train_own`] has the command line of `dtrain train`: overrides, `--resume`, `--json`; and with `node`
//! in front that of `dtrain node`. Its ranks are the same program again.

use crate::arguments::{Node, OwnArguments, OwnCommand};
use crate::commands;
use crate::error::CliError;
use crate::external::{Brought, ExternalProgram};
use crate::gpus::is_brought;
use crate::own::Own;
use crate::serving::serve_if_rank;
use dtrain_telemetry::Summary;
use std::ffi::OsString;
use std::process::ExitCode;

/// Trains `own` as the arguments of this process say. Call it first thing in `main` and return what it gives.
///
/// *Blocks* for the whole run. *Errors*: printed with a hint; the exit code is that of `dtrain train`.
#[must_use]
pub fn train_own(own: Own) -> ExitCode {
    crate::log::start();
    let brought = Brought::Stages(own);
    if let Some(code) = serve_if_rank(Some(brought)) {
        return code;
    }
    let ours = ["data.kind=own".to_owned(), format!("data.name={}", own.name), "model.kind=own".to_owned()];
    match run(brought, ours, std::env::args_os()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(code) => code,
    }
}

/// Trains what another program brings, as the words of a command line say, the program's name first; `settings` are its own, over
/// which those of the command line win. Gives the summary of the run, if there was one.
///
/// In a rank it serves the run and ends in its exit code.
///
/// *Blocks* for the whole run. *Errors*: printed with a hint; the exit code is that of `dtrain train`.
pub fn train_external(
    program: &'static dyn ExternalProgram,
    settings: Vec<String>,
    words: Vec<OsString>,
) -> Result<Option<Summary>, ExitCode> {
    crate::log::start();
    let brought = Brought::External(program);
    if let Some(code) = serve_if_rank(Some(brought)) {
        return Err(code);
    }
    is_brought(program);
    let ours = ["data.kind=torch".to_owned(), format!("data.name={}", program.name())];
    run(brought, ours.into_iter().chain(settings), words.into_iter())
}

fn run(
    brought: Brought,
    settings: impl IntoIterator<Item = String>,
    words: impl Iterator<Item = OsString>,
) -> Result<Option<Summary>, ExitCode> {
    let mut command = match OwnArguments::from_words(words) {
        Ok(command) => command,
        // Help is an "error" of clap with exit code 0; the others have exit code 2, which is ours too.
        Err(error) => {
            let _ = error.print();
            return Err(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)));
        }
    };
    let (OwnCommand::Train(train) | OwnCommand::Node(Node { train, .. })) = &mut command;
    train.settings.base = settings.into_iter().collect();
    carry_out(&command, brought).map_err(|error| {
        error.say();
        error.exit_code()
    })
}

fn carry_out(command: &OwnCommand, brought: Brought) -> Result<Option<Summary>, CliError> {
    match command {
        OwnCommand::Train(arguments) => commands::train::run(arguments, Some(brought), None),
        OwnCommand::Node(arguments) => commands::node::run(arguments, Some(brought)).map(|_| None),
    }
}
