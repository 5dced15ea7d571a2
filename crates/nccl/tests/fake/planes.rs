//! One plane after the other: what is handed on, and what is not.

use crate::host_device::{HostDevice, HostSlots};
use crate::support::{LONG, child, is_child, library};
use dtrain_collective::{Backend, CollectiveError, Geometry, Op, Reduce, Sequence};
use dtrain_nccl::{DeviceArena, NcclError, NcclPlane, NcclSetup, Patience, Planes, UniqueId};
use dtrain_oracle::conformance::{membership, on_threads, steps};
use dtrain_oracle::plain::{reference, reference_trailer};
use dtrain_types::{MicroRange, cut_evenly};
use std::time::Duration;

const LEN: usize = 3_000;
const COUNTS: [u32; 2] = [6, 5];

fn planes(end: Duration) -> Planes<HostDevice> {
    Planes::new(library(), Patience { meeting: LONG, end })
}

/// A plane whose slots tell by their first address whether they are new.
fn connect(
    planes: &mut Planes<HostDevice>,
    id: &UniqueId,
    (generation, rank): (u64, usize),
    ranges: &[MicroRange],
    made: &mut Vec<usize>,
) -> Result<NcclPlane<HostDevice>, NcclError> {
    let setup = NcclSetup {
        membership: membership(generation, rank, ranges),
        mode: Reduce::Exact,
        counts: &COUNTS,
        cuts: &[],
    };
    planes.connect(id, setup, Geometry::bound(LEN, COUNTS[0], Reduce::Exact), |geometry| {
        let slots = HostSlots::new(geometry);
        made.push(slots.address(0).0 as usize);
        Ok((HostDevice::new()?, slots))
    })
}

#[test]
fn a_plane_that_is_aborted_while_its_peers_come_hands_its_slots_on_to_the_next_which_has_the_right_bits() {
    let library = library();
    let (lonely, shared) = (library.unique_id().expect("an id"), library.unique_id().expect("an id"));
    let got = on_threads(vec![(), ()], |rank, ()| {
        let (mut planes, mut made) = (planes(LONG), Vec::new());
        if rank == 0 {
            // Two others never come.
            let mut waiting =
                connect(&mut planes, &lonely, (1, 0), &cut_evenly(6, 3), &mut made).expect("begun");
            let aborter = waiting.aborter();
            let result = std::thread::scope(|scope| {
                let meets = scope.spawn(|| waiting.start(Sequence(0), &Op::Barrier));
                aborter.abort("rank 2 was killed");
                meets.join().expect("no panic")
            });
            assert!(matches!(result, Err(CollectiveError::Aborted { .. })), "{result:?}");
        }
        let ranges = cut_evenly(6, 2);
        let mut plane = connect(&mut planes, &shared, (2, rank), &ranges, &mut made).expect("begun");
        plane.prepare(&COUNTS);
        let got = steps(&mut plane, ranges[rank], &COUNTS, Reduce::Exact);
        // It ends in order, which needs both.
        drop(plane);
        assert_eq!(made.len(), 1, "device and slots were made once");
        got
    });
    let want = COUNTS.map(|count| (reference(LEN, count), reference_trailer(count)));
    assert!(got.iter().all(|rank| *rank == want), "the slots of the aborted plane give the right bits");
}

/// What a child does whose library never comes back from an abort.
#[test]
fn be_stuck() {
    if !is_child() {
        return;
    }
    let (mut planes, mut made) = (planes(Duration::from_millis(50)), Vec::new());
    let id = library().unique_id().expect("an id");
    let alone = cut_evenly(6, 1);
    let mut plane = connect(&mut planes, &id, (1, 0), &alone, &mut made).expect("begun");
    plane.start(Sequence(0), &Op::Barrier).expect("nobody else is awaited");
    plane.finish(Sequence(0)).expect("nobody else is awaited");
    plane.aborter().abort("a test");
    drop(plane);
    for generation in [2, 3] {
        let again = connect(&mut planes, &id, (generation, 0), &alone, &mut made);
        let error = again.err().expect("nothing is made over a library that is stuck");
        assert!(matches!(error, NcclError::Stuck { .. }), "{error}");
    }
    println!("\nwas told");
    // Its threads are left behind with the library.
    std::process::exit(0);
}

#[test]
fn after_a_library_did_not_come_back_nothing_more_is_made_with_it() {
    let run = child("planes::be_stuck").env("FAKE_NCCL_STUCK_ABORT", "1").output().expect("a child");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && said.contains("was told"),
        "{said}{}",
        String::from_utf8_lossy(&run.stderr)
    );
}
