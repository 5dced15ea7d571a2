//! What every backend has to do, whatever carries its bytes: operation x world x length x cut, against the plain tree.
//!
//! It does not know how a world is made: that is what the tests of a backend bring.

use crate::plain::{before_copy, bits, compute, copies, is_copied, reference, reference_trailer};
use dtrain_collective::{Aborter, Assignment, Backend, Chunks, Narrow, Op, Reduce, Sequence, Take};
use dtrain_types::{Generation, MicroRange, Rank, Trailer, cut_evenly};
use std::collections::BTreeSet;

/// Makes a backend for each rank: of these ranges, for steps of these counts, with slots of this length.
pub type Make<'a> = &'a dyn Fn(&[MicroRange], &[u32], usize, Reduce) -> Vec<Box<dyn Backend>>;

/// Worlds of few ranks, and of more than a tree is deep.
pub const WORLDS: [u32; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16];
/// Micro-batches of steps: a power of two, an odd number, and one.
pub const COUNTS: [u32; 3] = [16, 9, 1];

/// *Units*: floats. Lengths around the number `n` of ranks, and longer ones that it does not divide.
#[must_use]
pub fn lengths(n: u32) -> [usize; 8] {
    let n = n as usize;
    [0, 1, n - 1, n, n + 1, 1_000, 16 * n + 1, 5_237]
}

/// Cut evenly, and so that only the ends have micro-batches.
#[must_use]
pub fn cuts(count: u32, world: u32) -> Vec<Vec<MicroRange>> {
    let third = count / 3;
    let skewed = (0..world).map(|rank| match rank {
        0 => MicroRange { lo: 0, hi: third },
        _ if rank + 1 == world => MicroRange { lo: third, hi: count },
        _ => MicroRange { lo: third, hi: third },
    });
    if world == 1 { vec![cut_evenly(count, 1)] } else { vec![cut_evenly(count, world), skewed.collect()] }
}

/// The assignment of one rank.
#[must_use]
pub fn membership(generation: u64, rank: usize, ranges: &[MicroRange]) -> Assignment {
    Assignment { generation: Generation(generation), rank: Rank(rank as u32), ranges: ranges.to_vec() }
}

/// Runs `work` on a thread for each rank.
pub fn on_threads<T: Send, R: Send>(each: Vec<T>, work: impl Fn(usize, T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let spawn = |(rank, it)| scope.spawn(move || work(rank, it));
        let threads: Vec<_> = each.into_iter().enumerate().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// Ends the others' waits when a rank panics, so that a test fails and does not hang.
struct AbortOnPanic(Aborter);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort("a rank panicked");
        }
    }
}

/// Runs `work` on a thread for each backend.
pub fn on_ranks<R: Send>(
    backends: Vec<Box<dyn Backend>>,
    work: impl Fn(usize, Box<dyn Backend>) -> R + Sync,
) -> Vec<R> {
    on_threads(backends, |rank, backend| {
        let _ends_the_others = AbortOnPanic(backend.aborter());
        work(rank, backend)
    })
}

/// A step of so many micro-batches; gives its bits and its trailer.
pub fn one_step(
    backend: &mut dyn Backend,
    seq: u64,
    range: MicroRange,
    count: u32,
    mode: Reduce,
) -> (Vec<u32>, Trailer) {
    let trailers = compute(backend.arena(), range, count, mode);
    let op = Op::AllReduce { micro_batches: count, trailers: &trailers };
    backend.start(Sequence(seq), &op).expect("a sound start");
    let trailer = backend.finish(Sequence(seq)).expect("a sound finish");
    (bits(backend.reduced()), trailer)
}

/// Steps of these counts; gives the bits and the trailer of each.
pub fn steps(
    backend: &mut dyn Backend,
    range: MicroRange,
    counts: &[u32],
    mode: Reduce,
) -> Vec<(Vec<u32>, Trailer)> {
    let step = |(seq, count): (usize, &u32)| one_step(backend, seq as u64, range, *count, mode);
    counts.iter().enumerate().map(step).collect()
}

/// What steps of these counts come to: the bits and the trailer of each.
#[must_use]
pub fn want(len: usize, counts: &[u32]) -> Vec<(Vec<u32>, Trailer)> {
    counts.iter().map(|count| (reference(len, *count), reference_trailer(*count))).collect()
}

/// Calls `each` with every world, a length, and the cuts of `count` micro-batches.
fn of_all(worlds: &[u32], count: u32, mut each: impl FnMut(usize, &[MicroRange])) {
    for world in worlds {
        for ranges in cuts(count, *world) {
            lengths(*world).into_iter().for_each(|len| each(len, &ranges));
        }
    }
}

