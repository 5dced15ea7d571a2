//! The `dtrain node` that runs on this host, as `/proc` shows it to a process beside it: in a container those that a cluster's agent starts there.
//!
//! It speaks to nobody: whoever may signal the process needs no other permission, and a process that hangs cannot keep an answer back.

use crate::error::CliError;
use dtrain_runtime::HANDLES_VARIABLE;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::{read, read_dir, read_to_string};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A process of dtrain that brings the ranks of this host.
#[derive(Debug)]
pub struct NodeProcess {
    /// Its number.
    pub pid: i32,
    handle: OwnedFd,
}

/// How often the end of a process is looked for.
const LOOK: Duration = Duration::from_millis(50);

impl NodeProcess {
    /// The one that is here, or the one that is meant where there are several.
    ///
    /// *Errors*: none, or too many; of kind failed.
    pub fn find(meant: Option<i32>) -> Result<Self, CliError> {
        let found = match meant {
            Some(pid) => vec![pid],
            None => {
                let of_system = |error: io::Error| CliError::failed("cannot read /proc").because(&error);
                processes().map_err(of_system)?.into_iter().filter(|pid| is_node(*pid)).collect()
            }
        };
        let pid = match found.as_slice() {
            [pid] => *pid,
            [] => {
                let none = CliError::failed("no `dtrain node` runs here");
                return Err(none.hint(
                    "in a container: start this in the one where it runs; --pid names any other process",
                ));
            }
            many => {
                let pids: Vec<String> = many.iter().map(ToString::to_string).collect();
                let message = format!("several of `dtrain node` run here: {}", pids.join(", "));
                return Err(CliError::failed(message).hint("--pid PID says which is meant"));
            }
        };
        let open = |pid| {
            Ok(pidfd_open(Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?, PidfdFlags::empty())?)
        };
        let handle = open(pid).map_err(|error: io::Error| {
            CliError::failed(format!("there is no process {pid}"))
                .because(&error)
                .hint("its number is wrong, or it has ended")
        })?;
        Ok(Self { pid, handle })
    }

    /// How many rank processes it has: none before it has joined a run, and after the last step.
    #[must_use]
    pub fn ranks(&self) -> usize {
        // Its own, or those of the process that holds them for it.
        let is_rank = |pid: &i32| {
            // In a container the process itself may be number 1.
            has_variable(*pid, HANDLES_VARIABLE)
                && parent(*pid).is_some_and(|near| near == self.pid || parent(near) == Some(self.pid))
        };
        processes().unwrap_or_default().iter().filter(|pid| is_rank(pid)).count()
    }

    /// Warns it, as Slurm does: it leaves after the step in hand, the first host with a checkpoint.
    ///
    /// *Errors*: it is not ours to signal.
    pub fn warn(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.handle, Signal::USR1)?)
    }

    /// Whether it has ended within `limit`; without one it is waited for as long as it takes. *Blocks*.
    #[must_use]
    pub fn ends_within(&self, limit: Option<Duration>) -> bool {
        let begun = Instant::now();
        // A zombie has ended.
        while stat(self.pid).is_some_and(|(state, _)| state != "Z" && state != "X") {
            if limit.is_some_and(|limit| begun.elapsed() >= limit) {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

fn processes() -> io::Result<Vec<i32>> {
    Ok(read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// State and parent.
fn stat(pid: i32) -> Option<(String, i32)> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn has_variable(pid: i32, name: &str) -> bool {
    let environment = read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let has =
        |variable: &[u8]| variable.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
    environment.split(|byte| *byte == 0).any(has)
}

fn parent(pid: i32) -> Option<i32> {
    stat(pid).map(|(_, parent)| parent)
}

/// Whether its second word is `node`, and its parent's is not: ranks have the words of their parent.
fn is_node(pid: i32) -> bool {
    let says_node = |pid: i32| {
        let words = read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        let program = words.next().unwrap_or_default();
        program.rsplit(|byte| *byte == b'/').next() == Some(b"dtrain") && words.next() == Some(b"node")
    };
    says_node(pid) && !parent(pid).is_some_and(says_node)
}
