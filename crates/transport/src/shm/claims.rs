//! Work that is whoever's who has a core: pieces of one collective, claimed one by one, and counted when they are done.
//!
//! Where ranks share cores, a chunk that belongs to a rank waits until that rank is given a core, and all others wait for
//! it. So there nobody owns a chunk: once all have arrived, those that run take the next piece until none is left, and a
//! rank that did not run meanwhile finds everything done. The words are stamped with generation and collective, as
//! `arrived` is with generation and barrier: a count under an older stamp is none, so nothing is ever reset. It does not
//! know what a piece is.
//!
//! Why a stamp of 24 bits is enough for the collective: a rank works on shared work `n + 1` only after all have arrived
//! there, and a rank arrives only when it has left `n`. So within a generation whoever looks sees its own number, or that
//! of the work before, which is another one modulo any number above 1.

use super::Mapping;
use super::barrier::{Peer, look, stamp};
use dtrain_collective::CollectiveError;
use dtrain_types::{Generation, Rank};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a word that count pieces.
const PIECE_BITS: u32 = 16;
/// Bits above them that number the shared work of a generation, cut off.
const NUMBER_BITS: u32 = 24;

/// The word of no piece, in the shared work of this number.
pub(super) fn none_of(generation: Generation, number: u64) -> u64 {
    stamp(generation, (number & ((1 << NUMBER_BITS) - 1)) << PIECE_BITS)
}

/// How many pieces a word counts in the shared work whose empty word is `none`. `None`: it is of a later generation.
pub(super) fn counted(seen: u64, none: u64) -> Option<u16> {
    match look(seen, none) {
        Peer::Gone => None,
        _ if seen >> PIECE_BITS == none >> PIECE_BITS => Some(seen as u16),
        // Of the work before, of an older generation, or of nobody yet.
        _ => Some(0),
    }
}

/// A rank's view of the shared work of one generation.
#[derive(Debug)]
pub(super) struct Claims {
    mapping: Arc<Mapping>,
    generation: Generation,
    /// How many times work was shared; all ranks count alike, because they agree on each collective.
    number: u64,
}

impl Claims {
    pub fn new(mapping: Arc<Mapping>, generation: Generation) -> Self {
        Self { mapping, generation, number: 0 }
    }

    /// Goes on to the next shared work. All ranks must have arrived there, and must have left the one before.
    pub fn begin(&mut self) {
        self.number += 1;
    }

    /// Takes the next of so many pieces, if there is one left. *Errors*: `Superseded`.
    pub fn claim(&self, pieces: u16) -> Result<Option<u16>, CollectiveError> {
        // Each piece is given out once: 1. whoever takes piece `p` moves the word from a value that says "`p` taken" to
        // one that says "`p + 1` taken", in one step; 2. under one stamp the word only rises, and it never comes back to a
        // stamp that it has left, so no two steps begin at the same value; 3. a rank of an older generation that fell
        // asleep between its look and its step finds another value and steps nowhere.
        //
        // The order of memory does not hang on this word: what a piece is made of was seen at the barrier.
        self.add(&self.mapping.work().claims.pieces, 1, |taken| taken < pieces)
    }

    /// Says that so many pieces that this rank claimed are done, and wakes those who wait if they were the last.
    ///
    /// *Errors*: `Superseded`.
    pub fn finish(&self, done: u16, pieces: u16) -> Result<(), CollectiveError> {
        if done == 0 {
            return Ok(());
        }
        let words = &self.mapping.work().done;
        // Everything that this rank wrote is seen by who sees the whole count: the step releases it, and the steps of
        // others that come after are of the same word, each of one that reads the one before, so they hand it on.
        let before = self.add(&words.pieces, done, |_| true)?;
        if before.is_some_and(|before| before + done == pieces) {
            words.bell.answer();
        }
        Ok(())
    }

    /// Whether all pieces are done; what was written into them is seen then. *Errors*: `Superseded`.
    pub fn are_done(&self, pieces: u16) -> Result<bool, CollectiveError> {
        let seen = self.mapping.work().done.pieces.load(Ordering::SeqCst);
        self.counted(seen).map(|done| done == pieces)
    }

