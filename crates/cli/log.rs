//! The program's own log, on standard error: warnings unless `DTRAIN_LOG` asks for more (`DTRAIN_LOG=debug`).
//!
//! Not what a run tells people: that is `report`. A rank's log lines reach the user through its supervisor.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts the log. Call it once, first thing.
pub fn start() {
    // A network that is away for a while is dtrain's to report, once; the socket would say it for every packet.
    let usual = "warn,quinn_udp=error";
    let filter = EnvFilter::try_from_env("DTRAIN_LOG").unwrap_or_else(|_| EnvFilter::new(usual));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // A program that uses us as a library may have a log of its own already.
    let _ = log.without_time().with_target(false).try_init();
}
