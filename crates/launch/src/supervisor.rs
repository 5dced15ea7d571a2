//! The supervisor of a group: starts a life of it, looks at what came of it, and starts the next within the budget.

use crate::Launch;
use crate::cause::{Death, first_cause};
use crate::descendants::Swept;
use crate::environment::Start;
use crate::error::{LaunchError, Wrong};
use crate::life::{Ended, live};
use crate::watch::Watch;
use crate::{output, port, words};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_child_subreaper, setsid};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Runs a group of processes to its end under the process `guard`, and says what people should hear meanwhile. *Blocks* for that long.
///
/// *Errors*: a rank failed and the budget is used up; somebody ended it; the system refused something. Nothing that was
/// started is left.
pub fn supervise(launch: &Launch, guard: i32, say: &dyn Fn(&str)) -> Result<(), LaunchError> {
    let begin = || -> io::Result<(Watch, OwnedFd)> {
        let pidfd = bind_to(guard)?;
        let watch = Watch::new()?;
        watch.party(&pidfd)?;
        Ok((watch, pidfd))
    };
    let (mut watch, _guard) = begin().map_err(|error| system(&error))?;
    let logs = launch.logs.as_deref().map(output::create_folder).transpose().map_err(|error| {
        let folder = launch.logs.as_deref().unwrap_or(std::path::Path::new("")).display();
        LaunchError::usage(format!("cannot make a folder for logs in {folder}"))
            .because(&error)
            .hint("--log-dir DIR needs a folder that you may write to")
    })?;
    say(&words::beginning(launch));
    if let Some(logs) = &logs {
        say(&format!("  output of each rank: {}/attempt-N/rank-N.out and .err", logs.display()));
    }
    Supervisor { launch, say, logs, last_port: None }.run(&mut watch)
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
    launch: &'a Launch,
    say: &'a dyn Fn(&str),
    logs: Option<PathBuf>,
    last_port: Option<u16>,
}

impl Supervisor<'_> {
    fn run(mut self, watch: &mut Watch) -> Result<(), LaunchError> {
        for attempt in 0.. {
            let kills_before = oom_kills();
            let ended = self.live(attempt, watch).map_err(|error| system(&error))?;
            self.tell_swept(&ended.swept);
            if let Some(signal) = ended.interrupted {
                return Err(interrupted(&ended, signal));
            }
            if ended.abandoned {
                // Nobody hears it; the exit code is for completeness.
                return Err(LaunchError::failed("the process that started this one is gone"));
            }
            let Some(first) = first_cause(&ended.deaths) else { return Ok(()) };
            if let Some(what) = words::not_started(&ended) {
                return Err(LaunchError::usage(format!("cannot start {what}"))
                    .hint("a script needs a first line such as `#!/bin/sh`, or its interpreter before it"));
            }
            self.restart_or_fail(&ended, first, attempt, oom_kills().saturating_sub(kills_before))?;
        }
        unreachable!("a budget is finite")
    }

    fn live(&mut self, attempt: u32, watch: &mut Watch) -> io::Result<Ended> {
        let port = self.launch.master.port.map_or_else(|| port::free(self.last_port), Ok)?;
        self.last_port = Some(port);
        let folder = self.logs.as_ref().map(|logs| logs.join(format!("attempt-{attempt}")));
        folder.as_ref().map(std::fs::create_dir).transpose()?;
        live(self.launch, Start { attempt, port }, watch, folder.as_deref())
    }

    fn restart_or_fail(
        &self,
        ended: &Ended,
        first: &Death,
        attempt: u32,
        oom_kills: u64,
    ) -> Result<(), LaunchError> {
        let report = words::failure(self.launch, ended, first, oom_kills);
        if attempt == self.launch.restarts {
            return Err(LaunchError::failed(report).hint(words::hint(self.launch, first, oom_kills)));
        }
        (self.say)(&format!("dtrain run: {report}"));
        let next = attempt + 1;
        let of = self.launch.restarts;
        let which = match self.launch.processes {
            1 => "its rank".to_owned(),
            all => format!("all {all} ranks"),
        };
        (self.say)(&format!("dtrain run: restart {next} of {of}: {which}"));
        Ok(())
    }

    fn tell_swept(&self, swept: &Swept) {
        if swept.killed > 0 {
            (self.say)(&format!(
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
            (self.say)(&format!("dtrain run: cannot end {names}: not ours to kill, or stuck in the kernel"));
        }
    }
}

fn interrupted(ended: &Ended, signal: Signal) -> LaunchError {
    let name = match signal {
        Signal::INT => "SIGINT",
        Signal::TERM => "SIGTERM",
        Signal::HUP => "SIGHUP",
        Signal::QUIT => "SIGQUIT",
        _ => "a signal",
    };
    let (well, all) = (ended.deaths.iter().filter(|death| death.is_success()).count(), ended.deaths.len());
    let ranks = if all == 1 { "rank" } else { "ranks" };
    let message = format!("interrupted by {name}: {well} of {all} {ranks} exited with 0");
    LaunchError::new(Wrong::Interrupted, message)
}

fn system(error: &io::Error) -> LaunchError {
    LaunchError::failed("cannot run the ranks")
        .because(error)
        .hint("limits of processes or open files are shown by `ulimit -a`")
}

/// How often the kernel has killed for want of memory since the machine started.
fn oom_kills() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
