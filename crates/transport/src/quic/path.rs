//! What one link of a mesh is heard to do: a path that falls silent or crawls is named, with both its ends, before anybody
//! gives it up; and when it is given up, the reason says how long nothing came.
//!
//! It looks from time to time at counters that the link keeps anyway. It does not know what the frames are for, nor who is
//! waiting for them.

use super::Connection;
use super::board::Board;
use super::error::words;
use quinn::ConnectionError;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// One end of a link, as the other files of a mesh share it.
#[derive(Debug)]
pub(super) struct Path {
    link: Connection,
    here: SocketAddr,
    /// When something was last known to have come.
    heard: Mutex<Instant>,
}

impl Path {
    /// `bound` is where the endpoint listens, for what the link itself does not know of its own address.
    pub fn new(link: Connection, bound: SocketAddr) -> Arc<Self> {
        let here = link.local_addr(bound);
        Arc::new(Self { link, here, heard: Mutex::new(Instant::now()) })
    }

    /// The end of the link in words, with both hosts.
    pub fn words(&self, error: &ConnectionError) -> String {
        let (here, there) = (self.here, self.link.remote_addr());
        match error {
            ConnectionError::TimedOut => {
                let silent = self.heard.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
                format!("nothing came from {there} to {here} for {:.1} s", silent.as_secs_f64())
            }
            other => format!("{} ({there} to {here})", words(other)),
        }
    }

    /// Looks at the link until it is dropped, and tells of every change for the worse or the better once.
    pub async fn watch(self: Arc<Self>, board: Arc<Board>, peer: usize) {
        let keep_alive = self.link.tuning().keep_alive;
        let mut watch = Watch::new(keep_alive, Instant::now());
        while !self.link.is_closed() {
            board.path(peer, self.link.least_round_trip());
            sleep(keep_alive / 4).await;
            let (under_way, acknowledged) = board.under_way(peer);
            let seen = Seen { datagrams: self.link.datagrams_received(), under_way, acknowledged };
            let change = watch.look(Instant::now(), seen);
            *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = watch.heard;
            let (here, there) = (self.here, self.link.remote_addr());
            match change {
                None => {}
                Some(Verdict::Silent(since)) => {
                    tracing::warn!(%here, %there, ?since, "nothing comes over the link from the other host");
                }
                Some(Verdict::Slow(since)) => {
                    let (round_trip, datagram) = (self.link.round_trip(), self.link.datagram_size());
                    tracing::warn!(%here, %there, ?since, ?round_trip, datagram, frames = under_way, "the link to the other host is slow: it has acknowledged no frame");
                }
                Some(Verdict::Well) => tracing::info!(%here, %there, "the link moves again"),
            }
        }
    }
}

/// Counters of a link and its lane at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Received, of any kind.
    datagrams: u64,
    /// Frames that are sent or to be sent, and not acknowledged.
    under_way: usize,
    /// Frames that were.
    acknowledged: u64,
}

/// How a link does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Well,
    /// Nothing has come for so long. A sound link carries something every `keep_alive`, and a round trip more.
    Silent(Duration),
    /// Datagrams come, but for so long not one frame was acknowledged of those under way.
    Slow(Duration),
}

/// Makes verdicts of counters. Time is an argument.
#[derive(Debug)]
struct Watch {
    keep_alive: Duration,
    last: Seen,
    heard: Instant,
    moved: Instant,
    told: Verdict,
}

impl Watch {
    fn new(keep_alive: Duration, now: Instant) -> Self {
        Self { keep_alive, last: Seen::default(), heard: now, moved: now, told: Verdict::Well }
    }

    /// The verdict, if it is of another kind than the one before.
    fn look(&mut self, now: Instant, seen: Seen) -> Option<Verdict> {
        if seen.datagrams != self.last.datagrams {
            self.heard = now;
        }
        if seen.acknowledged != self.last.acknowledged || seen.under_way == 0 {
            self.moved = now;
        }
        self.last = seen;
        let (silent, slow) = (now - self.heard, now - self.moved);
        let verdict = if silent >= self.keep_alive * 3 / 2 {
            Verdict::Silent(silent)
        } else if slow >= self.keep_alive * 3 {
            Verdict::Slow(slow)
        } else {
            Verdict::Well
        };
        let changed = std::mem::discriminant(&verdict) != std::mem::discriminant(&self.told);
        self.told = verdict;
        changed.then_some(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_millis(100);

    /// Looks once a beat, with a keep-alive of four beats; the verdicts that were told, by the beat.
    fn told(seen: impl Fn(u64) -> Seen) -> Vec<(u64, Verdict)> {
        let begun = Instant::now();
        let mut watch = Watch::new(4 * BEAT, begun);
        let look = |beat| Some((beat, watch.look(begun + BEAT * beat as u32, seen(beat))?));
        (1..=40).filter_map(look).collect()
    }

    #[test]
    fn a_link_without_frames_that_only_keeps_alive_is_well() {
        let idle = |beat: u64| Seen { datagrams: beat / 5, ..Seen::default() };
        assert_eq!(told(idle), []);
    }

    #[test]
    fn a_link_that_is_cut_is_told_once_and_so_is_its_return() {
        let cut = |beat: u64| {
            let moments = if (10..30).contains(&beat) { 9 } else { beat };
            Seen { datagrams: moments, under_way: 1, acknowledged: moments }
        };
        assert_eq!(told(cut), [(15, Verdict::Silent(6 * BEAT)), (30, Verdict::Well)]);
    }

    #[test]
    fn a_link_that_carries_packets_but_no_whole_frame_is_slow() {
        let crawls = |beat: u64| Seen { datagrams: beat, under_way: 3, acknowledged: beat / 20 };
        let told = told(crawls);
        let first = (12, Verdict::Slow(12 * BEAT));
        assert_eq!(told, [first, (20, Verdict::Well), (32, Verdict::Slow(12 * BEAT)), (40, Verdict::Well)]);
    }
}
