//! One file per command. Each takes its arguments and returns an error for `main` to print.

pub mod audit;
pub mod bench;
pub mod chat;
pub mod checkpoint;
pub mod doctor;
pub mod drain;
pub mod drill;
pub mod eval;
pub mod export;
pub mod generate;
pub mod help;
pub mod node;
pub mod plan;
pub mod predict;
pub mod run;
pub mod runs;
pub mod shell;
pub mod simulate;
pub mod status;
pub mod token;
pub mod tokenize;
pub mod track;
pub mod train;

use crate::error::CliError;
use std::io::{self, Write};

/// Writes lines to standard output. A reader that has gone away (`| head`) is not an error.
///
/// *Errors*: of the system.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::failed("cannot write to standard output").because(&error))
        }
        _ => Ok(()),
    }
}

/// Writes one JSON object as a line.
///
/// *Errors*: as [`print`].
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), CliError> {
    print(&format!("{value}\n"))
}
