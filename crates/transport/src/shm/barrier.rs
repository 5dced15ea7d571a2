//! Waiting for the other ranks of a generation, without ever staying behind a dead peer.
//!
//! Each rank has a counter of barriers reached, stamped with its generation; a barrier is passed when every rank's
//! counter is there. Counters of an older generation count as not yet there, so nothing is ever reset and a new
//! generation may use the arena of the old one. The first barrier of a collective is passed when every rank has announced it: its
//! number and what it is stand in one word, beside all that peers read first, so that one cache line brings it all. It does not know
//! what the ranks do between barriers.

use super::Mapping;
use super::mapping::Control;
use super::wait::{Cores, wait_until};
use crate::shm::ShmAbort;
use dtrain_collective::CollectiveError;
use dtrain_types::{Generation, Rank};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bits of a stamp that count barriers: enough for 1 000 000 a second for 12 days, or 10 000 for 3 years.
const COUNT_BITS: u32 = 40;
/// The other bits hold the generation, cut off; compared as on a circle.
const GENERATION_BITS: u32 = 64 - COUNT_BITS;

/// Bits of an announcement that say what is announced; above them are the last two bits of its number, and the generation.
pub(super) const SAID_BITS: u32 = 38;

/// A rank's side of the barriers of one generation.
#[derive(Debug)]
pub(super) struct Barrier {
    mapping: Arc<Mapping>,
    generation: Generation,
    rank: usize,
    world: usize,
    reached: u64,
    spins: bool,
    abort: Arc<ShmAbort>,
}

/// With more ranks than cores the awaited peer may be waiting for this very core.
fn spins(world: usize, cores: usize) -> bool {
    world <= cores
}

/// The cores of this machine. Not those of this thread: a rank that is pinned to one core has peers on the others.
fn online_cores() -> usize {
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
    let fallback = || std::thread::available_parallelism().map_or(1, usize::from);
    listed.and_then(|list| count_cores(&list)).unwrap_or_else(fallback)
}

/// Counts a list of cores such as `0-3,8`.
fn count_cores(list: &str) -> Option<usize> {
    let span = |span: &str| -> Option<usize> {
        let (first, last) = span.split_once('-').unwrap_or((span, span));
        (last.parse::<usize>().ok()? + 1).checked_sub(first.parse().ok()?)
    };
    list.trim().split(',').map(span).sum()
}

/// Where a peer is, seen from a barrier.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Here,
    Behind,
    Gone,
}

pub(super) fn stamp(generation: Generation, reached: u64) -> u64 {
    assert!(reached < 1 << COUNT_BITS, "a generation has fewer than 2^{COUNT_BITS} barriers");
    generation.0 << COUNT_BITS | reached
}

/// Compares a peer's stamp with the one that is waited for.
pub(super) fn look(seen: u64, wanted: u64) -> Peer {
    let ahead = (seen >> COUNT_BITS).wrapping_sub(wanted >> COUNT_BITS) & ((1 << GENERATION_BITS) - 1);
    match ahead {
        0 if seen >= wanted => Peer::Here,
        0 => Peer::Behind,
        _ if ahead < 1 << (GENERATION_BITS - 1) => Peer::Gone,
        _ => Peer::Behind,
    }
}

/// The word by which a rank announces collective `number` of a generation, of which it says so much.
pub(super) fn announcement(generation: Generation, number: u64, said: u64) -> u64 {
    stamp(generation, (number & ((1 << (COUNT_BITS - SAID_BITS)) - 1)) << SAID_BITS) | said
}

/// Compares what a peer announced with what this rank did. In its place can be nothing else of this generation but that, or, of the
/// collective before the last, a number that is another one also when two bits are left of it.
fn look_at_announcement(seen: u64, wanted: u64) -> Peer {
    match look(seen, wanted) {
        Peer::Gone => Peer::Gone,
        _ if seen >> SAID_BITS == wanted >> SAID_BITS => Peer::Here,
        _ => Peer::Behind,
    }
}

impl Barrier {
    pub fn new(mapping: Arc<Mapping>, generation: Generation, rank: Rank, world: usize) -> Self {
        let abort = ShmAbort::new(mapping.clone(), generation);
        let (rank, spins) = (rank.index(), spins(world, online_cores()));
        Self { mapping, generation, rank, world, reached: 0, spins, abort: Arc::new(abort) }
    }

    /// Whether each rank has a core of its own, as far as this rank knows.
    pub fn spins(&self) -> bool {
        self.spins
    }

    /// How this rank waits for its peers.
    pub fn cores(&self) -> Cores {
        if self.spins { Cores::OneEach } else { Cores::Shared }
    }

    /// Says how many cores the ranks of this host really have.
    pub fn set_cores(&mut self, cores: usize) {
        self.spins = spins(self.world, cores);
    }

    pub fn abort_handle(&self) -> Arc<ShmAbort> {
        self.abort.clone()
    }