/// Steps over exact sums, of several counts one after the other. *Panics* where one is wrong.
pub fn exact_steps_have_the_bits_of_the_plain_tree(worlds: &[u32], make: Make<'_>) {
    of_all(worlds, COUNTS[0], |len, ranges| {
        let want = want(len, &COUNTS);
        let got = on_ranks(make(ranges, &COUNTS, len, Reduce::Exact), |rank, mut backend| {
            steps(&mut *backend, ranges[rank], &COUNTS, Reduce::Exact)
        });
        for (rank, got) in got.iter().enumerate() {
            assert!(*got == want, "rank {rank}, {len} floats, {ranges:?}");
        }
    });
}

fn mark(rank: usize, i: usize) -> f32 {
    (rank * 10_000 + i) as f32
}

fn fill(backend: &mut dyn Backend, rank: usize) {
    backend.arena().lease(0).iter_mut().enumerate().for_each(|(i, x)| *x = mark(rank, i));
}

fn is_of(backend: &mut dyn Backend, rank: usize) -> bool {
    backend.arena().lease(0).iter().enumerate().all(|(i, x)| *x == mark(rank, i))
}

/// Runs an operation whose trailer is empty. *Panics* if it fails.
pub fn run(backend: &mut dyn Backend, seq: u64, op: Op<'_>) {
    backend.start(Sequence(seq), &op).expect("a sound start");
    assert_eq!(backend.finish(Sequence(seq)), Ok(Trailer::EMPTY));
}

/// Operations that move and add nothing. *Panics* where one is wrong.
pub fn gathers_broadcasts_and_barriers_do_what_their_names_say(worlds: &[u32], make: Make<'_>) {
    of_all(worlds, 4, |len, ranges| {
        let world = ranges.len();
        on_ranks(make(ranges, &[4], len, Reduce::Exact), |rank, mut backend| {
            fill(&mut *backend, rank);
            run(&mut *backend, 1, Op::Barrier);
            assert!(is_of(&mut *backend, rank), "a barrier moves nothing");
            run(&mut *backend, 2, Op::AllGather { cuts: None, take: Take::All });
            let gathered = backend.arena().lease(0);
            for owner in 0..world {
                let mut chunk = Chunks::even(len, world).chunk(owner);
                assert!(chunk.all(|i| gathered[i] == mark(owner, i)), "{len} floats of {world} ranks");
            }
            // Parts of any length, some of them empty.
            let cut = |rank: usize| if rank < world { len * rank * rank / (world * world) } else { len };
            let cuts: Vec<usize> = (0..=world).map(cut).collect();
            fill(&mut *backend, rank);
            run(&mut *backend, 3, Op::AllGather { cuts: Some(&cuts), take: Take::All });
            let gathered = backend.arena().lease(0);
            for owner in 0..world {
                let mut part = cuts[owner]..cuts[owner + 1];
                assert!(part.all(|i| gathered[i] == mark(owner, i)), "{len} floats of {world} ranks, cut");
            }
            for from in BTreeSet::from([0, world / 2, world - 1]) {
                fill(&mut *backend, rank);
                run(&mut *backend, 4 + from as u64, Op::Broadcast { from: Rank(from as u32) });
                assert!(is_of(&mut *backend, from), "rank {rank} of {world} from {from}, {len} floats");
            }
        });
    });
}

/// What ranks own by these cuts; each has, and needs, the parts of the rank behind it, and needs a little more.
fn of_neighbours(cuts: &[usize], len: usize) -> Narrow {
    let world = cuts.len() - 1;
    let part = |rank: usize| cuts[rank]..cuts[rank + 1];
    Narrow::new((0..world).map(|rank| {
        let has = vec![part(rank), part((rank + 1) % world)];
        let more = [len / 2..(len / 2 + 3).min(len), len..len];
        [has.iter().cloned().chain(more).collect(), has]
    }))
}

