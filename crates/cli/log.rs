//! The program's own log, on standard error: warnings unless `DTRAIN_LOG` or `--log` asks for more (`DTRAIN_LOG=debug`,
//! `--log nccl=debug`).
//!
//! Not what a run tells people: that is `report`. A rank's log lines reach the user through its supervisor; it is started
//! with the same arguments, so `--log` holds for it too.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts the log. Call it once, first thing.
pub fn start() {
    // A network that is away for a while is dtrain's to report, once; the socket would say it for every packet.
    let usual = "warn,quinn_udp=error";
    let base = std::env::var("DTRAIN_LOG").ok().filter(|text| EnvFilter::try_new(text).is_ok());
    let mut wanted = base.unwrap_or_else(|| usual.to_owned());
    // Before the command line is read: what is wrong with it is said by who reads it.
    if let Some(more) = asked(std::env::args_os().map(|word| word.to_string_lossy().into_owned()))
        .filter(|text| filter(text).is_ok())
    {
        wanted = format!("{wanted},{more}");
    }
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    let log = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(wanted)).with_writer(std::io::stderr);
    // A program that uses us as a library may have a log of its own already.
    // And a reader of it that goes away is no reason to stop: what cannot be said of that on standard error would be a panic.
    let _ = log.with_ansi(colours).without_time().with_target(false).log_internal_errors(false).try_init();
}

/// What a command line asks the log for.
fn asked(arguments: impl Iterator<Item = String>) -> Option<String> {
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        match argument.strip_prefix("--log") {
            // What comes behind it belongs to a program of the user's.
            None if argument == "--" => return None,
            Some("") => return arguments.next(),
            Some(value) => {
                if let Some(value) = value.strip_prefix('=') {
                    return Some(value.to_owned());
                }
            }
            None => {}
        }
    }
    None
}

/// Reads a filter, as `--log` takes it.
///
/// *Errors*: it is none, in words.
pub fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) if !text.trim().is_empty() => Ok(text.to_owned()),
        Ok(_) => Err("expected PART=LEVEL, such as nccl=debug".to_owned()),
        Err(error) => Err(format!("{error}; expected PART=LEVEL, such as nccl=debug")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<String> {
        asked(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn the_filter_is_found_wherever_it_stands_and_not_behind_the_arguments_of_another_program() {
        assert_eq!(of("dtrain train --log nccl=debug ranks=2").as_deref(), Some("nccl=debug"));
        assert_eq!(of("dtrain train ranks=2 --log=nccl=debug").as_deref(), Some("nccl=debug"));
        assert_eq!(of("dtrain run --log-dir logs -- x --log nccl=debug"), None);
        assert_eq!(of("dtrain train"), None);
    }

    #[test]
    fn a_level_that_does_not_exist_is_refused() {
        assert!(filter("nccl=debug").is_ok() && filter("debug").is_ok());
        assert!(filter("nccl=loud").is_err() && filter("").is_err());
    }
}