    /// *Errors*: `Aborted`, once this rank or a peer has aborted the generation.
    pub fn check(&self) -> Result<(), CollectiveError> {
        self.abort.check()
    }

    /// Tells the peers that this rank is at the next barrier; everything it wrote before is seen by who passes.
    pub fn arrive(&mut self) {
        self.reached += 1;
        let control = self.mapping.control(self.rank);
        control.arrived.store(stamp(self.generation, self.reached), Ordering::SeqCst);
        control.bell.answer();
    }

    /// *Blocks* until all ranks have arrived where this rank has. *Errors*: `Aborted`, `Superseded`.
    pub fn pass(&self) -> Result<(), CollectiveError> {
        let wanted = stamp(self.generation, self.reached);
        self.wait_for_all(|_, control| look(control.arrived.load(Ordering::SeqCst), wanted))
    }

    /// Tells the peers that this rank is at the first barrier of a collective; everything it wrote before is seen by who passes.
    pub fn announce(&self, turn: usize, number: u64, said: u64) {
        let word = announcement(self.generation, number, said);
        self.mapping.announcement(turn, self.rank).store(word, Ordering::SeqCst);
        self.mapping.control(self.rank).bell.answer();
    }

    /// *Blocks* until all ranks have announced the collective of this number. *Errors*: `Aborted`, `Superseded`.
    pub fn pass_announced(&self, turn: usize, number: u64) -> Result<(), CollectiveError> {
        let wanted = announcement(self.generation, number, 0);
        self.wait_for_all(|peer, control| {
            let word = self.mapping.announcement(turn, peer);
            match look_at_announcement(word.load(Ordering::SeqCst), wanted) {
                // A newer generation may be in the other turn.
                Peer::Behind if control.claimed.load(Ordering::Relaxed) > self.generation.0 => Peer::Gone,
                seen => seen,
            }
        })
    }

    /// *Blocks* until a look, with `SeqCst`, finds every peer here.
    fn wait_for_all(&self, look: impl Fn(usize, &Control) -> Peer) -> Result<(), CollectiveError> {
        // Each rank begins with its right neighbour, so that they do not all poll the same line.
        (1..self.world).map(|step| (self.rank + step) % self.world).try_for_each(|peer| {
            let control = self.mapping.control(peer);
            wait_until(self.cores(), &self.abort, &control.bell, || match look(peer, control) {
                Peer::Here => Ok(true),
                Peer::Behind => Ok(false),
                Peer::Gone => {
                    Err(CollectiveError::Superseded { from: Rank(peer as u32), generation: self.generation })
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_of_an_older_generation_is_behind_and_of_a_newer_one_gone() {
        let at = |generation, reached| stamp(Generation(generation), reached);
        assert_eq!(look(0, at(1, 1)), Peer::Behind);
        assert_eq!(look(at(6, 900), at(7, 1)), Peer::Behind);
        assert_eq!(look(at(7, 1), at(7, 2)), Peer::Behind);
        assert_eq!(look(at(7, 2), at(7, 2)), Peer::Here);
        assert_eq!(look(at(7, 3), at(7, 2)), Peer::Here);
        assert_eq!(look(at(8, 0), at(7, 2)), Peer::Gone);
    }

    #[test]
    fn an_announcement_is_behind_until_its_number_is_there_whatever_it_says() {
        let at = |generation, number, said| announcement(Generation(generation), number, said);
        assert_eq!(look_at_announcement(0, at(1, 1, 0)), Peer::Behind);
        assert_eq!(look_at_announcement(at(6, 9, 5), at(7, 9, 5)), Peer::Behind);
        assert_eq!(look_at_announcement(at(8, 1, 5), at(7, 9, 5)), Peer::Gone);
        // The number before the last one in the same place, also where it is cut off.
        let most = (1 << SAID_BITS) - 1;
        for number in [3, 4, 5, 6, 256, 257, 1 << 40] {
            assert_eq!(look_at_announcement(at(7, number - 2, most), at(7, number, 0)), Peer::Behind);
            assert_eq!(look_at_announcement(at(7, number, most), at(7, number, 0)), Peer::Here);
        }
    }

    #[test]
    fn a_list_of_cores_is_counted_and_nonsense_is_not() {
        assert_eq!(count_cores("0-3,8,10-11\n"), Some(7));
        assert_eq!(count_cores("0"), Some(1));
        assert_eq!((count_cores(""), count_cores("3-1"), count_cores("a-b")), (None, None, None));
    }

    #[test]
    fn generations_beyond_the_stamp_are_compared_on_a_circle() {
        let last = (1 << GENERATION_BITS) - 1;
        assert_eq!(look(stamp(Generation(last), 5), stamp(Generation(last + 1), 1)), Peer::Behind);
        assert_eq!(look(stamp(Generation(last + 1), 1), stamp(Generation(last), 5)), Peer::Gone);
    }
}
