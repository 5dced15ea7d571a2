//! Nobody stays stuck behind a peer that does not come, nor behind a library that does not come back.

use crate::host_device::{HostDevice, HostSlots};
use crate::support::{backend, backends, child, communicators, is_child};
use dtrain_collective::{Aborter, Arena, Backend, CollectiveError, Geometry, Op, Reduce, Sequence, Take};
use dtrain_nccl::{Device, DeviceArena, NcclBackend, NcclError, NcclSetup};
use dtrain_oracle::conformance::{membership, on_threads, steps};
use dtrain_oracle::plain::{compute, reference, reference_trailer};
use dtrain_types::{Rank, cut_evenly};
use std::time::Duration;

/// What an abort of a library that is not stuck may take.
const WITHIN: Duration = Duration::from_secs(20);

fn step(backend: &mut dyn Backend, rank: usize, seq: u64) -> Result<(), CollectiveError> {
    let trailers = compute(backend.arena(), cut_evenly(6, 3)[rank], 6, Reduce::Exact);
    backend.start(Sequence(seq), &Op::AllReduce { micro_batches: 6, trailers: &trailers })?;
    backend.finish(Sequence(seq)).map(drop)
}

fn is_aborted(result: &Result<(), CollectiveError>) -> bool {
    matches!(result, Err(CollectiveError::Aborted { reason }) if reason == "rank 2 was killed")
}

#[test]
fn an_abort_ends_every_wait_and_every_later_call_says_so() {
    for mode in [Reduce::Exact, Reduce::Ring] {
        let mut backends = backends(&cut_evenly(6, 3), &[6], 50_000, mode);
        let missing = backends.pop().expect("three ranks");
        let aborters: Vec<Aborter> = backends.iter().map(|backend| backend.aborter()).collect();
        // The third rank never comes, so nothing but the abort can end these waits, whether it comes before or after.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                on_threads(backends, |rank, mut backend| {
                    let first = step(&mut backend, rank, 1);
                    let started = backend.start(Sequence(2), &Op::Barrier);
                    let later = backend.finish(Sequence(2)).map(drop);
                    (first, started, later)
                })
            });
            aborters.iter().for_each(|aborter| aborter.abort("rank 2 was killed"));
            for (first, started, later) in waiting.join().expect("no panic") {
                assert!(is_aborted(&first) && is_aborted(&started) && is_aborted(&later), "{first:?}");
            }
        });
        drop(missing);
    }
}

#[test]
fn a_mark_that_the_stream_passed_because_of_an_abort_is_no_success() {
    let ranges = cut_evenly(6, 3);
    let geometry = Geometry::plan(1_000, &ranges, &[6], Reduce::Exact);
    let mut made = communicators(3);
    drop(made.pop());
    // The communicator's own aborter: the backend has to find out by itself.
    let aborter = made[0].aborter();
    let mut one = backend(made.remove(0), membership(1, 0, &ranges), &[6], geometry, Reduce::Exact);
    let trailers = compute(one.arena(), ranges[0], 6, Reduce::Exact);
    one.start(Sequence(1), &Op::AllReduce { micro_batches: 6, trailers: &trailers }).expect("sound");
    aborter.abort("rank 2 was killed");
    // From here on nothing holds the stream up, and its marks are passed, now or soon.
    aborter.wait(WITHIN).expect("the library comes back");
    assert!(is_aborted(&one.finish(Sequence(1)).map(drop)));
    assert_eq!(one.start(Sequence(2), &Op::Barrier), Err(CollectiveError::Dead));
}

#[test]
fn what_a_failed_backend_was_made_of_serves_the_next_generation() {
    let ranges = cut_evenly(6, 3);
    // Room for every cut, because the next generation has another one.
    let geometry = Geometry::bound(3_000, 6, Reduce::Exact);
    let made = communicators(3).into_iter().enumerate().take(2);
    let made =
        made.map(|(rank, it)| backend(it, membership(1, rank, &ranges), &[6], geometry, Reduce::Exact));
    let failed: Vec<_> = made.collect();
    let parts = on_threads(failed, |rank, mut backend| {
        let aborter = backend.aborter();
        let result = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| step(&mut backend, rank, 1));
            aborter.abort("rank 2 was killed");
            waiting.join().expect("no panic")
        });
        assert!(is_aborted(&result), "{result:?}");
        let parts = backend.dissolve(WITHIN).expect("the stream comes to rest");
        assert!(parts.communicator.is_none(), "an aborted communicator is of no use");
        (parts.device, parts.arena)
    });
    let ranges = cut_evenly(6, 2);
    let counts = [6, 5];
    let next: Vec<_> = communicators(2).into_iter().zip(parts).collect();
    let got = on_threads(next, |rank, (communicator, (device, arena))| {
        let setup = NcclSetup {
            membership: membership(2, rank, &ranges),
            mode: Reduce::Exact,
            counts: &counts,
            cuts: &[],
        };
        let mut backend = NcclBackend::new(device, arena, communicator, setup).expect("a good setup");
        let got = steps(&mut backend, ranges[rank], &counts, Reduce::Exact);
        let parts = backend.dissolve(WITHIN).expect("nothing is under way");
        parts.communicator.expect("it did not fail").finalize(WITHIN).expect("all ranks end it");
        got
    });
    let want = counts.map(|count| (reference(3_000, count), reference_trailer(count)));
    assert!(got.iter().all(|rank| *rank == want), "the slots of the failed generation give the right bits");
}