/// Sums and gathers of which each rank gets what it needs. *Panics* where one is wrong.
pub fn what_ranks_need_is_there_where_they_have_said_what_that_is(worlds: &[u32], make: Make<'_>) {
    of_all(worlds, COUNTS[0], |len, ranges| {
        let world = ranges.len();
        let cuts: Vec<usize> = (0..=world).map(|rank| len * rank / world).collect();
        let narrow = of_neighbours(&cuts, len);
        let want = want(len, &COUNTS);
        on_ranks(make(ranges, &COUNTS, len, Reduce::Exact), |rank, mut backend| {
            backend.narrow(&narrow);
            for (seq, (count, want)) in COUNTS.iter().zip(&want).enumerate() {
                let (sum, trailer) =
                    one_step(&mut *backend, 2 * seq as u64, ranges[rank], *count, Reduce::Exact);
                assert_eq!(trailer, want.1);
                for i in (0..len).filter(|i| narrow.is_needed(rank, &(*i..i + 1))) {
                    assert_eq!(sum[i], want.0[i], "element {i} of {len}, rank {rank} of {world}");
                }
                // Everybody has what the rank behind it owns, and nothing else yet.
                let slot = backend.arena().lease(0);
                slot.fill(f32::NAN);
                let has = |i: &usize| narrow.is_there(rank, &(*i..i + 1));
                (0..len).filter(has).for_each(|i| slot[i] = mark(0, i));
                let op = Op::AllGather { cuts: Some(&cuts), take: Take::Rest };
                run(&mut *backend, 2 * seq as u64 + 1, op);
                let gathered = backend.arena().lease(0);
                assert!((0..len).all(|i| gathered[i] == mark(0, i)), "rank {rank} of {world}, {len} floats");
            }
            // Of what the others give it has what it needs.
            let slot = backend.arena().lease(0);
            slot.fill(f32::NAN);
            cuts[rank..rank + 2].windows(2).flat_map(|own| own[0]..own[1]).for_each(|i| slot[i] = mark(0, i));
            let op = Op::AllGather { cuts: Some(&cuts), take: Take::Needed };
            run(&mut *backend, 2 * COUNTS.len() as u64, op);
            let gathered = backend.arena().lease(0);
            for i in (0..len).filter(|i| narrow.is_needed(rank, &(*i..i + 1))) {
                assert_eq!(gathered[i], mark(0, i), "element {i} of {len}, rank {rank} of {world}");
            }
        });
    });
}

/// Copies from and to any ranks. *Panics* where one is wrong.
pub fn a_copy_gives_the_targets_the_bits_of_the_sources(worlds: &[u32], make: Make<'_>) {
    for world in worlds {
        for len in lengths(*world) {
            let lists = copies(*world);
            on_ranks(make(&cut_evenly(4, *world), &[4], len, Reduce::Exact), |rank, mut backend| {
                // One backend copies many windows, one after the other, as the copy of a whole state does.
                for (seq, [sources, targets]) in lists.iter().enumerate() {
                    before_copy(backend.arena().lease(0), rank, sources);
                    run(&mut *backend, seq as u64, Op::Copy { sources, targets, len: usize::MAX });
                    let right = is_copied(backend.arena().lease(0), rank, sources, targets);
                    assert!(right, "rank {rank} of {world}, {len} floats, {sources:?} to {targets:?}");
                }
            });
        }
    }
}

/// A reduce-scatter, against the all-reduce of the same backend. *Panics* where one is wrong.
pub fn a_reduce_scatter_gives_each_rank_its_chunk_of_the_sum(worlds: &[u32], mode: Reduce, make: Make<'_>) {
    for world in worlds {
        let ranges = cut_evenly(7, *world);
        let whole = on_ranks(make(&ranges, &[7], 1_000, mode), |rank, mut backend| {
            steps(&mut *backend, ranges[rank], &[7], mode).remove(0)
        });
        on_ranks(make(&ranges, &[7], 1_000, mode), |rank, mut backend| {
            let trailers = compute(backend.arena(), ranges[rank], 7, mode);
            let op = Op::ReduceScatter { micro_batches: 7, trailers: &trailers };
            backend.start(Sequence(9), &op).expect("a sound start");
            assert_eq!(backend.finish(Sequence(9)), Ok(whole[rank].1));
            let chunk = Chunks::even(1_000, *world as usize).chunk(rank);
            assert_eq!(bits(&backend.arena().lease(0)[chunk.clone()]), whole[rank].0[chunk]);
        });
    }
}

/// Three hundred steps. *Panics* too if ranks differ, or a step from an earlier one of the same count.
pub fn many_steps_in_a_row_stay_right(world: u32, len: usize, mode: Reduce, make: Make<'_>) {
    let ranges = cut_evenly(6, world);
    let counts: Vec<u32> = (0..300).map(|step| [6, 5, 6, 1][step % 4]).collect();
    let got = on_ranks(make(&ranges, &[6, 5, 1], len, mode), |rank, mut backend| {
        steps(&mut *backend, ranges[rank], &counts, mode)
    });
    let first = match mode {
        Reduce::Exact => want(len, &counts[..4]),
        Reduce::Ring => got[0][..4].to_vec(),
    };
    for (rank, got) in got.iter().enumerate() {
        for (step, got) in got.iter().enumerate() {
            assert!(*got == first[step % 4], "rank {rank}, step {step}, {mode:?}");
        }
    }
}
