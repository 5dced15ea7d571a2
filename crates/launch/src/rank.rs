//! A rank before it is the program: this binary again, for as long as it takes to bind its life to its supervisor's.
//!
//! A process apart, because between fork and exec no safe code can run in the child of a process with threads.

use crate::LaunchError;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};

/// How a rank says that it could not become the program; the supervisor reads it in the rank's last line.
pub const NOT_STARTED: &str = "dtrain: cannot start ";
/// The exit code that goes with it, as shells have it.
pub const NOT_STARTED_CODE: i32 = 126;

/// Becomes the program. Returns only if it cannot, and then with what the system said.
pub fn become_rank(parent: i32, program: &[OsString]) -> LaunchError {
    if let Err(error) = bind_to(parent) {
        return LaunchError::failed("a rank could not be bound to its supervisor").because(&error);
    }
    let error = Command::new(&program[0]).args(&program[1..]).exec();
    eprintln!("{NOT_STARTED}{}: {error}", program[0].to_string_lossy());
    exit(NOT_STARTED_CODE);
}

/// Dies when the supervisor dies, and leaves its session: a terminal's signals come through it alone, and a signal to
/// the group of a rank reaches what the rank has started and nothing else. Standard input stays readable: a terminal
/// stops only background processes of its own session.
fn bind_to(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died between the fork and the line above; then no signal will ever come.
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err(io::Error::new(io::ErrorKind::BrokenPipe, "it is gone"));
    }
    setsid()?;
    Ok(())
}