    /// Adds to a count if `wanted` says so of it; gives the count before.
    fn add(
        &self,
        word: &AtomicU64,
        more: u16,
        wanted: impl Fn(u16) -> bool,
    ) -> Result<Option<u16>, CollectiveError> {
        let mut seen = word.load(Ordering::SeqCst);
        loop {
            let count = self.counted(seen)?;
            if !wanted(count) {
                return Ok(None);
            }
            let next = none_of(self.generation, self.number) + u64::from(count + more);
            match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Ok(Some(count)),
                Err(other) => seen = other,
            }
        }
    }

    fn counted(&self, seen: u64) -> Result<u16, CollectiveError> {
        // Every generation has a rank 0, and nobody shares work before all of it have arrived.
        let superseded = CollectiveError::Superseded { from: Rank(0), generation: self.generation };
        counted(seen, none_of(self.generation, self.number)).ok_or(superseded)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ArenaFile;
    use super::*;
    use dtrain_collective::Geometry;
    use dtrain_types::WorldSize;

    fn arena() -> Arc<Mapping> {
        let geometry = Geometry { len: 8, root_slots: 1, scratch_slots: 0 };
        ArenaFile::create(WorldSize(2), geometry).and_then(|file| file.map()).expect("an arena")
    }

    fn at(mapping: &Arc<Mapping>, generation: u64, number: u64) -> Claims {
        Claims { number, ..Claims::new(mapping.clone(), Generation(generation)) }
    }

    fn superseded<T>(generation: u64) -> Result<T, CollectiveError> {
        Err(CollectiveError::Superseded { from: Rank(0), generation: Generation(generation) })
    }

    #[test]
    fn each_piece_is_given_out_once_and_the_work_is_done_when_all_are() {
        let mapping = arena();
        let [left, right] = [at(&mapping, 1, 1), at(&mapping, 1, 1)];
        assert_eq!((left.claim(3), right.claim(3)), (Ok(Some(0)), Ok(Some(1))));
        assert_eq!((left.claim(3), left.claim(3), right.claim(3)), (Ok(Some(2)), Ok(None), Ok(None)));
        assert_eq!((left.finish(2, 3), right.are_done(3)), (Ok(()), Ok(false)));
        assert_eq!((right.finish(1, 3), left.are_done(3)), (Ok(()), Ok(true)));
    }

    #[test]
    fn counts_of_the_work_before_are_none_even_when_its_number_no_longer_fits() {
        let mapping = arena();
        for number in [0, 1, (1 << NUMBER_BITS) - 1, 1 << NUMBER_BITS, (1 << NUMBER_BITS) + 1, 1 << 30] {
            let claims = at(&mapping, 5, number);
            assert_eq!(claims.are_done(1), Ok(false), "{number}");
            assert_eq!((claims.claim(1), claims.claim(1)), (Ok(Some(0)), Ok(None)), "{number}");
            assert_eq!((claims.finish(1, 1), claims.are_done(1)), (Ok(()), Ok(true)), "{number}");
        }
    }

    #[test]
    fn a_rank_of_an_older_generation_takes_nothing_of_a_newer_one_and_learns_it() {
        let mapping = arena();
        // The same number of work, so that nothing but the generation tells them apart.
        let (old, new) = (at(&mapping, 6, 1), at(&mapping, 7, 1));
        assert_eq!((old.claim(2), old.finish(1, 2)), (Ok(Some(0)), Ok(())));
        assert_eq!(
            (new.are_done(1), new.claim(2)),
            (Ok(false), Ok(Some(0))),
            "a count of the old one is none"
        );
        assert_eq!((old.claim(2), old.claim(9)), (superseded(6), superseded(6)));
        assert_eq!((new.finish(1, 2), old.finish(1, 2)), (Ok(()), superseded(6)));
        assert_eq!((old.are_done(2), old.are_done(1)), (superseded(6), superseded(6)));
        assert_eq!((new.claim(2), new.are_done(2)), (Ok(Some(1)), Ok(false)));
        assert_eq!((new.finish(1, 2), new.are_done(2)), (Ok(()), Ok(true)));
    }

    #[test]
    fn threads_that_race_for_pieces_get_each_of_them_once() {
        let mapping = arena();
        for number in 1..200 {
            let claims = at(&mapping, 1, number);
            let mut all: Vec<u16> = std::thread::scope(|scope| {
                let race =
                    || std::iter::from_fn(|| claims.claim(50).expect("one generation")).collect::<Vec<u16>>();
                let threads = [(); 3].map(|()| scope.spawn(race));
                threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
            });
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..50), "{all:?}");
        }
    }
}
