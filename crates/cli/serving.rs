//! A process that its parent made a rank, the keeper of ranks, or a child that looks at GPUs, serves as that: before the command line
//! is read.
//!
//! It does not know what a run is.

use crate::arguments::{Arguments, Command};
use crate::external::Brought;
use crate::gpus;
use crate::recipe::ConfigRecipe;
use dtrain_runtime::{inherited, keep_if_asked, serve};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Serves this process as a rank, or as the keeper of ranks, if its parent made it one.
#[must_use]
pub fn serve_if_rank(brought: Option<Brought>) -> Option<ExitCode> {
    if let Some(code) = serve_if_keeper() {
        return Some(code);
    }
    let served = match inherited() {
        Ok(None) => return None,
        Ok(Some(handles)) => serve(handles, &ConfigRecipe { threads: None, brought }),
        Err(error) => Err(error),
    };
    Some(match served {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            // Standard error is the supervisor's: it keeps the last lines of every rank for its report.
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    })
}

/// Serves this process, in which another program has started dtrain alone, as what its parent made it: the keeper of ranks, or what these
/// words of a command line say, the program's name first.
#[must_use]
pub fn serve_alone(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    crate::log::start();
    if let Some(code) = serve_if_keeper() {
        return code;
    }
    let served = match Arguments::from_words(words).map(|arguments| arguments.command) {
        Ok(Command::GpuProbe(asked)) => gpus::answer_test(&asked),
        Ok(Command::RoomProbe(asked)) => gpus::answer_room(&asked),
        // Nobody asks for anything else.
        Ok(_) | Err(_) => return ExitCode::from(2),
    };
    served.map_or_else(
        |error| {
            error.say();
            error.exit_code()
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Serves this process as the keeper of ranks, if its parent made it one.
fn serve_if_keeper() -> Option<ExitCode> {
    Some(match keep_if_asked()? {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "dtrain: the process that holds the ranks: {error}");
            ExitCode::FAILURE
        }
    })
}
