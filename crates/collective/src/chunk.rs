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
    #[inline]
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
    #[inline]
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

/// Which part of a buffer each rank owns, in segments: one piece each, of any size or none, or stripes.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    owned: Vec<Option<Range<usize>>>,
    /// Overrides `owned`.
    stripes: Option<Stripes>,
    segment: usize,
}

/// A buffer of `len` floats in `rows` rows of a stripe for each rank, so that wherever a part of it becomes final, every rank
/// soon owns some of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stripes {
    len: usize,
    rows: usize,
    /// Cuts fall on multiples of this many floats.
    unit: usize,
}

impl Stripes {
    fn new(len: usize, world: usize, segment: usize) -> Self {
        let unit = if segment < LINE { 1 } else { LINE };
        Self { len, rows: len.div_ceil(unit).div_ceil(world * (segment / unit)).max(1), unit }
    }

    /// The stripe with this number, of `count`.
    fn stripe(&self, number: usize, count: usize) -> Range<usize> {
        let units = self.len.div_ceil(self.unit);
        let cut = |i: usize| (units * i / count * self.unit).min(self.len);
        cut(number)..cut(number + 1)
    }
}

impl Parts {
    /// Nobody owns anything yet.
    pub fn new(world: usize, segment: usize) -> Self {
        assert!(segment > 0, "a segment holds at least one float");
        Self { owned: vec![None; world], stripes: None, segment }
    }

    /// Gives each rank its piece.
    pub fn assign(&mut self, part: impl Fn(usize) -> Option<Range<usize>>) {
        self.stripes = None;
        self.owned.iter_mut().enumerate().for_each(|(rank, owned)| *owned = part(rank));
    }

    /// Gives each rank the same share of a buffer, a stripe of every row.
    pub fn stripe(&mut self, len: usize) {
        self.stripes = Some(Stripes::new(len, self.owned.len(), self.segment));
    }

    /// How many segments a rank has: at least one, even of an empty part; none if it has no part.
    pub fn segments(&self, rank: usize) -> usize {
        match (self.stripes, &self.owned[rank]) {
            (Some(stripes), _) => stripes.rows,
            (None, Some(piece)) => piece.len().div_ceil(self.segment).max(1),
            (None, None) => 0,
        }
    }

    /// The most floats that a segment of a rank has.
    pub fn longest(&self, rank: usize) -> usize {
        match (self.stripes, &self.owned[rank]) {
            (Some(Stripes { len, rows, unit }), _) => {
                len.min(len.div_ceil(unit).div_ceil(rows * self.owned.len()) * unit)
            }
            (None, Some(piece)) => piece.len().min(self.segment),
            (None, None) => 0,
        }
    }

    /// Where a segment starts in copy number `copy` of a rank's part, in memory that has one copy behind the other, each of `room` segments that follow
    /// one another, or all of them.
    pub fn copy(&self, rank: usize, room: usize, copy: usize, segment: usize) -> usize {
        let room = self.segments(rank).min(room);
        (copy * room + segment % room) * self.longest(rank)
    }

    /// The elements of one segment. *Panics* if there is no such segment.
    pub fn segment(&self, rank: usize, segment: usize) -> Range<usize> {
        assert!(segment < self.segments(rank), "segment {segment} of rank {rank} does not exist");
        if let Some(stripes) = self.stripes {
            let world = self.owned.len();
            return stripes.stripe(segment * world + rank, stripes.rows * world);
        }
        let piece = self.owned[rank].clone().unwrap_or(0..0);
        let start = piece.start + segment * self.segment;
        start..(start + self.segment).min(piece.end)
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
    fn stripes_cover_every_element_once_in_short_segments_and_go_round_the_ranks() {
        for world in 1..=17 {
            for len in [0, 1, 15, 16, 17, 31, 100, 1_000, 4_099] {
                for segment in [1, 7, 16, 48, 50] {
                    let mut parts = Parts::new(world, segment);
                    parts.stripe(len);
                    let mut next = 0;
                    for row in 0..parts.segments(0) {
                        for rank in 0..world {
                            let range = parts.segment(rank, row);
                            assert!(range.start == next && range.len() <= parts.longest(rank).min(segment));
                            next = range.end;
                        }
                    }
                    assert_eq!((next, parts.segments(world - 1)), (len, parts.segments(0)));
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
