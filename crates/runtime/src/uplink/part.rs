//! A host's part in a run: what it brings, what it tells its people, and how it ended.

use crate::Isolation;
use crate::uplink::{Arc, Duration, Mutex, OwnedFd};
use dtrain_protocol::{Goodbye, RankSetup, Timeouts};
use dtrain_types::Generation;
use std::io;
use std::net::SocketAddr;
use std::process::Child;

/// What a host tells its people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostNews<'a> {
    /// A generation works.
    Running {
        /// Its number.
        generation: Generation,
        /// Its ranks.
        ranks: usize,
        /// Those on this host.
        here: usize,
    },
    /// The link to the supervisor broke.
    LinkLost,
    /// The supervisor's process is gone; another one is waited for.
    Gone {
        /// For how long.
        waits: Duration,
    },
    /// This host tries to lead the run from now on.
    Leads,
    /// It stands again.
    LinkBack,
    /// The supervisor was not heard for too long; the ranks of this host were ended.
    Orphaned {
        /// For how long.
        silent: Duration,
    },
    /// This host was asked to leave.
    Leaving,
    /// A rank of this host printed a line.
    RankOutput {
        /// Which.
        member: dtrain_types::MemberId,
        /// The line.
        line: &'a str,
    },
}

/// How a host's part in a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEnd {
    /// The run is over, or this host is wanted no more.
    Dismissed(Goodbye),
    /// This host left because it was asked to; the run may go on.
    Left,
    /// It was told twice to leave, or had nobody to ask.
    Interrupted,
    /// The supervisor's process is gone, and none came in its place for as long as this host waits.
    SupervisorGone {
        /// How long it was not heard.
        silent: Duration,
    },
    /// The supervisor was silent for as long as this host waits.
    SupervisorSilent {
        /// How long it was not heard.
        silent: Duration,
    },
    /// Another life of the supervisor answers.
    SupervisorRestarted,
    /// The supervisor ended the run before its last step, and was lost before it said why.
    Unexplained,
}

/// What a host brings into a run.
pub struct HostConfig {
    /// How many ranks it has.
    pub ranks: u32,
    /// Where they live.
    pub isolation: Isolation,
    /// The memory that they share.
    pub arena: Option<OwnedFd>,
    /// What the ranks are made of, for their set-up.
    pub setup: RankSetup,
    /// The run's timeouts.
    pub timeouts: Timeouts,
    /// How long a supervisor that is not heard is waited for.
    pub join_timeout: Duration,
    /// Called when signals are listened to.
    pub listens_to_signals: fn(),
    /// What becomes of the run where the supervisor is lost.
    pub succession: Option<Succession>,
}

/// How a host finds another supervisor in the place of one that is lost, or becomes the one whose supervisor it is.
pub struct Succession {
    /// Where a supervisor of this run is said to listen, as of now.
    pub listens: Box<dyn Fn() -> Option<SocketAddr> + Send + Sync>,
    /// Whether nobody leads the run, so that this host may try to.
    pub is_vacant: Box<dyn Fn() -> bool + Send + Sync>,
    /// What the run came to, if its supervisor has ended it while this host did not hear of it.
    pub ended: Box<dyn Fn() -> Option<Goodbye> + Send + Sync>,
    /// Starts a supervisor on this host. It finds out by itself whether another host was faster, and ends then.
    pub begin: Box<dyn FnMut() -> io::Result<Child> + Send>,
    /// How long this host waits for those that come before it.
    pub after: Duration,
}

pub(super) type Tell = Arc<Mutex<dyn FnMut(HostNews<'_>) + Send>>;

pub(super) fn say(tell: &Tell, news: HostNews<'_>) {
    (*tell.lock().expect("no teller panics"))(news);
}
