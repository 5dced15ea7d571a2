//! What the ranks of a host have done for a sum before they meet: how much of its roots each has given, and how much of its
//! share of them each has added up.
//!
//! A buffer is cut into strips, given from the last to the first. Nobody waits here: each rank says in two words of its own
//! how far it is and looks how far the others are. A word names its generation and its collective, so that one of
//! another time counts as nothing. It does not know what is added, nor who wants the sums.

use super::Mapping;
use super::mapping::Ahead;
use dtrain_collective::{Chunks, Sequence};
use dtrain_types::Generation;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The fewest floats of a strip: 256 KiB, so that adding it up costs much more than saying so.
const STRIP: usize = 64 * 1024;
/// Bits of a word that count strips, and those that name the collective; the rest names the generation.
const COUNT: u32 = 10;
const SEQUENCE: u32 = 30;

/// The strips of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strips {
    len: usize,
    count: usize,
}

impl Strips {
    /// Cuts `len` floats: at least one strip, and as many as a word can count.
    pub fn new(len: usize) -> Self {
        Self { len, count: (len / STRIP).clamp(1, (1 << COUNT) - 1) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Strip number `strip`, counted from the end.
    pub fn strip(&self, strip: usize) -> Range<usize> {
        Chunks::even(self.len, self.count).chunk(self.count - 1 - strip)
    }

    /// How many lie wholly in what is final when everything from element `from` on is.
    pub fn behind(&self, from: usize) -> usize {
        (0..self.count).take_while(|strip| self.strip(*strip).start >= from).count()
    }

    /// Where the last `strips` of them begin.
    pub fn start(&self, strips: usize) -> usize {
        strips.checked_sub(1).map_or(self.len, |last| self.strip(last).start)
    }
}

/// The words of all ranks of a host, as one generation sees them.
#[derive(Debug)]
pub(crate) struct Words {
    mapping: Arc<Mapping>,
    generation: Generation,
}

impl Words {
    pub fn new(mapping: Arc<Mapping>, generation: Generation) -> Self {
        Self { mapping, generation }
    }

    /// Says that `rank` has given so many strips of its roots: what it wrote into them is seen by whoever reads this.
    pub fn give(&self, rank: usize, sequence: Sequence, strips: usize) {
        self.of(rank).given.store(self.stamp(sequence) | strips as u64, Ordering::Release);
    }

    /// How many strips `rank` has given.
    pub fn given(&self, rank: usize, sequence: Sequence) -> usize {
        self.read(&self.of(rank).given, sequence)
    }

    /// Says that `rank` has added up its share of so many strips: seen as in [`Words::give`].
    pub fn fold(&self, rank: usize, sequence: Sequence, strips: usize) {
        self.of(rank).folded.store(self.stamp(sequence) | strips as u64, Ordering::Release);
    }

    /// Of how many strips `rank` has added up its share.
    pub fn folded(&self, rank: usize, sequence: Sequence) -> usize {
        self.read(&self.of(rank).folded, sequence)
    }

    fn of(&self, rank: usize) -> &Ahead {
        &self.mapping.control(rank).ahead
    }

    fn stamp(&self, sequence: Sequence) -> u64 {
        self.generation.0 << (SEQUENCE + COUNT) | (sequence.0 & ((1 << SEQUENCE) - 1)) << COUNT
    }

    fn read(&self, word: &AtomicU64, sequence: Sequence) -> usize {
        let count = word.load(Ordering::Acquire) ^ self.stamp(sequence);
        if count >> COUNT == 0 { count as usize } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ArenaFile;
    use super::*;
    use dtrain_collective::Geometry;
    use dtrain_types::WorldSize;

    #[test]
    fn strips_cover_a_buffer_from_its_end_to_its_start() {
        for len in [0, 1, 1_000, STRIP, 3 * STRIP + 5, 5_000 * STRIP] {
            let strips = Strips::new(len);
            assert!(strips.count() < 1 << COUNT);
            let mut end = len;
            for strip in 0..strips.count() {
                let range = strips.strip(strip);
                assert!(range.end == end && (strips.count() == 1 || range.len() >= STRIP));
                end = range.start;
                assert_eq!(strips.start(strip + 1), end);
            }
            assert_eq!((end, strips.start(0)), (0, len));
            assert_eq!((strips.behind(0), strips.behind(len + 1)), (strips.count(), 0));
        }
        let strips = Strips::new(3 * STRIP);
        assert_eq!([2 * STRIP, 2 * STRIP + 1, STRIP, 1].map(|from| strips.behind(from)), [1, 0, 2, 2]);
    }

    #[test]
    fn a_word_of_another_collective_or_generation_counts_as_nothing() {
        let geometry = Geometry { len: 8, root_slots: 1, scratch_slots: 0 };
        let mapping =
            ArenaFile::create(WorldSize(2), geometry).and_then(|file| file.map()).expect("an arena");
        let [now, next] = [3, 4].map(|generation| Words::new(mapping.clone(), Generation(generation)));
        now.give(1, Sequence(7), 1_000);
        now.fold(1, Sequence(7), 5);
        assert_eq!((now.given(1, Sequence(7)), now.folded(1, Sequence(7))), (1_000, 5));
        assert_eq!(
            (now.given(0, Sequence(7)), now.given(1, Sequence(8)), now.given(1, Sequence(6))),
            (0, 0, 0)
        );
        assert_eq!((next.given(1, Sequence(7)), next.folded(1, Sequence(7))), (0, 0));
    }
}
