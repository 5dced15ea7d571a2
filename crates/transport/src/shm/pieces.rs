//! How a sum is cut where ranks share the work: each rank's chunk, cut further into what a cache holds.
//!
//! Cut along the chunks, because a ring adds up each chunk in an order of its own and a reduce-scatter leaves each with its
//! owner. The cut follows from the length and the number of ranks alone. It does not know who claims a piece.

use dtrain_collective::Chunks;
use std::ops::Range;

/// The most floats of a piece, where there are not too many pieces: 64 KiB of each buffer, so that the second-level cache
/// holds a piece of several, and a claim costs little beside its sum.
const PIECE: usize = 16 * 1024;
/// The most pieces: a count of them has 16 bits.
const MOST: usize = u16::MAX as usize;

/// The pieces of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    chunks: Chunks,
    world: usize,
    of_each: usize,
}

impl Pieces {
    /// Cuts `len` floats of `world` ranks. *Panics* with more than 65 535 ranks.
    pub fn new(len: usize, world: usize) -> Self {
        assert!((1..=MOST).contains(&world), "{world} ranks do not share one host's cores");
        let of_each = len.div_ceil(world).div_ceil(PIECE).clamp(1, MOST / world);
        Self { chunks: Chunks::even(len, world), world, of_each }
    }

    pub fn count(&self) -> u16 {
        (self.world * self.of_each) as u16
    }

    /// Whose chunk a piece is cut from, and its elements, maybe none.
    pub fn piece(&self, piece: u16) -> (usize, Range<usize>) {
        let (owner, place) = (usize::from(piece) / self.of_each, usize::from(piece) % self.of_each);
        let chunk = self.chunks.chunk(owner);
        let part = Chunks::even(chunk.len(), self.of_each).chunk(place);
        (owner, chunk.start + part.start..chunk.start + part.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_chunks_cut_further_without_a_gap_and_at_cache_lines() {
        for world in [1, 2, 3, 4, 9, 300] {
            for len in [0, 1, 16, 1_000, 4 * PIECE, 4 * PIECE + 1, 1_000_003, 40_000_000] {
                let pieces = Pieces::new(len, world);
                let mut done = 0;
                for piece in 0..pieces.count() {
                    let (owner, part) = pieces.piece(piece);
                    let chunk = Chunks::even(len, world).chunk(owner);
                    assert!(part.start == done && chunk.start <= part.start && part.end <= chunk.end);
                    assert!(part.len() < PIECE + 16 && (part.end == len || part.end % 16 == 0));
                    done = part.end;
                }
                assert_eq!(done, len, "{world} ranks");
            }
        }
    }

    #[test]
    fn no_length_has_more_pieces_than_a_count_can_hold() {
        for world in [1, 4, 300, MOST] {
            let pieces = Pieces::new(1 << 40, world);
            let whole = usize::from(pieces.count());
            assert!(whole > MOST - world && pieces.piece(pieces.count() - 1).1.end == 1 << 40);
        }
    }
}
