//! How a gradient buffer is cut: one contiguous chunk per rank, and segments inside a chunk.
//!
//! Cuts lie on multiples of 16 floats, one cache line, so that two owners never write to one line. A chunk may be
//! empty; it still has one (empty) segment, because every rank owes every owner a frame in every collective.

use std::ops::Range;

/// The most floats that travel in one frame: 256 KiB, small enough to pipeline and large enough to hide a wake-up.
pub const SEGMENT: usize = 64 * 1024;

/// Cuts fall on multiples of this many floats.
const LINE: usize = 16;

/// A buffer of `len` floats cut into one chunk per rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    len: usize,
    kind: Kind,
    segment: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// As even as whole cache lines allow.
    Even { world: usize },
    /// One rank owns all of it: a broadcast is a gather in which the others own nothing.
    Whole { owner: usize },
}

impl Chunks {
    /// Even chunks for `world` ranks. *Panics* if `world` is 0.
    #[must_use]
    pub fn even(len: usize, world: usize) -> Self {
        assert!(world > 0, "a generation has at least one rank");
        Self { len, kind: Kind::Even { world }, segment: SEGMENT }
    }

    /// Everything belongs to rank `owner`.
    #[must_use]
    pub fn whole(len: usize, owner: usize) -> Self {
        Self { len, kind: Kind::Whole { owner }, segment: SEGMENT }
    }

    /// The same cut with shorter segments, for small transports and for tests. *Panics* if `floats` is 0.
    #[must_use]
    pub fn with_segment(self, floats: usize) -> Self {
        assert!(floats > 0, "a segment holds at least one float");
        Self { segment: floats, ..self }
    }

    /// The elements that rank `owner` owns.
    #[must_use]
    pub fn chunk(&self, owner: usize) -> Range<usize> {
        match self.kind {
            Kind::Even { world } => {
                let lines = self.len.div_ceil(LINE);
                let cut = |i: usize| (lines * i / world * LINE).min(self.len);
                cut(owner)..cut(owner + 1)
            }
            Kind::Whole { owner: it } if it == owner => 0..self.len,
            Kind::Whole { .. } => 0..0,
        }
    }

    /// How many segments the chunk of `owner` has; at least one.
    #[must_use]
    pub fn segments(&self, owner: usize) -> usize {
        self.chunk(owner).len().div_ceil(self.segment).max(1)
    }

    /// The elements of one segment. *Panics* if the chunk has no such segment.
    #[must_use]
    pub fn segment(&self, owner: usize, segment: usize) -> Range<usize> {
        assert!(segment < self.segments(owner), "segment {segment} of rank {owner} does not exist");
        let chunk = self.chunk(owner);
        let start = chunk.start + segment * self.segment;
        start..(start + self.segment).min(chunk.end)
    }
}

/// Which part of a buffer each rank owns, in segments: parts of any size, and ranks that own none.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    owned: Vec<Option<Range<usize>>>,
    segment: usize,
}

impl Parts {
    /// Nobody owns anything yet.
    pub fn new(world: usize, segment: usize) -> Self {
        assert!(segment > 0, "a segment holds at least one float");
        Self { owned: vec![None; world], segment }
    }

    /// Gives each rank its part.
    pub fn assign(&mut self, part: impl Fn(usize) -> Option<Range<usize>>) {
        self.owned.iter_mut().enumerate().for_each(|(rank, owned)| *owned = part(rank));
    }

    /// The elements that a rank owns.
    pub fn of(&self, rank: usize) -> Range<usize> {
        self.owned[rank].clone().unwrap_or(0..0)
    }

    /// How many segments a rank's part has: at least one, even of an empty part; none if it has no part.
    pub fn segments(&self, rank: usize) -> usize {
        self.owned[rank].as_ref().map_or(0, |part| part.len().div_ceil(self.segment).max(1))
    }

    /// The elements of one segment. *Panics* if there is no such segment.
    pub fn segment(&self, rank: usize, segment: usize) -> Range<usize> {
        assert!(segment < self.segments(rank), "segment {segment} of rank {rank} does not exist");
        let part = self.of(rank);
        let start = part.start + segment * self.segment;
        start..(start + self.segment).min(part.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_every_element_once_and_cuts_fall_on_cache_lines() {
        for world in 1..=17 {
            for len in [0, 1, 15, 16, 17, 31, 100, 1_000, 4_099] {
                for chunks in [Chunks::even(len, world), Chunks::whole(len, world / 2)] {
                    let chunks = chunks.with_segment(48);
                    let mut next = 0;
                    for owner in (0..world).filter(|owner| !chunks.chunk(*owner).is_empty()) {
                        assert_eq!(chunks.chunk(owner).start, next);
                        for segment in 0..chunks.segments(owner) {
                            let range = chunks.segment(owner, segment);
                            assert!(range.start == next && range.start % 16 == 0 && range.len() <= 48);
                            next = range.end;
                        }
                    }
                    assert_eq!(next, len);
                }
            }
        }
    }

    #[test]
    fn an_empty_chunk_still_has_one_segment() {
        let chunks = Chunks::even(0, 3);
        assert_eq!((chunks.segments(2), chunks.segment(2, 0)), (1, 0..0));
    }
}
