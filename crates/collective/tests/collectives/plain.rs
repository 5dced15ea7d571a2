//! Made-up gradients, and the plain sums that collectives are held against.

use dtrain_collective::{Arena, Mode, rank_roots};
use dtrain_types::{Key, Merger, MicroBatch, MicroRange, Seed, Site, Step, Trailer};

/// Element `i` of the gradient of micro-batch `m`: magnitudes differ, so the order of a sum shows.
pub fn gradient(m: u32, i: usize) -> f32 {
    let key = Key::new(Seed(1), Step(1), MicroBatch(m), Site(0));
    let i = i as u32;
    (key.unit_f32(i) - 0.5) * 10f32.powi((key.bits(i) % 9) as i32 - 4)
}

/// The trailer of micro-batch `m`.
pub fn trailer(m: u32) -> Trailer {
    Trailer {
        loss: f64::from(gradient(m, 0)) / 3.0,
        weight: 1.0 / f64::from(m + 1),
        samples: u64::from(m) + 1,
        check: u64::MAX / u64::from(m + 2),
        stop: u32::from(m == 2),
        ..Trailer::EMPTY
    }
}

/// The plain tree over `lo..hi`, written as its definition.
pub fn tree<T>(lo: u32, hi: u32, leaf: &impl Fn(u32) -> T, add: &impl Fn(T, T) -> T) -> T {
    if hi - lo == 1 {
        return leaf(lo);
    }
    let mid = lo + (hi - lo).next_power_of_two() / 2;
    add(tree(lo, mid, leaf, add), tree(mid, hi, leaf, add))
}

/// Bits of a whole step's gradient.
pub fn reference(len: usize, count: u32) -> Vec<u32> {
    (0..len).map(|i| tree(0, count, &|m| gradient(m, i), &|a, b| a + b).to_bits()).collect()
}

/// The trailer of a whole step.
pub fn reference_trailer(count: u32) -> Trailer {
    tree(0, count, &trailer, &|a, b| a.merge(&b))
}

pub fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|x| x.to_bits()).collect()
}

/// Computes the micro-batches of `range` into an arena as a rank does, and gives the trailers of its roots.
pub fn compute(arena: &mut dyn Arena, range: MicroRange, count: u32, mode: Mode) -> Vec<Trailer> {
    let geometry = arena.geometry();
    // What was left in a slot must not matter.
    (0..geometry.slots()).for_each(|slot| arena.lease(slot).fill(f32::NAN));
    let mut trailers = Vec::new();
    for (index, root) in rank_roots(range, count, mode).into_iter().enumerate() {
        let mut merger = Merger::default();
        let mut pending = vec![Trailer::EMPTY; Merger::buffers(root.len())];
        for m in root.lo..root.hi {
            let next = merger.next_buffer();
            let slot = arena.lease(geometry.slot(index, next));
            slot.iter_mut().enumerate().for_each(|(i, x)| *x = gradient(m, i));
            pending[next] = trailer(m);
            merger.push(|left, right| merge(arena, index, left, right, &mut pending));
        }
        merger.finish(|left, right| merge(arena, index, left, right, &mut pending));
        trailers.push(pending[0]);
    }
    trailers
}

fn merge(arena: &mut dyn Arena, root: usize, left: usize, right: usize, pending: &mut [Trailer]) {
    let geometry = arena.geometry();
    let (a, b) = arena.lease_pair(geometry.slot(root, left), geometry.slot(root, right));
    a.iter_mut().zip(b).for_each(|(a, b)| *a += *b);
    pending[left] = pending[left].merge(&pending[right]);
}
