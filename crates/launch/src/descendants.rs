//! All that stems from this process, found and killed: what ranks started and left behind.
//!
//! This process is a child subreaper: whoever loses its parent becomes its child, so a walk from here finds all of them,
//! also those with a session of their own.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, pidfd_open, pidfd_send_signal, wait,
};
use rustix::time::Timespec;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long one round waits for those it killed.
const ROUND: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// A process that SIGKILL does not end so long is stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process as `/proc/PID/stat` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    name: String,
    state: char,
    parent: i32,
    /// Clock ticks after boot; with the pid it is one process for ever.
    started: u64,
}

/// What became of those that were left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many were killed.
    pub killed: usize,
    /// Those that could not be, as people know them.
    pub left: Vec<String>,
}

/// Takes in children that ended; `seen` gets each. Strangers that fell to us are among them.
pub fn reap(mut seen: impl FnMut(Pid, WaitStatus)) {
    // "No child" ends the loop as "none has ended" does.
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        seen(pid, status);
    }
}

/// Kills everything that stems from this process, and waits until it is gone. *Blocks* for that long, at most 10 s.
pub fn sweep() -> Swept {
    let mut killed = BTreeSet::new();
    let mut refused = BTreeSet::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        reap(|_, _| {});
        let found = all();
        let mut living: BTreeMap<i32, &Process> =
            below(getpid().as_raw_pid(), &found).into_iter().filter(|(_, p)| p.state != 'Z').collect();
        living.retain(|pid, process| !refused.contains(&(*pid, process.started)));
        // A program that forks while it is swept has children that this round has not seen: the next one has.
        if living.is_empty() || Instant::now() > deadline {
            let name = |(pid, process): (i32, &Process)| format!("{} (pid {pid})", process.name);
            let stuck = living.into_iter().map(name);
            let not_ours = refused.iter().map(|(pid, _): &(i32, u64)| format!("pid {pid}"));
            return Swept { killed: killed.len(), left: not_ours.chain(stuck).collect() };
        }
        let mut dying = Vec::new();
        for (pid, process) in living {
            match kill(pid, process.started) {
                Ok(pidfd) => {
                    killed.insert((pid, process.started));
                    dying.push(pidfd);
                }
                Err(Errno::PERM) => drop(refused.insert((pid, process.started))),
                // It has ended meanwhile.
                Err(_) => {}
            }
        }
        for pidfd in &dying {
            let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&ROUND));
        }
    }
}

/// Kills this process and no other that got its pid meanwhile.
fn kill(pid: i32, started: u64) -> Result<OwnedFd, Errno> {
    let pidfd = pidfd_open(Pid::from_raw(pid).ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
    // From here on the descriptor names one process; whether it is the one that was found is asked now.
    match read(pid) {
        Some(process) if process.started == started => pidfd_send_signal(&pidfd, Signal::KILL)?,
        _ => return Err(Errno::SRCH),
    }
    Ok(pidfd)
}

fn read(pid: i32) -> Option<Process> {
    parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// *Source*: proc_pid_stat(5). The name may hold any byte, so the fields are counted from its last parenthesis.
fn parse(stat: &[u8]) -> Option<Process> {
    let text = String::from_utf8_lossy(stat);
    let (head, fields) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    Some(Process {
        name,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

fn all() -> BTreeMap<i32, Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, read(pid)?))).collect()
}

/// All below `root`.
fn below(root: i32, all: &BTreeMap<i32, Process>) -> BTreeMap<i32, &Process> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, process) in all {
        children.entry(process.parent).or_default().push(*pid);
    }
    let mut found = BTreeMap::new();
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        for pid in children.get(&parent).into_iter().flatten() {
            if found.insert(*pid, &all[pid]).is_none() {
                next.push(*pid);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_moves_no_field() {
        let stat = b"42 (a) R 1) b) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9911 5 6";
        let process = parse(stat).unwrap();
        assert_eq!((process.name.as_str(), process.state, process.parent), ("a) R 1) b", 'S', 7));
        assert_eq!(process.started, 9911);
        assert_eq!(parse(b""), None);
        let own = read(getpid().as_raw_pid()).unwrap();
        assert_eq!(Some(own.parent), rustix::process::getppid().map(Pid::as_raw_pid));
    }

    #[test]
    fn everything_below_is_found_at_any_depth() {
        let process = |parent| Process { name: String::new(), state: 'S', parent, started: 0 };
        let all: BTreeMap<i32, Process> =
            [(1, process(0)), (5, process(1)), (6, process(5)), (7, process(6)), (8, process(1))].into();
        assert_eq!(below(5, &all).into_keys().collect::<Vec<_>>(), [6, 7]);
        assert_eq!(below(8, &all).len(), 0);
    }
}