#[test]
fn ranks_in_different_collectives_find_out_and_die() {
    let copy = Op::Copy { sources: &[Rank(1)], targets: &[Rank(0)], len: usize::MAX };
    for other in [Op::AllGather { cuts: None, take: Take::All }, copy, Op::Broadcast { from: Rank(0) }] {
        let results =
            on_threads(backends(&cut_evenly(2, 2), &[2], 100, Reduce::Exact), |rank, mut backend| {
                let op = if rank == 0 { Op::Barrier } else { other };
                let first = backend.start(Sequence(1), &op).and_then(|()| backend.finish(Sequence(1)));
                let later = backend.start(Sequence(2), &Op::Barrier);
                // Keeps the other end until both have heard of the other.
                (first.map(drop), later, backend)
            });
        for (first, later, _) in &results {
            assert!(matches!(first, Err(CollectiveError::Mismatch { .. })), "{first:?}");
            assert_eq!(*later, Err(CollectiveError::Dead));
        }
    }
}

#[test]
fn ranks_of_different_generations_find_out() {
    let ranges = cut_evenly(2, 2);
    let geometry = Geometry::plan(10, &ranges, &[2], Reduce::Exact);
    let results = on_threads(communicators(2), |rank, communicator| {
        let member = membership(1 + rank as u64, rank, &ranges);
        let mut backend = backend(communicator, member, &[2], geometry, Reduce::Exact);
        backend.start(Sequence(1), &Op::Barrier).expect("a sound start");
        (backend.finish(Sequence(1)), backend)
    });
    for (result, _) in &results {
        assert!(matches!(result, Err(CollectiveError::Superseded { .. })), "{result:?}");
    }
}

/// What the child of the next test does.
#[test]
fn see_a_link_break() {
    if !is_child() {
        return;
    }
    let results = on_threads(backends(&cut_evenly(6, 3), &[6], 1_000, Reduce::Exact), |rank, mut backend| {
        let failed = (1..).find_map(|seq| step(&mut backend, rank, seq).err()).expect("it fails one day");
        assert_eq!(backend.start(Sequence(u64::MAX), &Op::Barrier), Err(CollectiveError::Dead));
        failed
    });
    for error in results {
        println!("\nfailed {}", error.to_string().replace('\n', " "));
    }
}

#[test]
fn an_error_behind_the_callers_back_ends_the_wait_with_the_words_of_the_library() {
    // Three groups a step: the fifth is in the second step, and its call has returned long before.
    let run = child("aborts::see_a_link_break").env("FAKE_NCCL_FAIL_AT", "5").output().expect("a child");
    let said = String::from_utf8_lossy(&run.stdout);
    let failed: Vec<&str> = said.lines().filter(|line| line.starts_with("failed ")).collect();
    assert_eq!(failed.len(), 3, "{said}");
    for line in failed {
        for word in ["(code 6)", "remote process exited", "FAKE_NCCL_FAIL_AT", "hint: a peer is gone"] {
            assert!(line.contains(word), "'{word}' is not in: {line}");
        }
    }
}

/// What the child of the next test does.
#[test]
fn be_left_by_a_stuck_library() {
    if !is_child() {
        return;
    }
    let mut backends = backends(&cut_evenly(6, 3), &[6], 1_000, Reduce::Exact);
    let missing = backends.pop();
    let mut one = backends.pop().expect("three ranks");
    let aborter = one.aborter();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| step(&mut one, 1, 1));
        aborter.abort("rank 2 was killed");
        assert!(is_aborted(&waiting.join().expect("no panic")), "the wait ends although the abort does not");
    });
    let stuck = one.dissolve(Duration::from_millis(50)).map(drop);
    assert_eq!(stuck, Err(NcclError::Stuck { within: Duration::from_millis(50) }));
    println!("\nstuck: {}", stuck.expect_err("seen above"));
    // Without destructors: every one of them would wait for the library once more.
    std::mem::forget((missing, backends));
}

#[test]
fn a_library_that_never_comes_back_from_an_abort_holds_up_nobody() {
    let mut command = child("aborts::be_left_by_a_stuck_library");
    let run = command.env("FAKE_NCCL_STUCK_ABORT", "1").output().expect("a child");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("stuck: the communicator was not aborted after 50 ms"), "{said}");
}

#[test]
fn a_device_that_is_dropped_finishes_its_work_first() {
    let device = HostDevice::new().expect("a thread for the stream");
    let mut arena = HostSlots::new(Geometry { len: 100_000, root_slots: 1, scratch_slots: 0 });
    for turn in 0..100u8 {
        // SAFETY: the slot outlives the device, and nobody looks at it before.
        unsafe { device.fill(arena.address(0), 100_000, f32::from(turn)) }.expect("a queue");
    }
    drop(device);
    assert!(arena.lease(0).iter().all(|x| *x == 99.0));
}
