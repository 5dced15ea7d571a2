//! The binary: an index of its commands.
//!
//! A rank is this program again: it finds its handles before the command line is read, and never gets here again.

use dtrain::arguments::{Arguments, Command};
use dtrain::{CliError, commands, gpus, serving};
use std::process::ExitCode;

fn main() -> ExitCode {
    dtrain::log::start();
    if let Some(code) = serving::serve_if_rank(None) {
        return code;
    }
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        // Help and version are "errors" of clap with exit code 0; the others have exit code 2, which is ours too.
        Err(error) => error.exit(),
    };
    match run(&arguments.command) {
        Ok(code) => code,
        Err(error) => {
            error.say();
            error.exit_code()
        }
    }
}

fn run(command: &Command) -> Result<ExitCode, CliError> {
    match command {
        // The process below has said what went wrong; its exit code is ours.
        Command::Run(_) => return commands::run::guard(),
        Command::RunLauncher(arguments) => commands::run::launcher(arguments),
        Command::RunRank(arguments) => commands::run::rank(arguments),
        Command::Train(arguments) => commands::train::run(arguments, None, None).map(drop),
        // A host ends with the exit code of its run.
        Command::Node(arguments) => return commands::node::run(arguments, None),
        Command::Ready(arguments) => commands::drain::ready(arguments),
        Command::Drain(arguments) => commands::drain::drain(arguments),
        Command::Token(arguments) => commands::token::run(arguments),
        Command::Runs(arguments) => commands::runs::run(arguments),
        Command::Status(arguments) => commands::status::run(arguments),
        Command::Track(arguments) => commands::track::run(arguments),
        Command::Eval(arguments) => commands::eval::run(arguments),
        Command::Export(arguments) => commands::export::run(arguments),
        Command::Predict(arguments) => commands::predict::run(arguments),
        Command::Generate(arguments) => commands::generate::run(arguments),
        Command::Chat(arguments) => commands::chat::run(arguments),
        Command::Tokenize(arguments) => commands::tokenize::run(arguments),
        Command::Plan(arguments) => commands::plan::run(arguments),
        Command::Checkpoint(arguments) => commands::checkpoint::run(arguments),
        Command::Audit(arguments) => commands::audit::run(arguments),
        // A promise that did not hold is no error: the table says so, and the exit code.
        Command::Drill(arguments) => return commands::drill::run(arguments),
        Command::Doctor(arguments) => commands::doctor::run(arguments),
        Command::DoctorProbe(arguments) => commands::doctor::probe(arguments),
        Command::RoomProbe(arguments) => gpus::answer_room(arguments),
        Command::GpuProbe(arguments) => gpus::answer_test(arguments),
        Command::Bench(arguments) => commands::bench::run(arguments),
        Command::BenchRank(arguments) => commands::bench::rank(arguments),
        Command::Simulate(arguments) => commands::simulate::run(arguments),
        Command::Help(arguments) => commands::help::run(arguments),
        Command::Completions(arguments) => commands::shell::completions(arguments),
        Command::Man(arguments) => commands::shell::man(arguments),
    }
    .map(|()| ExitCode::SUCCESS)
}
