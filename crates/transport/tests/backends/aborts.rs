//! Nobody stays stuck behind a peer that does not come.

use crate::threads::{host, shm};
use dtrain_collective::{Aborter, Backend, CollectiveError, Geometry, Op, Reduce, Sequence, Take};
use dtrain_oracle::conformance::{membership, on_threads};
use dtrain_oracle::plain::compute;
use dtrain_transport::{ArenaFile, ShmBackend};
use dtrain_types::{Rank, WorldSize, cut_evenly};

fn step(backend: &mut dyn Backend, rank: usize, seq: u64) -> Result<(), CollectiveError> {
    let trailers = compute(backend.arena(), cut_evenly(6, 3)[rank], 6, Reduce::Exact);
    backend.start(Sequence(seq), &Op::AllReduce { micro_batches: 6, trailers: &trailers })?;
    backend.finish(Sequence(seq)).map(drop)
}

fn is_aborted(result: &Result<(), CollectiveError>) -> bool {
    matches!(result, Err(CollectiveError::Aborted { .. }))
}

#[test]
fn an_abort_ends_every_wait_and_every_later_call_says_so() {
    for make in [shm, host] {
        let mut backends = make(&cut_evenly(6, 3), &[6], 1_000, Reduce::Exact);
        let missing = backends.pop().expect("three ranks");
        let aborters: Vec<Aborter> = backends.iter().map(|backend| backend.aborter()).collect();
        // The third rank never comes, so nothing but the abort can end these waits, whether it comes before or after.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                on_threads(backends, |rank, mut backend| {
                    let first = step(&mut *backend, rank, 1);
                    (first, backend.start(Sequence(2), &Op::Barrier), backend.finish(Sequence(2)).map(drop))
                })
            });
            aborters.iter().for_each(|aborter| aborter.abort("rank 2 was killed"));
            for (first, second, third) in waiting.join().expect("no panic") {
                assert!(
                    is_aborted(&first) && is_aborted(&second) && is_aborted(&third),
                    "{first:?} {second:?}"
                );
            }
        });
        drop(missing);
    }
}

#[test]
fn in_shared_memory_one_abort_stops_the_whole_generation_and_no_later_one() {
    let ranges = cut_evenly(6, 3);
    let geometry = Geometry::plan(100, &ranges, &[6], Reduce::Exact);
    let mapping = ArenaFile::create(WorldSize(3), geometry).and_then(|file| file.map()).expect("an arena");
    let join = |generation| -> Vec<Box<dyn Backend>> {
        let backend = |rank| {
            ShmBackend::new(mapping.clone(), membership(generation, rank, &ranges), Reduce::Exact, &[6])
        };
        (0..3).map(|rank| Box::new(backend(rank).expect("free")) as Box<dyn Backend>).collect()
    };
    let old = join(1);
    let aborter = old[2].aborter();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            on_threads(old, |rank, mut backend| if rank == 2 { Ok(()) } else { step(&mut *backend, rank, 1) })
        });
        aborter.abort("a peer is gone");
        let results = waiting.join().expect("no panic");
        assert!(is_aborted(&results[0]) && is_aborted(&results[1]), "{results:?}");
    });
    let new = join(2);
    aborter.abort("an aborter that comes late");
    let results =
        on_threads(new, |rank, mut backend| (1..20).try_for_each(|seq| step(&mut *backend, rank, seq)));
    assert_eq!(results, [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn a_rank_left_behind_in_an_old_generation_learns_it() {
    let ranges = cut_evenly(2, 2);
    let geometry = Geometry::plan(10, &ranges, &[2], Reduce::Exact);
    let mapping = ArenaFile::create(WorldSize(2), geometry).and_then(|file| file.map()).expect("an arena");
    let join = |generation, rank| {
        ShmBackend::new(mapping.clone(), membership(generation, rank, &ranges), Reduce::Exact, &[2])
    };
    let mut behind = join(1, 0).expect("free");
    let mut ahead = join(2, 1).expect("free");
    ahead.start(Sequence(1), &Op::Barrier).expect("a sound start");
    behind.start(Sequence(1), &Op::Barrier).expect("a sound start");
    assert!(matches!(behind.finish(Sequence(1)), Err(CollectiveError::Superseded { .. })));
    assert_eq!(behind.start(Sequence(2), &Op::Barrier), Err(CollectiveError::Dead));
}

#[test]
fn ranks_in_different_collectives_find_out_and_die() {
    let copy = Op::Copy { sources: &[Rank(1)], targets: &[Rank(0)], len: usize::MAX };
    for (make, other) in [
        (shm as fn(&[_], &[_], _, _) -> _, Op::AllGather { cuts: None, take: Take::All }),
        (host, Op::AllGather { cuts: None, take: Take::All }),
        (shm, copy),
    ] {
        let results = on_threads(make(&cut_evenly(2, 2), &[2], 10, Reduce::Exact), |rank, mut backend| {
            let op = if rank == 0 { Op::Barrier } else { other };
            let first = backend.start(Sequence(1), &op).and_then(|()| backend.finish(Sequence(1)));
            let later = backend.start(Sequence(2), &Op::Barrier);
            // Keeps the other end until both have seen the other's frame.
            (first.map(drop), later, backend)
        });
        for (first, later, _) in &results {
            assert!(matches!(first, Err(CollectiveError::Mismatch { .. })), "{first:?}");
            assert_eq!(*later, Err(CollectiveError::Dead));
        }
    }
}
