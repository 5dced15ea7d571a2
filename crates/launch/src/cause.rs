//! Which of the ranks that ended failed first, and so made the others fail or be stopped. Pure: it reads a list.
//!
//! A rank that fails closes its sockets, and its peers fail for want of it within milliseconds. The order of exits that
//! the kernel gives is nearly always that of the failures, but not where the first one takes long to end.

use crate::tail::LastWords;
use dtrain_protocol::ExitCause;
use std::time::{Duration, Instant};

/// A process that dies may still give back its memory or a GPU's when its peers, that saw its sockets close, have ended.
const LATE_DEATH: Duration = Duration::from_secs(1);
/// Python may take so long from its traceback to its exit.
const SLOW_END: Duration = Duration::from_secs(10);
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;
/// Illegal instruction, bus error, arithmetic, segmentation: nobody sends these, and no missing peer does this.
const CRASHES: [i32; 4] = [4, 7, 8, 11];

/// The end of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// Which process of this host.
    pub local: u32,
    /// Its process.
    pub pid: i32,
    /// How it ended.
    pub end: ExitCause,
    /// When it was seen.
    pub at: Instant,
    /// The number of the look that saw it; those of one look may have ended within microseconds.
    pub look: u64,
    /// What the supervisor had sent to it before.
    pub asked: Asked,
    /// What its last lines say.
    pub words: LastWords,
}

/// What a rank was sent before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// Nothing.
    Nothing,
    /// To end.
    End,
    /// SIGKILL.
    Kill,
}

impl Death {
    /// Whether this end is a success.
    pub fn is_success(&self) -> bool {
        self.end == ExitCause::Code(0)
    }

    /// Whether it failed by itself, not because it was told to end.
    pub fn is_own(&self) -> bool {
        !self.is_success() && (self.asked == Asked::Nothing || self.was_killed_by_others())
    }

    /// Whether it ended well or by a reason of its own that nobody else can have: then there is nothing to wait for.
    pub fn is_plain(&self) -> bool {
        self.is_success() || self.was_killed_by_others() || self.has_crashed()
    }

    fn signal(&self) -> Option<i32> {
        match self.end {
            ExitCause::Signal(signal) => Some(signal),
            _ => None,
        }
    }

    /// SIGKILL, and not ours.
    fn was_killed_by_others(&self) -> bool {
        self.signal() == Some(SIGKILL) && self.asked != Asked::Kill
    }

    fn has_crashed(&self) -> bool {
        self.signal().is_some_and(|signal| CRASHES.contains(&signal))
    }

    /// Whether it was on its way out already when `first` was seen and the others were asked to end.
    fn was_dying(&self, first: &Death) -> bool {
        let late = self.at.saturating_duration_since(first.at) <= LATE_DEATH;
        let fell = self.has_crashed() || self.signal() == Some(SIGABRT);
        let told = self.words.traceback.is_some_and(|began| began <= first.at);
        !self.is_success() && ((late && fell) || (told && self.failed_at() < first.at))
    }

    /// When it failed: at its traceback if that was its end. One that was handled and logged long ago is none.
    fn failed_at(&self) -> Instant {
        self.words.traceback.filter(|began| *began + SLOW_END >= self.at).unwrap_or(self.at)
    }
}

