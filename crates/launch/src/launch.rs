//! What is to be started: a program, how often, on which hosts, and what is shown of it.

use std::env::var_os;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The hosts. They are fixed: none joins later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// How many.
    pub count: u32,
    /// Which of them this is.
    pub this: u32,
}

/// Where the program's own rendezvous is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Address or name of the host of rank 0.
    pub address: String,
    /// Its port; none: a fresh one at each start.
    pub port: Option<u16>,
}

/// What of the ranks' output people see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Console {
    /// What stands before a line, with `${rank}` and the like in it.
    pub prefix: String,
    /// Whether standard output and standard error are shown.
    pub shown: [bool; 2],
    /// The local ranks that are shown; none: all.
    pub ranks: Option<Vec<u32>>,
}

/// A group of processes that live and die as one, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// Processes on this host.
    pub processes: u32,
    /// The hosts.
    pub hosts: Hosts,
    /// The program's own rendezvous.
    pub master: Master,
    /// How often all are started again.
    pub restarts: u32,
    /// How long a process may take to end when it is asked to.
    pub grace: Duration,
    /// A name that all processes of all hosts share.
    pub run_id: String,
    /// What torchrun calls a role.
    pub role: String,
    /// The folder of the log files.
    pub logs: Option<PathBuf>,
    /// What people see.
    pub console: Console,
}

impl Launch {
    /// Processes on all hosts.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.processes * self.hosts.count
    }

    /// The rank of a process of this host.
    #[must_use]
    pub fn rank(&self, local: u32) -> u32 {
        self.hosts.this * self.processes + local
    }

    /// Whether each process gets one thread for its arithmetic, as torchrun has it.
    #[must_use]
    pub fn limits_threads(&self) -> bool {
        self.processes > 1 && var_os("OMP_NUM_THREADS").is_none()
    }
}

/// The name of this host.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
