//! The binary: an index of its commands.
//!
//! A rank is this program again: it finds its seat before the command line is read, and never gets here again.

use dtrain::arguments::{Arguments, Command};
use dtrain::{CliError, commands, session};
use std::process::ExitCode;

fn main() -> ExitCode {
    dtrain::log::start();
    if let Some(code) = session::serve_if_rank(None) {
        return code;
    }
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        // Help and version are "errors" of clap with exit code 0; the others have exit code 2, which is ours too.
        Err(error) => error.exit(),
    };
    match run(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("{}", error.render());
            error.exit_code()
        }
    }
}

fn run(command: &Command) -> Result<(), CliError> {
    match command {
        Command::Train(arguments) => commands::train::run(arguments, None),
        Command::Plan(arguments) => commands::plan::run(arguments),
        Command::Checkpoint(arguments) => commands::checkpoint::run(arguments),
        Command::Audit(arguments) => commands::audit::run(arguments),
        Command::Bench(arguments) => commands::bench::run(arguments),
    }
}
