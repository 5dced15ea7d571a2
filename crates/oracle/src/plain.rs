//! Made-up gradients, and the plain sums that collectives are held against.

use dtrain_collective::{Arena, Chunks, Reduce, rank_roots};
use dtrain_types::{Key, Merger, MicroBatch, MicroRange, Rank, Seed, Site, Step, Trailer, unit_of};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Element `i` of the gradient of micro-batch `m`: magnitudes differ, so the order of a sum shows.
pub fn gradient(m: u32, i: usize) -> f32 {
    number(key(m).bits(i as u32))
}

/// The stream of micro-batch `m`.
fn key(m: u32) -> Key {
    Key::new(Seed(1), Step(1), MicroBatch(m), Site(0))
}

/// What a word of a stream becomes: within half of a power of ten.
fn number(word: u32) -> f32 {
    const POWERS: [f32; 9] = [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4];
    (unit_of(word) - 0.5) * POWERS[(word % 9) as usize]
}

/// The first `len` elements of the gradient of micro-batch `m`. A process makes them once: its tests take many steps on many threads.
pub(crate) fn gradients(m: u32, len: usize) -> Arc<[f32]> {
    type Made = BTreeMap<(u32, usize), Arc<[f32]>>;
    static MADE: Mutex<Made> = Mutex::new(Made::new());
    let make = || {
        let blocks = (0..len.div_ceil(4)).flat_map(|block| key(m).block(block as u32).map(number));
        blocks.take(len).collect()
    };
    // A test that fails poisons it and changes nothing of it.
    MADE.lock().unwrap_or_else(PoisonError::into_inner).entry((m, len)).or_insert_with(make).clone()
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
    let leaves: Vec<_> = (0..count).map(|m| gradients(m, len)).collect();
    (0..len).map(|i| tree(0, count, &|m| leaves[m as usize][i], &|a, b| a + b).to_bits()).collect()
}

/// The trailer of a whole step.
pub fn reference_trailer(count: u32) -> Trailer {
    tree(0, count, &trailer, &|a, b| a.merge(&b))
}

/// The bits of each number.
#[must_use]
pub fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|x| x.to_bits()).collect()
}

/// Computes the micro-batches of `range` into an arena as a rank does, and gives the trailers of its roots.
pub fn compute(arena: &mut dyn Arena, range: MicroRange, count: u32, mode: Reduce) -> Vec<Trailer> {
    compute_with(arena, range, count, mode, |x| x)
}

/// The same, with every leaf and every sum rounded.
pub fn compute_rounded(
    arena: &mut dyn Arena,
    range: MicroRange,
    count: u32,
    mode: Reduce,
    round: fn(f32) -> f32,
) -> Vec<Trailer> {
    compute_with(arena, range, count, mode, round)
}

fn compute_with(
    arena: &mut dyn Arena,
    range: MicroRange,
    count: u32,
    mode: Reduce,
    round: impl Fn(f32) -> f32,
) -> Vec<Trailer> {
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
            slot.iter_mut().zip(&*gradients(m, geometry.len)).for_each(|(x, made)| *x = round(*made));
            pending[next] = trailer(m);
            merger.push(|left, right| merge(arena, [index, left, right], &mut pending, &round));
        }
        merger.finish(|left, right| merge(arena, [index, left, right], &mut pending, &round));
        trailers.push(pending[0]);
    }
    trailers
}

fn merge(
    arena: &mut dyn Arena,
    [root, left, right]: [usize; 3],
    pending: &mut [Trailer],
    round: &impl Fn(f32) -> f32,
) {
    let geometry = arena.geometry();
    let (a, b) = arena.lease_pair(geometry.slot(root, left), geometry.slot(root, right));
    a.iter_mut().zip(b).for_each(|(a, b)| *a = round(*a + *b));
    pending[left] = pending[left].merge(&pending[right]);
}

/// Who copies to whom in a world: every way for small worlds, telling ones for others.
pub fn copies(world: u32) -> Vec<[Vec<Rank>; 2]> {
    let by_role = |role: &dyn Fn(u32) -> u32| {
        [1, 2].map(|wanted| (0..world).filter(|rank| role(*rank) == wanted).map(Rank).collect::<Vec<_>>())
    };
    let mut lists = match world {
        0..=3 => (0..3u32.pow(world)).map(|way| by_role(&|rank| way / 3u32.pow(rank) % 3)).collect(),
        _ => vec![
            by_role(&|rank| 1 + rank % 2),
            by_role(&|rank| if rank == 0 { 1 } else { 2 }),
            by_role(&|rank| if rank + 1 == world { 1 } else { 2 }),
            by_role(&|rank| if rank == world / 2 { 2 } else { 1 }),
            by_role(&|rank| rank % 3),
            by_role(&|rank| u32::from(rank > 0)),
            by_role(&|rank| if rank == 1 { 1 } else { 2 * u32::from(rank == 2) }),
        ],
    };
    lists.retain(|[sources, _]| !sources.is_empty());
    lists
}

/// Element `i` of the state that is copied: bits of numbers that are none, which nothing but a plain copy keeps.
pub fn state(i: usize) -> f32 {
    f32::from_bits(0x7f80_0001 | (i as u32).wrapping_mul(0x9e37_79b1) & 0x803f_ffff)
}

/// Fills what a rank has before a copy: a source its chunk of the state, and everybody else their own numbers.
pub fn before_copy(slot: &mut [f32], rank: usize, sources: &[Rank]) {
    slot.iter_mut().enumerate().for_each(|(i, x)| *x = (rank * 10_000 + i) as f32);
    if let Ok(source) = sources.binary_search(&Rank(rank as u32)) {
        let chunk = Chunks::even(slot.len(), sources.len()).chunk(source);
        slot[chunk.clone()].iter_mut().zip(chunk).for_each(|(x, i)| *x = state(i));
    }
}

/// Tells whether a rank has what it should have after a copy.
pub fn is_copied(slot: &[f32], rank: usize, sources: &[Rank], targets: &[Rank]) -> bool {
    let at = Rank(rank as u32);
    let whole = targets.binary_search(&at).is_ok().then_some(0..slot.len());
    let own = sources.binary_search(&at).ok();
    let own = own.map(|source| Chunks::even(slot.len(), sources.len()).chunk(source));
    let mut right = whole.or(own).unwrap_or(0..0);
    right.all(|i| slot[i].to_bits() == state(i).to_bits())
}
