//! A program whose output is read through a pipe: it is waited for so long and no longer, and it never outlives its reader.
//!
//! It has a process group of its own. So Ctrl-C at the terminal does not reach it, and what a wrapper script started ends with it.
//! If this process is killed, the program's next write fails. This file does not know what the program is for.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// As much is kept of what it writes to standard error: the end. *Units*: bytes.
const LAST_WORDS: usize = 4096;
/// A silence that is told.
const NOTICED: Duration = Duration::from_secs(3);
/// A pipe holds as many times `LAST_WORDS`.
const PIPE: usize = 16;

/// A running program. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Child {
    child: std::process::Child,
    output: ChildStdout,
    errors: Errors,
    patience: Duration,
    /// What it works on, until its silence was told.
    about: Option<String>,
    reaped: bool,
}

/// How a program ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub status: ExitStatus,
    /// The end of what it wrote to standard error.
    pub last_words: String,
}

impl Child {
    /// Starts it, with nothing on its standard input. It is given up when it is silent for longer than `patience`. What it works on is
    /// named sooner, in the log.
    ///
    /// *Errors*: of the system.
    pub fn start(mut command: Command, patience: Duration, about: &Path) -> io::Result<Self> {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.process_group(0).spawn()?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let errors = Errors { pipe: child.stderr.take(), last_words: Vec::new() };
        let about = Some(about.display().to_string());
        Ok(Self { child, output, errors, patience, about, reaped: false })
    }

    /// How it ended, once its output has been read.
    ///
    /// *Errors*: `TimedOut` if it does not end; of the system. *Blocks* until then.
    pub fn finish(mut self) -> io::Result<Ended> {
        let until = Instant::now() + self.patience;
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        while !self.errors.wait_for(Some(pidfd.as_fd()), until)? {}
        // What it said last may still lie in the pipe.
        let now = Instant::now();
        let mut more = 0..PIPE;
        while self.errors.pipe.is_some() && more.next().is_some() && self.errors.wait_for(None, now).is_ok() {
        }
        let status = self.child.wait()?;
        self.reaped = true;
        Ok(Ended { status, last_words: String::from_utf8_lossy(&self.errors.last_words).into_owned() })
    }
}

impl Read for Child {
    /// What it writes to standard output.
    ///
    /// *Errors*: `TimedOut` if it writes nothing for as long as there is patience, whatever it says on standard error.
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let until = begun + self.patience;
        loop {
            let told = begun + NOTICED;
            let next = if self.about.is_some() { until.min(told) } else { until };
            match self.errors.wait_for(Some(self.output.as_fd()), next) {
                Ok(true) => return self.output.read(to),
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut && next < until => {}
                Err(error) => return Err(error),
            }
            if Instant::now() >= told
                && let Some(about) = self.about.take()
            {
                // A supervisor may take a rank that waits for this to hang, before patience ends: then this line says where.
                tracing::warn!("{about}: its decoder has given nothing for {} s", NOTICED.as_secs());
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // Its number is its own until it is reaped. An error means that all of its group have ended.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// The standard error of a program, which must be read, or the program stands still when the pipe is full.
#[derive(Debug)]
struct Errors {
    /// Nothing once it has ended.
    pipe: Option<ChildStderr>,
    last_words: Vec<u8>,
}

impl Errors {
    /// Waits until there is something to read here, which is read, or until `other` is ready. Whether `other` is.
    ///
    /// *Errors*: `TimedOut`; of the system.
    fn wait_for(&mut self, other: Option<BorrowedFd<'_>>, until: Instant) -> io::Result<bool> {
        let pipe = self.pipe.as_ref().map(AsFd::as_fd);
        let mut waited: Vec<PollFd<'_>> =
            pipe.iter().chain(&other).map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut waited, left.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => return Ok(false),
            counted => counted?,
        };
        let mut ready = waited.iter().map(|fd| !fd.revents().is_empty());
        let said = pipe.is_some() && ready.next().unwrap_or(false);
        let ready = ready.next().unwrap_or(false);
        if said {
            self.listen()?;
        }
        Ok(ready)
    }

    fn listen(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut words = [0; LAST_WORDS];
        match pipe.read(&mut words)? {
            0 => self.pipe = None,
            length => self.last_words.extend_from_slice(&words[..length]),
        }
        let old = self.last_words.len().saturating_sub(LAST_WORDS);
        self.last_words.drain(..old);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    fn start(script: &str) -> Child {
        Child::start(shell(script), Duration::from_secs(60), Path::new("film")).unwrap()
    }

    #[test]
    fn output_last_words_and_status_are_told_whatever_their_lengths() {
        let mut child = start(
            "for i in $(seq 30000); do echo word $i >&2; done; head -c 300000 /dev/zero; echo last >&2; exit 3",
        );
        assert_eq!(io::copy(&mut child, &mut io::sink()).unwrap(), 300_000);
        let Ended { status, last_words } = child.finish().unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(last_words.len() == LAST_WORDS && last_words.ends_with("word 30000\nlast\n"), "{last_words}");
        let mut child = start("exec 2>&-; kill -9 $$");
        assert_eq!(child.read(&mut [0; 8]).unwrap(), 0);
        assert_eq!(child.finish().unwrap().status.signal(), Some(9));
    }

    #[test]
    fn a_program_that_hangs_is_given_up_and_what_it_started_ends_too() {
        // It speaks, but not on its output.
        let script = "while :; do echo busy >&2; sleep 0.01; done & echo $!; exec >&-; wait";
        let mut child = Child::start(shell(script), Duration::from_millis(100), Path::new("film")).unwrap();
        let mut number = [0; 16];
        let length = child.read(&mut number).unwrap();
        let number = std::str::from_utf8(&number[..length]).unwrap().trim().to_owned();
        assert_eq!(child.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(child);
        let stat = format!("/proc/{number}/stat");
        let lives = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        while lives() {
            std::thread::yield_now();
        }
        // One that ended its output and does not end itself.
        let child = Child::start(
            shell("exec >&- 2>&-; exec sleep 1000"),
            Duration::from_millis(100),
            Path::new("film"),
        )
        .unwrap();
        assert_eq!(child.finish().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
