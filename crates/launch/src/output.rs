//! The output of the ranks: read from their pipes by one thread, shown line by line, kept in files, and its end kept for
//! reports.
//!
//! One thread for all of them, so that lines never mix and the supervisor never waits for a slow terminal. It ends when
//! every pipe has ended, or when it is told that nobody is left to write.

use crate::Console;
use crate::tail::{Splitter, Tail};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::{Errno, ioctl_fionbio, read};
use rustix::time::Timespec;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;

/// Bytes that are read at once.
const READ: usize = 64 * 1024;
const STOP: u64 = u64::MAX;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// A folder of logs has this many runs at most.
const MOST_RUNS: u32 = 1_000_000;

/// The two pipes of a rank.
pub struct Source {
    /// Its number on this host.
    pub local: u32,
    /// Its rank.
    pub rank: u32,
    /// Standard output, then standard error.
    pub pipes: [OwnedFd; 2],
}

/// The thread that reads.
pub struct Output {
    thread: JoinHandle<Vec<Tail>>,
    /// Ends when the thread has nothing left to do.
    pub done: UnixStream,
    /// Its end tells the thread that nobody is left to write.
    alive: UnixStream,
}

impl Output {
    /// Begins to read. `folder` is where files go.
    ///
    /// *Errors*: of the system: files, descriptors, threads.
    pub fn start(sources: Vec<Source>, console: &Console, folder: Option<&Path>) -> io::Result<Self> {
        let (done, finished) = UnixStream::pair()?;
        let (alive, told) = UnixStream::pair()?;
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&set, &told, EventData::new_u64(STOP), EventFlags::IN)?;
        let tails = vec![Tail::default(); sources.len()];
        let mut streams = Vec::new();
        for (slot, source) in sources.into_iter().enumerate() {
            let prefix = prefix(&console.prefix, &source);
            for (which, (pipe, name)) in source.pipes.into_iter().zip(["out", "err"]).enumerate() {
                ioctl_fionbio(&pipe, true)?;
                epoll::add(&set, &pipe, EventData::new_u64(streams.len() as u64), EventFlags::IN)?;
                let wanted = console.ranks.as_ref().is_none_or(|ranks| ranks.contains(&source.local));
                let path = folder.map(|folder| folder.join(format!("rank-{}.{name}", source.rank)));
                streams.push(Some(Stream {
                    pipe,
                    file: path.map(File::create).transpose()?,
                    splitter: Splitter::default(),
                    slot,
                    to: if which == 0 { Target::Out } else { Target::Err },
                    prefix: prefix.clone(),
                    shown: console.shown[which] && wanted,
                }));
            }
        }
        let scribe = Scribe { set, streams, tails, told, closed: [false; 2] };
        let thread = std::thread::Builder::new().name("output".into()).spawn(move || {
            let tails = scribe.run();
            drop(finished);
            tails
        })?;
        Ok(Self { thread, done, alive })
    }

    /// Tells the thread that nobody is left to write: what the pipes hold now is all.
    ///
    /// *Errors*: of the system.
    pub fn nobody_is_left(&self) -> io::Result<()> {
        self.alive.shutdown(std::net::Shutdown::Both)
    }

    /// What the ranks said last, in the order of the sources. *Blocks* until everything is written.
    ///
    /// *Panics*: the thread did.
    pub fn join(self) -> Vec<Tail> {
        self.thread.join().expect("the output thread does not panic")
    }
}

/// Where a stream is shown.
#[derive(Clone, Copy)]
enum Target {
    Out,
    Err,
}

struct Stream {
    pipe: OwnedFd,
    file: Option<File>,
    splitter: Splitter,
    slot: usize,
    to: Target,
    prefix: Vec<u8>,
    shown: bool,
}

struct Scribe {
    set: OwnedFd,
    streams: Vec<Option<Stream>>,
    tails: Vec<Tail>,
    told: UnixStream,
    /// Which of our own streams nobody reads any more.
    closed: [bool; 2],
}