/// The first cause among `deaths`, which stand in the order in which the kernel saw them; none if nobody failed by
/// itself.
///
/// 1. A rank that somebody else killed is the cause, also when it was seen a little later: nothing that a missing peer
///    does looks like it.
/// 2. So is a crash that the same look saw.
/// 3. Who says in its last words that it lost a peer gives way to whoever failed without saying so.
/// 4. Of ranks that end with a traceback the one that began it first. Else the first.
pub fn first_cause(deaths: &[Death]) -> Option<&Death> {
    let first = deaths.iter().find(|death| death.is_own())?;
    let soon = |death: &&Death| death.at.saturating_duration_since(first.at) <= LATE_DEATH;
    if let Some(killed) = deaths.iter().filter(soon).find(|death| death.was_killed_by_others()) {
        return Some(killed);
    }
    let same_look = |death: &&Death| death.look == first.look && death.is_own();
    if let Some(crashed) = deaths.iter().filter(same_look).find(|death| death.has_crashed()) {
        return Some(crashed);
    }
    let may_be = |death: &&Death| death.is_own() || death.was_dying(first);
    if !first.words.lost_peer && first.words.traceback.is_none() {
        return Some(first);
    }
    let blaming_nobody = deaths.iter().filter(may_be).filter(|death| !death.words.lost_peer);
    let any = deaths.iter().filter(may_be);
    blaming_nobody.min_by_key(|death| death.failed_at()).or_else(|| any.min_by_key(|death| death.failed_at()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    fn at(milliseconds: u64) -> Instant {
        *START + Duration::from_millis(milliseconds)
    }

    fn death(local: u32, end: ExitCause, milliseconds: u64) -> Death {
        let (asked, words) = (Asked::Nothing, LastWords::default());
        Death { local, pid: 1, end, at: at(milliseconds), look: milliseconds, asked, words }
    }

    fn stopped(local: u32, milliseconds: u64) -> Death {
        Death { asked: Asked::End, ..death(local, ExitCause::Signal(15), milliseconds) }
    }

    fn with_traceback(mut death: Death, milliseconds: u64) -> Death {
        death.words.traceback = Some(at(milliseconds));
        death
    }

    fn with_lost_peer(mut death: Death) -> Death {
        death.words.lost_peer = true;
        death
    }

    fn cause(deaths: &[Death]) -> Option<u32> {
        first_cause(deaths).map(|death| death.local)
    }

    use ExitCause::{Code, Signal};

    #[test]
    fn the_first_that_failed_by_itself_is_the_cause() {
        assert_eq!(cause(&[death(2, Code(0), 1), death(1, Code(3), 2), stopped(0, 3)]), Some(1));
        assert_eq!(cause(&[death(0, Code(1), 1), death(1, Code(2), 1)]), Some(0), "one look keeps its order");
        assert_eq!(cause(&[death(0, Code(0), 1), death(1, Code(0), 2)]), None);
        assert_eq!(cause(&[stopped(0, 1), stopped(1, 2)]), None, "they were told to end");
    }

    #[test]
    fn a_kill_by_somebody_else_beats_those_that_failed_for_want_of_it() {
        assert_eq!(cause(&[death(0, Code(1), 10), death(1, Signal(9), 10)]), Some(1));
        let dying = Death { asked: Asked::End, ..death(1, Signal(9), 400) };
        assert_eq!(cause(&[death(0, Code(1), 10), dying.clone()]), Some(1), "it was on its way already");
        assert_eq!(cause(&[death(0, Code(1), 10), Death { at: at(5_000), ..dying.clone() }]), Some(0));
        let ours = Death { asked: Asked::Kill, ..dying };
        assert_eq!(cause(&[death(0, Code(1), 10), ours]), Some(0), "that one was killed by us");
    }

    #[test]
    fn a_crash_beats_an_exit_code_of_the_same_look_only() {
        assert_eq!(cause(&[death(0, Code(1), 10), death(1, Signal(11), 10)]), Some(1));
        assert_eq!(cause(&[death(0, Code(1), 10), death(1, Signal(11), 11)]), Some(0));
        assert_eq!(cause(&[death(0, Code(1), 10), death(1, Signal(6), 10)]), Some(0), "victims abort");
    }

    #[test]
    fn of_two_tracebacks_the_one_that_began_first_is_the_cause() {
        let victim = with_traceback(death(0, Code(1), 900), 150);
        let seen_later = with_traceback(death(1, Code(1), 1_000), 100);
        assert_eq!(cause(&[victim.clone(), seen_later]), Some(1));
        let still_ending = with_traceback(stopped(1, 1_000), 100);
        assert_eq!(cause(&[victim, still_ending.clone()]), Some(1), "it was stopped while it ended");
        assert_eq!(cause(&[death(0, Code(3), 900), still_ending]), Some(0), "a silent exit comes first");
    }

    #[test]
    fn who_says_that_it_lost_a_peer_gives_way_to_whoever_failed_without_saying_so() {
        let victim = with_lost_peer(with_traceback(death(0, Code(1), 500), 100));
        assert_eq!(cause(&[victim.clone(), death(1, Code(3), 900)]), Some(1), "a silent exit takes its time");
        assert_eq!(cause(&[victim.clone(), death(2, Signal(6), 900)]), Some(2), "so does an abort");
        let asked = Death { asked: Asked::End, ..death(2, Signal(6), 900) };
        assert_eq!(
            cause(&[victim.clone(), asked.clone()]),
            Some(2),
            "it was aborting when it was asked to end"
        );
        assert_eq!(cause(&[victim.clone(), Death { at: at(5_000), ..asked }]), Some(0), "that one came late");
        assert_eq!(cause(&[victim.clone(), stopped(1, 900)]), Some(0), "a network may fail by itself");
        let watchdog = with_lost_peer(death(0, Signal(6), 900));
        assert_eq!(cause(&[watchdog, with_traceback(stopped(1, 1_000), 100)]), Some(1), "NCCL's abort");
        let abort = death(2, Signal(6), 600);
        let quick_victim = with_lost_peer(with_traceback(stopped(0, 700), 590));
        assert_eq!(cause(&[abort, quick_victim]), Some(2), "its victim was quick to say so");
        let second = with_lost_peer(with_traceback(death(1, Code(1), 600), 90));
        assert_eq!(cause(&[victim, second]), Some(1), "all lost one: who said so first");
    }

    #[test]
    fn a_traceback_of_long_ago_blames_nobody() {
        let logged = with_traceback(stopped(1, 60_100), 1_000);
        assert_eq!(cause(&[with_traceback(death(0, Code(1), 60_000), 59_900), logged]), Some(0));
    }
}
