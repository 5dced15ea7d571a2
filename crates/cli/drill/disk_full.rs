//! The drill that fills the disk under a run.
//!
//! The run folder lies on a small file system in memory, mounted where only this run sees it: that takes root, or a
//! machine that gives users namespaces of their own. The drill reaches it through the run's process and holds it open,
//! so that it is still there for the audit.

use super::report::Reporter;
use super::run::{Heard, Run, this_program};
use super::seen::{Seen, is_step};
use super::setup::Setup;
use super::{Disturbed, InjectedFault, Promise};
use crate::error::CliError;
use dtrain_types::counted;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Checkpoints that may lie there at once: the newest, the best, one that is written, and one that goes away.
const CHECKPOINTS: u64 = 4;
/// *Units*: bytes a step writes to the logs, at most.
const LOGGED: u64 = 2048;
/// *Units*: bytes of everything else.
const BESIDES: u64 = 16 << 20;
/// What the system says of a full disk, and what a run makes of it.
const OF_A_FULL_DISK: [&str; 2] = ["No space left", "disk is full"];

/// A small file system that only the processes of one run see.
#[derive(Debug)]
pub struct SmallDisk {
    handle: File,
}

impl SmallDisk {
    /// The words that a command is started with, so that it finds a small file system at `place`.
    ///
    /// *Errors*: this machine does not allow it.
    pub fn around(place: &Path, bytes: u64) -> Result<Vec<OsString>, CliError> {
        fs::create_dir_all(place)
            .map_err(|error| CliError::failed(format!("cannot make {}", place.display())).because(&error))?;
        let words = |as_root: &[&str], bytes: u64| -> Vec<OsString> {
            let script = format!("mount -t tmpfs -o size={bytes} tmpfs \"$1\" && shift && exec \"$@\"");
            let unshare = ["unshare"].iter().chain(as_root).chain(&["--mount", "--propagation", "private"]);
            let mut all: Vec<OsString> = unshare.map(OsString::from).collect();
            all.extend(["sh".into(), "-c".into(), script.into(), "sh".into(), place.into()]);
            all
        };
        let mut said = String::new();
        for as_root in [&[][..], &["--map-root-user"]] {
            let tried = words(as_root, BESIDES);
            match Command::new(&tried[0]).args(&tried[1..]).arg("true").output() {
                Ok(output) if output.status.success() => return Ok(words(as_root, bytes)),
                Ok(output) => said = String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                Err(error) => said = format!("unshare: {error}"),
            }
        }
        let message =
            "the drill disk-full needs a file system of its own, and this machine does not allow one";
        Err(CliError::failed(message).cause(said).hint("run it as root, or where users may have namespaces"))
    }

    /// Opens the one that the process `pid` sees at `place`.
    fn seen_by(pid: u32, place: &Path) -> Result<Self, CliError> {
        let inside = place.strip_prefix("/").unwrap_or(place);
        let path = PathBuf::from(format!("/proc/{pid}/root")).join(inside);
        let handle = File::open(&path)
            .map_err(|error| CliError::failed("cannot reach the file system of the run").because(&error))?;
        Ok(Self { handle })
    }

    /// Where every process of this user finds it, as long as this one lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.handle.as_raw_fd()))
    }

    /// Writes until nothing more fits; the file that takes all the room.
    fn fill(&self) -> Result<PathBuf, CliError> {
        let path = self.path().join("filler");
        let mut file = File::create(&path)
            .map_err(|error| CliError::failed("cannot fill the disk of the run").because(&error))?;
        for block in [1 << 16, 1 << 12, 1] {
            let bytes = vec![1; block];
            while file.write_all(&bytes).is_ok() {}
        }
        Ok(path)
    }
}

/// How large the file system of a run must be.
#[must_use]
pub fn room(setup: &Setup) -> u64 {
    BESIDES + CHECKPOINTS * setup.checkpoint_bytes + LOGGED * setup.steps
}

