//! The process that people start and signal: it keeps the supervisor, passes signals down and its exit code up.
//!
//! It does nothing else, so that it is hard to kill by accident, and it inherits what a killed supervisor leaves.

use crate::LaunchError;
use crate::descendants;
use crate::watch::{Seen, Watch};
use dtrain_protocol::ExitCause;
use rustix::process::{Pid, PidfdFlags, getpid, kill_process, pidfd_open, set_child_subreaper};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};

/// Runs `dtrain run-launcher` with these words and waits for its end. *Blocks* for the whole run.
///
/// *Errors*: of the system, or the supervisor was killed; then nothing that it had started is left.
pub fn guard(words: impl Iterator<Item = OsString>) -> Result<ExitCode, LaunchError> {
    let failed = |error: io::Error| {
        LaunchError::failed("cannot start the process that watches the ranks").because(&error)
    };
    set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
    let mut watch = Watch::new().map_err(failed)?;
    // The path of this very file, also when another one has taken its name meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("dtrain").arg("run-launcher").arg(getpid().to_string()).args(words);
    let mut child = command.spawn().map_err(failed)?;
    let pid = Pid::from_child(&child);
    let status = watch_child(&mut watch, pid).and_then(|()| child.wait()).map_err(failed)?;
    // A supervisor that came to its end leaves nothing; one that was killed, or has a bug, leaves all to us.
    let swept = descendants::sweep();
    match (status.code(), status.signal()) {
        (Some(code), _) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        (None, signal) => {
            let end = ExitCause::Signal(signal.unwrap_or_default());
            let message = format!("the process that watched the ranks (pid {}) was {end}", pid.as_raw_pid());
            Err(LaunchError::failed(message)
                .cause(format!(
                    "the ranks and what they had started were ended too ({} processes)",
                    swept.killed
                ))
                .hint("somebody killed it, or the kernel did for want of memory (see `dmesg`)"))
        }
    }
}

/// Passes signals on until the child ends. It is not waited for yet, so its pid stays its own.
fn watch_child(watch: &mut Watch, pid: Pid) -> io::Result<()> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    watch.party(&pidfd)?;
    loop {
        for seen in watch.look(1, None)? {
            match seen {
                Seen::Party => return Ok(()),
                Seen::Stop(signal, times) => (0..times).try_for_each(|_| kill_process(pid, signal))?,
                Seen::Pass(signal) => kill_process(pid, signal)?,
                Seen::Rank(_) | Seen::Child | Seen::Output | Seen::Hosts => {}
            }
        }
    }
}
