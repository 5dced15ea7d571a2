//! A host in whose run nobody leads: it starts a supervisor of its own, once those before it had their turn.
//!
//! Several hosts may do so at a time. Who of them leads is decided by the lock of the run's folder, and nowhere here.

use super::part::Succession;
use dtrain_protocol::Goodbye;
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::process::Child;
use std::time::Duration;
use tokio::time::Instant;

/// Between two attempts; twice as long each time, where one after the other ends soon.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A supervisor that lived so long was none that ends as soon as it begins.
const LASTING: Duration = Duration::from_secs(10);

/// The supervisors that this host starts, one at a time.
pub(super) struct Successor {
    succession: Option<Succession>,
    child: Option<Child>,
    /// When nobody was seen to lead, first.
    vacant: Option<Instant>,
    next: Instant,
    begun: Instant,
    pause: Duration,
}

impl Successor {
    pub(super) fn new(succession: Option<Succession>) -> Self {
        let now = Instant::now();
        Self { succession, child: None, vacant: None, next: now, begun: now, pause: PAUSE }
    }

    /// Where another supervisor is said to listen.
    pub(super) fn listens(&self) -> Option<SocketAddr> {
        self.succession.as_ref().and_then(|succession| (succession.listens)())
    }

    /// What the run came to, if it has ended without this host.
    pub(super) fn ended(&self) -> Option<Goodbye> {
        self.succession.as_ref().and_then(|succession| (succession.ended)())
    }

    /// The supervisor is heard.
    pub(super) fn is_heard(&mut self) {
        self.vacant = None;
    }

    /// The supervisor is gone, or silent for long: it is this host's turn, or not yet. True when one was started.
    pub(super) fn try_to_lead(&mut self) -> bool {
        let Some(succession) = &mut self.succession else { return false };
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(None) => return false,
                ended => tracing::info!(?ended, "the supervisor of this host has ended"),
            }
            self.child = None;
            let lasted = self.begun.elapsed() >= LASTING;
            self.pause = if lasted { PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
            self.next = Instant::now() + self.pause;
        }
        if Instant::now() < self.next || !(succession.is_vacant)() {
            self.vacant = None;
            return false;
        }
        if self.vacant.get_or_insert_with(Instant::now).elapsed() < succession.after {
            return false;
        }
        self.begun = Instant::now();
        self.next = self.begun + self.pause;
        match (succession.begin)() {
            Ok(child) => self.child = Some(child),
            Err(error) => tracing::warn!(%error, "a supervisor could not be started"),
        }
        self.child.is_some()
    }

    /// Tells the supervisor that this host has started; false if there is none.
    pub(super) fn signal(&mut self, signal: Signal) -> bool {
        let Some(child) = &mut self.child else { return false };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // It is our child, and nobody has taken its end: the number is nobody else's.
        child.try_wait().is_ok_and(|ended| ended.is_none())
            && pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Waits until the supervisor of this host has said its last word: it may have to tell trackers how the run ended.
    pub(super) async fn finish(mut self) {
        while let Some(child) = &mut self.child
            && child.try_wait().is_ok_and(|ended| ended.is_none())
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