/// Fills the disk before a checkpoint and makes room again after it.
///
/// *Errors*: the drill was stopped; this machine does not allow it. *Blocks* to the end of the run.
pub fn disk_full(setup: &Setup, reporter: &mut Reporter) -> Result<Disturbed, CliError> {
    let place = setup.run_dir("disk");
    let around = SmallDisk::around(&place, room(setup))?;
    let mut run = Run::start(setup.train(&place.join("run"), &around)?, Seen::default(), &setup.stop)?;
    let (mut faults, mut disk, mut damaged, mut pause) = (Vec::new(), None, 0, Duration::ZERO);
    for number in 0..setup.times {
        let begins = setup.stretch_begins(number);
        let saved = run.wait_for(|seen, _| seen.checkpoint.is_some() && seen.last_step >= begins)?;
        if saved.is_none() {
            break;
        }
        let disk = match &mut disk {
            Some(disk) => disk,
            none => none.insert(SmallDisk::seen_by(run.pid(), &place)?),
        };
        let (step, before) = (run.seen.last_step, Instant::now());
        let filler = disk.fill()?;
        let full = while_full(setup, &mut run, before)?;
        if full.recovery.is_some() {
            let folder = disk.path().join("run");
            let words = ["checkpoint".into(), "verify".into(), folder.into()];
            let verified = this_program(&[], &words)?.output();
            damaged += usize::from(!verified.is_ok_and(|output| output.status.success()));
        }
        fs::remove_file(filler)
            .map_err(|error| CliError::failed("cannot make room on the disk of the run").because(&error))?;
        let saved_again = run.wait_for(|_, line| line["event"] == "checkpoint")?.is_some();
        pause = pause.max(full.pause);
        let fault = InjectedFault {
            what: "the disk filled".to_owned(),
            moment: "before a checkpoint",
            step,
            at: before - run.begun,
            news: full.news,
            recovery: full.recovery.filter(|_| saved_again),
            cause: full.cause,
            ..InjectedFault::default()
        };
        reporter.fault(&fault);
        faults.push(fault);
    }
    let ended = run.finish()?;
    let lost_steps = ended.seen.ending.as_ref().map_or(0, |ending| ending.lost_steps);
    let promises = vec![
        Promise::new(
            "training goes on while the disk is full",
            faults.iter().all(|fault: &InjectedFault| fault.recovery.is_some()),
            format!("the longest time between two steps was {:.2} s", pause.as_secs_f64()),
        ),
        Promise::new(
            "older checkpoints stay valid, and new ones come with new room",
            damaged == 0,
            format!("verified {}, damaged {}", counted(faults.len(), "time"), counted(damaged, "time")),
        ),
        told_once(&ended.words, faults.len()),
    ];
    Ok(Disturbed { faults, ended, lost_steps, promises, disk })
}

/// What happened while the disk was full.
struct Full {
    news: Option<Duration>,
    recovery: Option<Duration>,
    pause: Duration,
    cause: String,
}

/// Reads until a checkpoint could not be written and the run has gone on for a while.
fn while_full(setup: &Setup, run: &mut Run, since: Instant) -> Result<Full, CliError> {
    let mut full = Full { news: None, recovery: None, pause: Duration::ZERO, cause: String::new() };
    let mut newest: Option<Instant> = None;
    let mut enough = u64::MAX;
    while run.seen.last_step < enough {
        let Heard::Line(at, line) = run.hear(None)? else { break };
        if line["event"] == "checkpoint_failed" && full.news.is_none() {
            full.news = Some(at - since);
            full.cause = line["cause"].as_str().unwrap_or_default().to_owned();
            enough = run.seen.last_step + setup.checkpoint_every.unwrap_or(1) / 2 + 1;
        }
        if is_step(&line) {
            full.pause = full.pause.max(newest.map_or(Duration::ZERO, |newest| at - newest));
            newest = Some(at);
            if full.news.is_some() && full.recovery.is_none() {
                full.recovery = Some(at - since);
            }
        }
    }
    Ok(full)
}

/// People are told of a full disk, and of the same thing no more than once each time it is full.
fn told_once(words: &str, times: usize) -> Promise {
    let mut told = BTreeMap::<&str, usize>::new();
    let of_it = words.lines().filter(|line| OF_A_FULL_DISK.iter().any(|part| line.contains(part)));
    of_it.for_each(|line| *told.entry(line).or_default() += 1);
    let most = told.values().copied().max().unwrap_or_default();
    let detail =
        format!("{}; the most frequent one {}", counted(told.len(), "different line"), counted(most, "time"));
    Promise::new("people are told of it once", most >= 1 && most <= times, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_comes_more_often_than_the_disk_was_full_is_told_too_often() {
        let line = "events.jsonl: No space left on device (os error 28)\n";
        assert!(told_once(line, 1).held);
        assert!(told_once(&line.repeat(2), 2).held);
        assert!(!told_once(&line.repeat(2), 1).held);
        assert!(!told_once("all is well\n", 1).held, "nobody was told");
    }
}