impl Scribe {
    fn run(mut self) -> Vec<Tail> {
        let mut events = Vec::with_capacity(self.streams.len() + 1);
        let mut nobody_left = false;
        let mut buffer = vec![0; READ];
        while self.streams.iter().any(Option::is_some) {
            events.clear();
            let timeout = nobody_left.then_some(&AT_ONCE);
            match epoll::wait(&self.set, spare_capacity(&mut events), timeout) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => panic!("an epoll set cannot be waited for: {error}"),
            }
            if events.is_empty() {
                break;
            }
            for event in &events {
                match event.data.u64() {
                    STOP => {
                        nobody_left = true;
                        // It stays readable; told once is told.
                        let _ = epoll::delete(&self.set, &self.told);
                    }
                    index => self.read(index as usize, &mut buffer),
                }
            }
        }
        for index in 0..self.streams.len() {
            self.end(index);
        }
        self.tails
    }

    fn read(&mut self, index: usize, buffer: &mut [u8]) {
        let Some(stream) = &mut self.streams[index] else { return };
        match read(&stream.pipe, &mut *buffer) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(0) | Err(_) => self.end(index),
            Ok(length) => {
                let bytes = &buffer[..length];
                stream.keep(bytes);
                let tail = &mut self.tails[stream.slot];
                let (now, mut text) = (Instant::now(), Vec::with_capacity(length + length / 8));
                stream.splitter.feed(bytes, |line| take(line, now, &stream.prefix, tail, &mut text));
                let (to, shown) = (stream.to, stream.shown);
                if shown {
                    self.show(to, &text);
                }
            }
        }
    }

    /// The pipe has ended: what stands in it without an end of line is a line too.
    fn end(&mut self, index: usize) {
        let Some(mut stream) = self.streams[index].take() else { return };
        let _ = epoll::delete(&self.set, &stream.pipe);
        let tail = &mut self.tails[stream.slot];
        let mut text = Vec::new();
        stream.splitter.finish(|line| take(line, Instant::now(), &stream.prefix, tail, &mut text));
        if stream.shown {
            self.show(stream.to, &text);
        }
    }

    /// A reader that goes away (`| head`) is no reason to stop a run.
    fn show(&mut self, to: Target, text: &[u8]) {
        if text.is_empty() || self.closed[to as usize] {
            return;
        }
        let written = match to {
            Target::Out => {
                let mut out = io::stdout().lock();
                out.write_all(text).and_then(|()| out.flush())
            }
            Target::Err => io::stderr().lock().write_all(text),
        };
        self.closed[to as usize] = written.is_err();
    }
}

impl Stream {
    /// Writes to the file what came, byte for byte. A full disk costs the rest of the file, and is told once.
    fn keep(&mut self, bytes: &[u8]) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write_all(bytes) {
            self.file = None;
            let name = String::from_utf8_lossy(&self.prefix);
            // With standard error gone too there is nobody to tell.
            let _ = writeln!(io::stderr(), "dtrain run: {name}its log file ends here: {error}");
        }
    }
}

fn take(line: &[u8], now: Instant, prefix: &[u8], tail: &mut Tail, text: &mut Vec<u8>) {
    tail.add(line, now);
    text.extend_from_slice(prefix);
    text.extend_from_slice(line);
    text.push(b'\n');
}

fn prefix(template: &str, source: &Source) -> Vec<u8> {
    let host = crate::launch::host();
    let filled = template
        .replace("${rank}", &source.rank.to_string())
        .replace("${local_rank}", &source.local.to_string())
        .replace("${hostname}", &host);
    filled.into_bytes()
}

/// Makes the folder of this run's logs: `DIR/run-1`, then `DIR/run-2`, so that no run writes over another.
///
/// *Errors*: of the system.
pub fn create_folder(base: &Path) -> io::Result<PathBuf> {
    std::fs::create_dir_all(base)?;
    for number in 1..MOST_RUNS {
        let path = base.join(format!("run-{number}"));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            // Another dtrain may take the same number at the same time: mkdir decides.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("all numbers of runs are taken"))
}
