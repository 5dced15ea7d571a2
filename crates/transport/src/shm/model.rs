//! Every interleaving of three ranks that share the work of two collectives, with the words of `claims.rs`; and what goes
//! wrong when one of the guards is taken away.
//!
//! A rank of an older generation that was thought dead claims along. Steps are one read or write of one shared word, in one
//! total order: what the processor may do beside that is argued where the code is, not here. Only for tests.

use super::claims::{counted, none_of};
use dtrain_types::Generation;
use std::collections::BTreeSet;

const RANKS: usize = 3;
const PIECES: u16 = 2;
const ROUNDS: u8 = 2;
const GENERATION: Generation = Generation(7);

/// A guard that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    /// A word does not say of which collective it counts.
    NoNumber,
    /// A word does not say of which generation it counts.
    NoGeneration,
    /// A piece is taken by a store, whatever the word has become since it was read.
    StoredClaim,
    /// Pieces are counted by a store.
    StoredCount,
    /// A piece counts as done when it is taken.
    EarlyCount,
    /// Nobody waits for the others' pieces.
    NoWait,
    /// Nobody waits for the others' arrival.
    NoArrival,
    /// Announcements have one place, not two in turns.
    OneTurn,
}

/// What a rank does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Write,
    Announce,
    Agree,
    Look,
    Take(u64),
    Sum,
    LookAtDone,
    Count(u64),
    Wait,
    Check,
    Over,
}

/// What one piece of one rank's buffer holds: the round, and whether it is the sum.
type Cell = (u8, bool);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    at: At,
    round: u8,
    done: u16,
}

/// All shared memory, and where every rank is. The last rank is the one of an older generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    claims: u64,
    done: u64,
    announced: [[u8; RANKS]; 2],
    buffers: [[Cell; PIECES as usize]; RANKS],
    ranks: [Rank; RANKS + 1],
}

impl World {
    fn new() -> Self {
        let rank = |at| Rank { at, round: 1, done: 0 };
        let [mut ranks, old] = [[rank(At::Write); RANKS + 1], [rank(At::Look); RANKS + 1]];
        ranks[RANKS] = old[RANKS];
        Self {
            claims: 0,
            done: 0,
            announced: [[0; RANKS]; 2],
            buffers: [[(0, false); PIECES as usize]; RANKS],
            ranks,
        }
    }

    /// The word of no piece, as the rank makes it.
    fn none(&self, who: usize, sabotage: Option<Sabotage>) -> u64 {
        let old = who == RANKS && sabotage != Some(Sabotage::NoGeneration);
        let number = if sabotage == Some(Sabotage::NoNumber) { 1 } else { self.ranks[who].round };
        none_of(Generation(GENERATION.0 - u64::from(old)), number.into())
    }

