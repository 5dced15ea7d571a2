//! Foreign libraries are opened in a child process, this program again: one that crashes or hangs ends the child, and the
//! report names it and goes on.
//!
//! The child says which file it is about to open, then what came of it, a JSON object a line. If it dies, the last file
//! that it named is the cause; the next child passes over that one.

use super::check::within;
use crate::arguments::DoctorProbe;
use crate::commands::print_json;
use crate::error::CliError;
use crate::gpus::oldest;
use dtrain_locate::{Environment, Finder, Finding, Library, Refusal, Refused};
use dtrain_telemetry::{Gpu, Gpus, Pair};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// More files of one library that kill whoever opens them are not looked at.
const MOST_DEADLY: usize = 8;

/// The GPUs of a machine, as a child tells of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Told {
    pub gpus: Vec<Gpu>,
    pub pairs: Vec<Pair>,
}

/// A line of a child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Opening(PathBuf),
    Finding(Box<Finding>),
    Gpus(Told),
    Failed(String),
}

/// Does what a child is there for: finds a library, or reads the GPUs through the NVML that it is given.
///
/// *Errors*: an argument that no parent gives, or nobody reads.
pub fn answer(asked: &DoctorProbe) -> Result<(), CliError> {
    // A child whose parent is killed while a library hangs is to leave nothing behind.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| CliError::failed("cannot follow the parent").because(&error))?;
    let tell = |line: Line| print_json(&json!(line));
    if let Some(path) = &asked.gpus {
        tell(Line::Opening(path.clone()))?;
        return tell(read_gpus(path).map_or_else(Line::Failed, Line::Gpus));
    }
    let library = asked.library.as_deref().and_then(Library::from_key);
    let library = library.ok_or_else(|| CliError::usage("there is no such library"))?;
    let avoided: Vec<Refused> = serde_json::from_str(&asked.avoid)
        .map_err(|error| CliError::usage("the list of files to avoid").because(&error))?;
    let finder = avoided.into_iter().fold(Finder::new(Environment::here()), Finder::avoiding);
    let finding = finder.find_telling(library, oldest(library).as_ref(), |path| {
        // If nobody reads any more, the last line fails too.
        let _ = tell(Line::Opening(path.to_owned()));
    });
    tell(Line::Finding(Box::new(finding)))
}

fn read_gpus(library: &Path) -> Result<Told, String> {
    let read = || {
        let all = Gpus::open(library)?;
        let gpus = (0..all.count()).map(|index| all.gpu(index)).collect::<Result<_, _>>()?;
        Ok(Told { gpus, pairs: all.pairs()? })
    };
    read().map_err(|error: dtrain_telemetry::GpuError| error.to_string())
}

/// Finds a library in a child, or in as many as it takes.
pub(super) fn find(library: Library, patience: Duration) -> Finding {
    let mut avoided: Vec<Refused> = Vec::new();
    loop {
        let avoid = json!(avoided).to_string();
        let Heard { line, opening, end } = hear(&["--library", library.key(), "--avoid", &avoid], patience);
        match (line, opening) {
            (Some(Line::Finding(finding)), _) => return *finding,
            (_, Some(path))
                if avoided.len() < MOST_DEADLY && !avoided.iter().any(|file| file.path == path) =>
            {
                avoided.push(Refused { path, why: Refusal::Deadly { how: end } });
            }
            // It died without a file to blame, or of too many.
            (_, path) => {
                let path = path.unwrap_or_else(|| PathBuf::from("the search"));
                avoided.push(Refused { path, why: Refusal::Deadly { how: end } });
                return Finding { library, found: None, refused: avoided, looked: Vec::new() };
            }
        }
    }
}

/// Reads the GPUs in a child.
///
/// *Errors*: a sentence.
pub(super) fn gpus(library: &Path, patience: Duration) -> Result<Told, String> {
    let path = library.to_str().ok_or("its path is not in UTF-8")?;
    match hear(&["--gpus", path], patience) {
        Heard { line: Some(Line::Gpus(told)), .. } => Ok(told),
        Heard { line: Some(Line::Failed(why)), .. } => Err(why),
        Heard { end, .. } => Err(format!("asking {path} ended the process: {end}")),
    }
}

/// What a child said.
struct Heard {
    /// Its last word, if it came to one.
    line: Option<Line>,
    /// The last file that it opened.
    opening: Option<PathBuf>,
    /// How it ended.
    end: String,
}

fn hear(arguments: &[&str], patience: Duration) -> Heard {
    let silent = |end: String| Heard { line: None, opening: None, end };
    let started = std::env::current_exe().and_then(|program| {
        // What a library writes to standard error is not our report.
        let mut child = Command::new(program);
        child.arg("doctor-probe").args(arguments).env_remove("NCCL_DEBUG");
        child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    });
    let mut child = match started {
        Ok(child) => child,
        Err(error) => return silent(format!("a child cannot be started: {error}")),
    };
    let output = child.stdout.take().expect("it was piped");
    let (sender, receiver) = std::sync::mpsc::channel();
    let reading = within(patience, move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // A library may write to standard output too.
            if let Ok(line) = serde_json::from_str::<Line>(&line) {
                let _ = sender.send(line);
            }
        }
    });
    let end = match reading {
        Some(()) => child.wait().map_or_else(|error| error.to_string(), how),
        None => {
            // An error means that it has ended after all.
            let _ = child.kill();
            let _ = child.wait();
            format!("no answer in {} s", patience.as_secs())
        }
    };
    let (mut line, mut opening) = (None, None);
    for heard in receiver.try_iter() {
        match heard {
            Line::Opening(path) => opening = Some(path),
            other => line = Some(other),
        }
    }
    Heard { line, opening, end }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => match signal {
            4 => "killed by signal 4 (SIGILL)".to_owned(),
            6 => "killed by signal 6 (SIGABRT)".to_owned(),
            7 => "killed by signal 7 (SIGBUS)".to_owned(),
            11 => "killed by signal 11 (SIGSEGV)".to_owned(),
            other => format!("killed by signal {other}"),
        },
        (None, code) => format!("exit code {}", code.unwrap_or(-1)),
    }
}
