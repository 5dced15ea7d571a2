//! The supervisor of a gang: starts a life of it, looks at what came of it, and starts the next within the budget.

use super::cause::{Death, first_cause};
use super::descendants::Swept;
use super::environment::Start;
use super::life::{Ended, live};
use super::request::Gang;
use super::watch::Watch;
use super::{output, port, words};
use crate::error::{CliError, Kind};
use crate::report::Voice;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_child_subreaper, setsid};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Runs a gang to its end under the process `guard`. *Blocks* for that long.
///
/// *Errors*: a rank failed and the budget is used up; somebody ended it; the system refused something. Nothing that was
/// started is left.
pub fn supervise(gang: &Gang, guard: i32) -> Result<(), CliError> {
    let begin = || -> io::Result<(Watch, OwnedFd)> {
        let pidfd = bind_to(guard)?;
        let watch = Watch::new()?;
        watch.party(&pidfd)?;
        Ok((watch, pidfd))
    };
    let (mut watch, _guard) = begin().map_err(|error| system(&error))?;
    let logs = gang.logs.as_deref().map(output::create_folder).transpose().map_err(|error| {
        let folder = gang.logs.as_deref().unwrap_or(std::path::Path::new("")).display();
        CliError::usage(format!("cannot make a folder for logs in {folder}"))
            .because(&error)
            .hint("--log-dir DIR needs a folder that you may write to")
    })?;
    let voice = Voice::new(gang.quiet);
    voice.say(&words::beginning(gang));
    if let Some(logs) = &logs {
        voice.say(&format!("  output of each rank: {}/attempt-N/rank-N.out and .err", logs.display()));
    }
    Supervisor { gang, voice, logs, last_port: None }.run(&mut watch)
}

/// Leaves the session of the guard, so that a signal to all of it does not hit both; inherits what falls; sees the guard.
fn bind_to(guard: i32) -> io::Result<OwnedFd> {
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the process that started this one is gone");
    let pid = Pid::from_raw(guard).ok_or_else(gone)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    // It may have died before the line above, and its pid be another's.
    if getppid() == Some(pid) { Ok(pidfd) } else { Err(gone()) }
}

struct Supervisor<'a> {
    gang: &'a Gang,
    voice: Voice,
    logs: Option<PathBuf>,
    last_port: Option<u16>,
}

impl Supervisor<'_> {
    fn run(mut self, watch: &mut Watch) -> Result<(), CliError> {
        for attempt in 0.. {
            let kills_before = oom_kills();
            let ended = self.live(attempt, watch).map_err(|error| system(&error))?;
            self.tell_swept(&ended.swept);
            if let Some(signal) = ended.interrupted {
                return Err(interrupted(&ended, signal));
            }
            if ended.abandoned {
                // Nobody hears it; the exit code is for completeness.
                return Err(CliError::failed("the process that started this one is gone"));
            }
            let Some(first) = first_cause(&ended.deaths) else { return Ok(()) };
            if let Some(what) = words::not_started(&ended) {
                return Err(CliError::usage(format!("cannot start {what}"))
                    .hint("a script needs a first line such as `#!/bin/sh`, or its interpreter before it"));
            }
            self.restart_or_fail(&ended, first, attempt, oom_kills().saturating_sub(kills_before))?;
        }
        unreachable!("a budget is finite")
    }

    fn live(&mut self, attempt: u32, watch: &mut Watch) -> io::Result<Ended> {
        let port = self.gang.master.port.map_or_else(|| port::free(self.last_port), Ok)?;
        self.last_port = Some(port);
        let folder = self.logs.as_ref().map(|logs| logs.join(format!("attempt-{attempt}")));
        folder.as_ref().map(std::fs::create_dir).transpose()?;
        live(self.gang, Start { attempt, port }, watch, folder.as_deref())
    }

    fn restart_or_fail(
        &self,
        ended: &Ended,
        first: &Death,
        attempt: u32,
        oom_kills: u64,
    ) -> Result<(), CliError> {
        let report = words::failure(self.gang, ended, first, oom_kills);
        if attempt == self.gang.restarts {
            return Err(CliError::failed(report).hint(words::hint(self.gang, first, oom_kills)));
        }
        self.voice.say(&format!("dtrain run: {report}"));
        let next = attempt + 1;
        let of = self.gang.restarts;
        self.voice.say(&format!("dtrain run: restart {next} of {of}: all {} ranks", self.gang.processes));
        Ok(())
    }

    fn tell_swept(&self, swept: &Swept) {
        if swept.killed > 0 {
            self.voice.say(&format!(
                "dtrain run: {} that the ranks had left behind: killed",
                if swept.killed == 1 {
                    "1 process".to_owned()
                } else {
                    format!("{} processes", swept.killed)
                }
            ));
        }
        if !swept.left.is_empty() {
            let names = swept.left.join(", ");
            self.voice
                .say(&format!("dtrain run: cannot end {names}: not ours to kill, or stuck in the kernel"));
        }
    }
}

fn interrupted(ended: &Ended, signal: Signal) -> CliError {
    let name = match signal {
        Signal::INT => "SIGINT",
        Signal::TERM => "SIGTERM",
        Signal::HUP => "SIGHUP",
        Signal::QUIT => "SIGQUIT",
        _ => "a signal",
    };
    let (well, all) = (ended.deaths.iter().filter(|death| death.is_success()).count(), ended.deaths.len());
    let message = format!("interrupted by {name}: {well} of {all} ranks exited with 0");
    CliError::new(Kind::Interrupted, message)
}

fn system(error: &io::Error) -> CliError {
    CliError::failed("cannot run the ranks")
        .because(error)
        .hint("limits of processes or open files are shown by `ulimit -a`")
}

/// How often the kernel has killed for want of memory since the machine started.
fn oom_kills() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
