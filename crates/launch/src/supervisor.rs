//! The supervisor of a group: starts a life of it, looks at what came of it, and starts the next within the budget.

use crate::Launch;
use crate::cause::{Death, first_cause};
use crate::descendants::Swept;
use crate::environment::Start;
use crate::error::{LaunchError, Wrong};
use crate::life::{Ended, Neighbours, NoNeighbours, live};
use crate::link::{Link, Meeting};
use crate::message::{Down, End, Failure, How, Weight};
use crate::watch::{Seen, Watch};
use crate::{descendants, output, words};
use dtrain_protocol::ExitCause;
use dtrain_transport::free_port;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_child_subreaper, setsid};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Runs a group of processes to its end under the process `guard`, and says what people should hear meanwhile. *Blocks* for that long.
///
/// *Errors*: a rank failed and the budget is used up; somebody ended it; the system refused something. Nothing that was
/// started is left.
pub fn supervise(
    launch: &Launch,
    guard: i32,
    hosts: Option<Meeting>,
    say: &dyn Fn(&str),
) -> Result<(), LaunchError> {
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
    let mut supervisor = Supervisor { launch, say, logs, last_port: None };
    match hosts {
        Some(meeting) => supervisor.run_together(&mut watch, meeting),
        None => supervisor.run(&mut watch),
    }
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
    fn run(&mut self, watch: &mut Watch) -> Result<(), LaunchError> {
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
                return Err(not_started(what));
            }
            self.restart_or_fail(&ended, first, attempt, oom_kills().saturating_sub(kills_before))?;
        }
        unreachable!("a budget is finite")
    }

    fn live(&mut self, attempt: u32, watch: &mut Watch) -> io::Result<Ended> {
        let port = self.launch.master.port.map_or_else(|| free_port(self.last_port), Ok)?;
        self.last_port = Some(port);
        let start = Start { attempt, port, run_id: self.launch.run_id.clone() };
        let folder = self.folder(attempt)?;
        live(self.launch, &start, watch, folder.as_deref(), &mut NoNeighbours)
    }

    fn folder(&self, attempt: u32) -> io::Result<Option<PathBuf>> {
        let folder = self.logs.as_ref().map(|logs| logs.join(format!("attempt-{attempt}")));
        folder.as_ref().map(std::fs::create_dir).transpose()?;
        Ok(folder)
    }

    /// As [`Self::run`], with the other hosts: the first of them says when all start, and when it is over.
    fn run_together(&mut self, watch: &mut Watch, meeting: Meeting) -> Result<(), LaunchError> {
        let mut link = meeting.begin(self.launch)?;
        watch.hosts(link.bell()).map_err(|error| system(&error))?;
        (self.say)(&words::waiting(self.launch));
        loop {
            match link.next() {
                Some(Down::Start { attempt, port, run_id }) => {
                    let start = Start { attempt, port, run_id };
                    self.live_together(&start, watch, &mut link)?;
                }
                Some(Down::Tell(words)) => (self.say)(&words),
                Some(Down::Cut { what }) => (self.say)(&words::cut(self.launch, &what)),
                Some(Down::Refused { why, .. }) => {
                    return Err(LaunchError::usage(why)
                        .hint("the same command on every host, each with a --node-rank of its own"));
                }
                Some(Down::Finish(end)) => return finished(end),
                // Nothing runs.
                Some(Down::Stop) => {}
                None => self.wait(watch, &mut link)?,
            }
        }
    }

    /// Waits for other hosts where nothing runs here.
    fn wait(&self, watch: &mut Watch, link: &mut Link) -> Result<(), LaunchError> {
        for seen in watch.look(0, None).map_err(|error| system(&error))? {
            match seen {
                Seen::Stop(signal, _) => {
                    link.tell_of_signal(signal);
                    return Err(LaunchError::new(
                        Wrong::Interrupted,
                        format!("interrupted by {}", words::signal(signal)),
                    ));
                }
                Seen::Party => return Err(LaunchError::failed("the process that started this one is gone")),
                Seen::Child => descendants::reap(|_, _| {}),
                Seen::Hosts | Seen::Rank(_) | Seen::Pass(_) | Seen::Output => {}
            }
        }
        Ok(())
    }

    /// One life of the ranks, and its report to the first host.
    ///
    /// *Errors*: what ends this host alone.
    fn live_together(
        &mut self,
        start: &Start,
        watch: &mut Watch,
        link: &mut Link,
    ) -> Result<(), LaunchError> {
        let kills_before = oom_kills();
        link.begin_life(start.attempt);
        let folder = self.folder(start.attempt);
        let lived = folder.and_then(|folder| live(self.launch, start, watch, folder.as_deref(), link));
        let ended = match lived {
            Ok(ended) => ended,
            Err(error) => {
                let report = format!("cannot run the ranks on {}: {error}", crate::launch::host());
                let hint = "limits of processes or open files are shown by `ulimit -a`".to_owned();
                link.end_life(How::Failed(Failure { report, hint, weight: Weight::Own }));
                return Ok(());
            }
        };
        self.tell_swept(&ended.swept);
        if ended.abandoned {
            return Err(LaunchError::failed("the process that started this one is gone"));
        }
        let how = match first_cause(&ended.deaths) {
            _ if ended.interrupted.is_some() => How::Stopped,
            None if ended.stopped => How::Stopped,
            None => How::Well,
            Some(first) => {
                let oom_kills = oom_kills().saturating_sub(kills_before);
                let report = match words::not_started(&ended) {
                    Some(what) => format!("cannot start {what} on {}", crate::launch::host()),
                    None => words::failure(self.launch, &ended, first, oom_kills),
                };
                How::Failed(Failure {
                    report,
                    hint: words::hint(self.launch, first, oom_kills),
                    weight: weight(first),
                })
            }
        };
        link.end_life(how);
        Ok(())
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

fn not_started(what: &str) -> LaunchError {
    LaunchError::usage(format!("cannot start {what}"))
        .hint("a script needs a first line such as `#!/bin/sh`, or its interpreter before it")
}

/// How this command ends where the first host has said how the run did.
fn finished(end: End) -> Result<(), LaunchError> {
    match end {
        End::Well => Ok(()),
        End::Failed { report, hint } => Err(LaunchError::failed(report).hint(hint)),
        End::Interrupted { words } => {
            Err(LaunchError::new(Wrong::Interrupted, format!("interrupted by {words}")))
        }
    }
}

fn weight(first: &Death) -> Weight {
    match first.end {
        ExitCause::Signal(9) => Weight::Killed,
        _ if first.words.lost_peer => Weight::BlamesPeer,
        _ => Weight::Own,
    }
}

fn interrupted(ended: &Ended, signal: Signal) -> LaunchError {
    let name = words::signal(signal);
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
