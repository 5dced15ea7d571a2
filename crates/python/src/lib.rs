//! dtrain in Python: what the package `dtrain` (python/dtrain) calls.
//!
//! A rank is the user's script again, in which this module serves the rank, and calls back for the passes. It does not know
//! PyTorch: numbers go over as addresses of flat buffers, samples as their numbers.

mod lent;
mod program;
mod threads;

use program::PythonProgram;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// The extension module.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{alone, export, revision, settle, train};
}

/// Trains the model and the data of `program` as the words of a command line say, the script's name first.
///
/// `settings` are `key=value`, below those of the command line; `python` is the command that starts this script again. Gives the
/// exit code, and of a run that came to its end the summary, as JSON.
#[pyfunction]
fn train(
    py: Python<'_>,
    program: Py<PyAny>,
    settings: Vec<String>,
    words: Vec<OsString>,
    python: (OsString, Vec<OsString>),
) -> PyResult<(i32, Option<String>)> {
    // For the rest of this process: ranks and runs refer to it.
    let program: &'static PythonProgram = Box::leak(Box::new(PythonProgram::new(py, program, python)?));
    let ended = py.detach(|| dtrain::train_external(program, settings, words));
    Ok(match ended {
        Ok(summary) => (0, summary.and_then(|summary| serde_json::to_string(&summary).ok())),
        Err(code) => (exit_code(code), None),
    })
}

/// Holds the ranks of a run, or does what these words say, the program's name first, in a process that was started for that. Gives the
/// exit code.
#[pyfunction]
fn alone(py: Python<'_>, words: Vec<OsString>) -> i32 {
    py.detach(|| exit_code(dtrain::serving::serve_alone(words)))
}

/// Everything of the gradient from this element on is final: it may travel while the rest is computed. It counts on the thread that makes
/// the pass, and while that goes on; elsewhere nothing happens.
#[pyfunction]
fn settle(py: Python<'_>, from: usize) {
    py.detach(|| lent::settle(from));
}

/// Which version and revision this is.
#[pyfunction]
fn revision() -> &'static str {
    dtrain::arguments::VERSION
}

/// Writes parameters and running statistics of `RUN`, `RUN/best` or `RUN/CHECKPOINT` to a safetensors file, and gives the folder of the
/// run. Where no checkpoint is named it is the best one, or else the newest.
///
/// *Errors*: there is none, or it is damaged.
#[pyfunction]
fn export(py: Python<'_>, run: &str, out: PathBuf) -> PyResult<PathBuf> {
    py.detach(|| dtrain::export_parameters(run, &out))
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The number behind an exit code, which has no way to it but its own name for itself.
fn exit_code(code: std::process::ExitCode) -> i32 {
    (0..=255u8).find(|number| std::process::ExitCode::from(*number) == code).map_or(1, i32::from)
}