    /// Lets one rank take its next step. `None` if it has to wait; an error if it finds what must not be.
    fn step(&self, who: usize, sabotage: Option<Sabotage>) -> Option<Result<Self, &'static str>> {
        let mut next = self.clone();
        let (none, is) = (self.none(who, sabotage), |it| sabotage == Some(it));
        let Rank { at, round, done } = self.ranks[who];
        let turn = if is(Sabotage::OneTurn) { 0 } else { usize::from(round) % 2 };
        let rank = &mut next.ranks[who];
        match at {
            At::Write => (next.buffers[who], rank.at) = ([(round, false); PIECES as usize], At::Announce),
            At::Announce => (next.announced[turn][who], rank.at) = (round, At::Agree),
            At::Agree if !is(Sabotage::NoArrival) && self.announced[turn] != [round; RANKS] => return None,
            At::Agree if self.announced[turn] != [round; RANKS] => return Some(Err("another announcement")),
            At::Agree => rank.at = At::Look,
            At::Look => {
                rank.at = match counted(self.claims, none) {
                    None => At::Over,
                    Some(PIECES..) if done == 0 => At::Wait,
                    Some(PIECES..) => At::LookAtDone,
                    Some(_) => At::Take(self.claims),
                }
            }
            At::Take(seen) if self.claims != seen && !is(Sabotage::StoredClaim) => rank.at = At::Look,
            At::Take(seen) => {
                let taken = counted(seen, none).expect("looked at before");
                next.claims = none + u64::from(taken) + 1;
                if is(Sabotage::EarlyCount) {
                    next.done = none + u64::from(counted(self.done, none).unwrap_or(0)) + 1;
                }
                // The old rank dies with what it took.
                (rank.at, rank.done) =
                    if who == RANKS { (At::Over, 0) } else { (At::Sum, done | taken << 8) };
            }
            At::Sum => {
                let piece = usize::from(done >> 8);
                if self.buffers.iter().any(|buffer| buffer[piece] != (round, false)) {
                    return Some(Err("summed what is no leaf"));
                }
                let counts = u16::from(!is(Sabotage::EarlyCount));
                (rank.at, rank.done) = (At::Look, (done & 0xff) + counts);
                next.buffers.iter_mut().for_each(|buffer| buffer[piece] = (round, true));
            }
            At::LookAtDone => rank.at = At::Count(self.done),
            At::Count(seen) if self.done != seen && !is(Sabotage::StoredCount) => rank.at = At::LookAtDone,
            At::Count(seen) => {
                next.done = none + u64::from(counted(seen, none).unwrap_or(0) + done);
                (rank.at, rank.done) = (At::Wait, 0);
            }
            At::Wait if !is(Sabotage::NoWait) && counted(self.done, none) != Some(PIECES) => return None,
            At::Wait => rank.at = At::Check,
            At::Check if self.buffers[who] != [(round, true); PIECES as usize] => {
                return Some(Err("left before the sum was whole"));
            }
            At::Check if round == ROUNDS => rank.at = At::Over,
            At::Check => (rank.at, rank.round) = (At::Write, round + 1),
            At::Over => return None,
        }
        Some(Ok(next))
    }
}

/// Goes through all interleavings; gives the first thing that goes wrong, and how many states were seen.
fn explore(sabotage: Option<Sabotage>) -> (Option<&'static str>, usize) {
    let mut seen = BTreeSet::from([World::new()]);
    let mut todo = vec![World::new()];
    while let Some(world) = todo.pop() {
        let mut stuck = world.ranks[..RANKS].iter().any(|rank| rank.at != At::Over);
        for who in 0..=RANKS {
            match world.step(who, sabotage) {
                None => {}
                Some(Err(what)) => return (Some(what), seen.len()),
                Some(Ok(next)) => {
                    stuck &= who == RANKS;
                    if seen.insert(next.clone()) {
                        todo.push(next);
                    }
                }
            }
        }
        if stuck && world.step(RANKS, sabotage).is_none() {
            return (Some("all wait for ever"), seen.len());
        }
    }
    (None, seen.len())
}

#[test]
fn in_no_interleaving_is_a_piece_lost_or_added_twice_or_an_announcement_overtaken() {
    let (wrong, states) = explore(None);
    assert_eq!(wrong, None);
    assert!(states > 10_000, "only {states} states");
}

#[test]
fn without_any_one_guard_something_goes_wrong() {
    let found = [
        (Sabotage::NoNumber, "left before the sum was whole"),
        (Sabotage::NoGeneration, "all wait for ever"),
        (Sabotage::StoredClaim, "summed what is no leaf"),
        (Sabotage::StoredCount, "all wait for ever"),
        (Sabotage::EarlyCount, "left before the sum was whole"),
        (Sabotage::NoWait, "left before the sum was whole"),
        (Sabotage::NoArrival, "another announcement"),
        (Sabotage::OneTurn, "all wait for ever"),
    ];
    assert_eq!(found.map(|(sabotage, _)| (sabotage, explore(Some(sabotage)).0.unwrap_or("nothing"))), found);
}
