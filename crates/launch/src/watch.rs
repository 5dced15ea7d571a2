//! Everything that a guard or a supervisor waits for, in one epoll set: exits, signals, the end of other parties.
//!
//! Order: the kernel puts a process into the set's ready list at the moment of its exit, under a lock. So one look gives
//! exits in the order in which they happened, however late the look comes; that is what first causes rest on.

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::time::Timespec;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Signals by which people and batch systems end a program.
const STOPPING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Signals that a program may have a meaning of its own for.
const OTHERS: [Signal; 2] = [Signal::USR1, Signal::USR2];
/// Tokens of ranks are below.
const FIRST_SIGNAL: u64 = 1 << 32;
const PARTY: u64 = 1 << 33;
const OUTPUT: u64 = 1 << 34;
const HOSTS: u64 = 1 << 35;
/// More signals of one kind between two looks count as this many.
const MOST_SIGNALS: usize = 64;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The process of this local rank ended.
    Rank(u32),
    /// Somebody wants an end, so often.
    Stop(Signal, usize),
    /// A signal to pass on.
    Pass(Signal),
    /// Some child ended; it may be a stranger that fell to us.
    Child,
    /// The process above or below ended.
    Party,
    /// All output of the ranks is written.
    Output,
    /// Another host has said something.
    Hosts,
}

/// An epoll set and the signals of this process.
pub struct Watch {
    set: OwnedFd,
    signals: Vec<(Signal, UnixStream)>,
    events: Vec<Event>,
}

impl Watch {
    /// Catches signals from now on, but none that was ignored when this process began (`nohup`, a shell's background).
    ///
    /// *Errors*: of the system.
    pub fn new() -> io::Result<Self> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let ignored = ignored_signals()?;
        let mut signals = Vec::new();
        for signal in STOPPING.into_iter().chain(OTHERS).chain([Signal::CHILD]) {
            if ignored & (1 << (signal.as_raw() - 1)) != 0 && signal != Signal::CHILD {
                continue;
            }
            let (reader, writer) = UnixStream::pair()?;
            reader.set_nonblocking(true)?;
            signal_hook::low_level::pipe::register(signal.as_raw(), writer)?;
            let token = EventData::new_u64(FIRST_SIGNAL + signals.len() as u64);
            epoll::add(&set, &reader, token, EventFlags::IN)?;
            signals.push((signal, reader));
        }
        Ok(Self { set, signals, events: Vec::new() })
    }

    /// Watches the process of a local rank. *Errors*: of the system.
    pub fn rank(&self, local: u32, pidfd: impl AsFd) -> io::Result<()> {
        self.add(u64::from(local), pidfd)
    }

    /// Watches the process above or below. *Errors*: of the system.
    pub fn party(&self, pidfd: impl AsFd) -> io::Result<()> {
        self.add(PARTY, pidfd)
    }

    /// Watches for the end of the output. *Errors*: of the system.
    pub fn output(&self, done: impl AsFd) -> io::Result<()> {
        self.add(OUTPUT, done)
    }

    /// Watches for what other hosts say. *Errors*: of the system.
    pub fn hosts(&self, bell: impl AsFd) -> io::Result<()> {
        self.add(HOSTS, bell)
    }

    fn add(&self, token: u64, source: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.set, source, EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Watches something no longer. *Errors*: of the system.
    pub fn forget(&self, source: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.set, source)?)
    }

    /// What happened, in order; nothing when `until` came first. *Blocks*.
    ///
    /// *Errors*: of the system.
    pub fn look(&mut self, most: usize, until: Option<Instant>) -> io::Result<Vec<Seen>> {
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        // Room for everything: what is left for a second look would come after what happened in between.
        self.events.clear();
        self.events.reserve(most + self.signals.len() + 3);
        match epoll::wait(&self.set, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let tokens: Vec<u64> = self.events.iter().map(|event| event.data.u64()).collect();
        Ok(tokens.into_iter().filter_map(|token| self.meaning(token)).collect())
    }

    fn meaning(&mut self, token: u64) -> Option<Seen> {
        match token {
            PARTY => Some(Seen::Party),
            OUTPUT => Some(Seen::Output),
            HOSTS => Some(Seen::Hosts),
            FIRST_SIGNAL.. => {
                let (signal, reader) = &mut self.signals[usize::try_from(token - FIRST_SIGNAL).ok()?];
                let mut bytes = [0; MOST_SIGNALS];
                let times = reader.read(&mut bytes).unwrap_or(0);
                match *signal {
                    _ if times == 0 => None,
                    Signal::CHILD => Some(Seen::Child),
                    signal if OTHERS.contains(&signal) => Some(Seen::Pass(signal)),
                    signal => Some(Seen::Stop(signal, times)),
                }
            }
            local => Some(Seen::Rank(u32::try_from(local).expect("tokens of ranks are their numbers"))),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// The mask of signals that this process was told to ignore.
fn ignored_signals() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    Ok(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0))
}
