//! What others do on the slot of a backend between collectives.

use crate::support::backends;
use dtrain_collective::{Backend, Narrow, Op, Reduce, Sequence, Spot, Take};
use dtrain_oracle::conformance::on_threads;
use dtrain_oracle::plain::bits;
use dtrain_types::{DeviceMemory, MicroRange};

const LEN: usize = 1_000;

/// Rank `rank`'s part of a window.
fn own(rank: usize) -> Vec<f32> {
    (0..LEN / 2).map(|at| (rank * LEN + at) as f32 / 3.0).collect()
}

fn write(backend: &mut dyn Backend, memory: &DeviceMemory, values: &[f32]) {
    backend.arena().lease_part(0, 0..values.len()).copy_from_slice(values);
    backend.device_slot().expect("a slot").take(0..values.len(), memory, 0).expect("a device that works");
}

fn read(backend: &mut dyn Backend, memory: &DeviceMemory, floats: usize) -> Vec<f32> {
    backend.device_slot().expect("a slot").put(memory, 0..floats, 0).expect("a device that works");
    // A collective of its own: behind it the host may look.
    backend.start(Sequence(9), &Op::Barrier).and_then(|()| backend.finish(Sequence(9))).expect("all come");
    backend.arena().lease(0)[..floats].to_vec()
}

#[test]
fn windows_that_lie_on_devices_are_gathered_and_added_there() {
    let ranges = [MicroRange { lo: 0, hi: 1 }, MicroRange { lo: 1, hi: 2 }];
    let half = LEN / 2;
    let sums = on_threads(backends(&ranges, &[], LEN, Reduce::Exact), |rank, mut backend| {
        let slot = backend.device_slot().expect("a slot");
        let (window, sum) = (slot.memory(half).expect("memory"), slot.memory(half).expect("memory"));
        write(&mut backend, &window, &own(rank));
        let slot = backend.device_slot().expect("a slot");
        slot.put(&window, 0..half, rank * half).expect("a device that works");
        // Rank 0 needs all of both, and rank 1 nothing of rank 0's.
        let needs = [std::iter::once(0..LEN).collect(), std::iter::once(half..LEN).collect()];
        backend.narrow(&Narrow::new(needs.map(|needs| [needs, Vec::new()])));
        let gather = Op::AllGather { cuts: Some(&[0, half, LEN]), take: Take::Needed };
        backend.start(Sequence(1), &gather).and_then(|()| backend.finish(Sequence(1))).expect("both come");
        let slot = backend.device_slot().expect("a slot");
        slot.take(half..LEN, &sum, 0).expect("a device that works");
        slot.add(Spot::Memory(&sum, 0), Spot::Slot(0), half).expect("a device that works");
        slot.hand_over().expect("a device that works");
        read(&mut backend, &sum, half)
    });
    let sum_of =
        |a: Vec<f32>, b: Vec<f32>| -> Vec<f32> { a.into_iter().zip(b).map(|(a, b)| a + b).collect() };
    assert!(bits(&sums[0]) == bits(&sum_of(own(1), own(0))));
    // What it did not need did not travel: its slot has what was there, its own.
    assert!(bits(&sums[1]) == bits(&sum_of(own(1), own(1))));
}

#[test]
fn a_backend_that_was_aborted_lends_nothing_and_moves_nothing() {
    let all = backends(&[MicroRange { lo: 0, hi: 1 }], &[], LEN, Reduce::Exact);
    for mut backend in all {
        let memory = backend.device_slot().expect("a slot").memory(10).expect("memory");
        backend.aborter().abort("it is told to");
        let slot = backend.device_slot().expect("a slot");
        assert!(slot.memory(10).is_err());
        assert!(slot.put(&memory, 0..10, 0).is_err() && slot.take(0..10, &memory, 0).is_err());
        assert!(slot.add(Spot::Slot(0), Spot::Memory(&memory, 0), 10).is_err() && slot.hand_over().is_err());
    }
}
