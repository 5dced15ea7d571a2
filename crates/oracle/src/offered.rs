//! Steps of real backends that are offered piece by piece.

use crate::piecewise::Piecewise;
use crate::plain::bits;
use dtrain_collective::{Backend, Op, Sequence};
use dtrain_types::{MicroRange, Trailer};

/// Steps of these counts, offered in pieces that differ from rank to rank and from step to step; some ranks offer nothing. Gives
/// the bits and the trailer of each.
pub fn offered_steps(
    backend: &mut dyn Backend,
    rank: usize,
    range: MicroRange,
    counts: &[u32],
) -> Vec<(Vec<u32>, Trailer)> {
    let step = |(place, count): (usize, &u32)| {
        let seq = Sequence(place as u64);
        let mut pending = Piecewise::new(backend.arena(), range, *count);
        let pieces = if pending.is_spare() { 0 } else { (rank + place) % 4 };
        for piece in 0..pieces {
            pending.compute_to(backend.arena(), pending.from * (2 * piece + 3 + rank % 2) / 8);
            backend.offer(seq, *count, pending.from);
        }
        pending.compute_to(backend.arena(), 0);
        let op = Op::AllReduce { micro_batches: *count, trailers: &pending.trailers };
        backend.start(seq, &op).expect("a sound start");
        let trailer = backend.finish(seq).expect("a sound finish");
        (bits(backend.arena().lease(0)), trailer)
    };
    counts.iter().enumerate().map(step).collect()
}
