//! The ways in which communicators come about and end.

use crate::support::{LONG, backend, communicators, join, library};
use dtrain_collective::{Geometry, Reduce};
use dtrain_nccl::{Communicator, Forming, NcclError};
use dtrain_oracle::conformance::{membership, steps};
use dtrain_oracle::plain::{reference, reference_trailer};
use dtrain_types::{Rank, WorldSize, cut_evenly};
use std::time::Duration;

const COUNTS: [u32; 2] = [8, 5];
const LEN: usize = 1_003;

/// Steps over a communicator, however it came about; tells whether their bits are right.
fn works(communicator: Communicator) -> bool {
    let (rank, world) = (communicator.rank(), communicator.world());
    let ranges = cut_evenly(COUNTS[0], world as u32);
    let geometry = Geometry::plan(LEN, &ranges, &COUNTS, Reduce::Exact);
    let member = membership(1, rank, &ranges);
    let mut backend = backend(communicator, member, &COUNTS, geometry, Reduce::Exact);
    let got = steps(&mut backend, ranges[rank], &COUNTS, Reduce::Exact);
    let parts = backend.dissolve(LONG).expect("nothing is under way");
    parts.communicator.expect("it did not fail").finalize(LONG).expect("all ranks end it");
    got == COUNTS.map(|count| (reference(LEN, count), reference_trailer(count)))
}

#[test]
fn waiting_for_ranks_that_do_not_come_ends_at_the_deadline() {
    let library = library();
    let id = library.unique_id().expect("an id");
    let within = Duration::from_millis(30);
    let forming = Forming::begin(&library, &id, Rank(0), WorldSize(2)).expect("begun");
    let late = forming.wait(within).map(drop);
    assert_eq!(late, Err(NcclError::Deadline { what: "the meeting of all ranks", within }));
    let text = late.expect_err("seen above").to_string();
    assert!(text.contains("not done after 30 ms\nhint: "), "{text}");
    let mut two = communicators(2);
    let alone = two.remove(0).finalize(within);
    assert!(matches!(alone, Err(NcclError::Deadline { .. })), "{alone:?}");
}

#[test]
fn an_abort_ends_the_forming_and_says_why() {
    let library = library();
    let id = library.unique_id().expect("an id");
    let forming = Forming::begin(&library, &id, Rank(1), WorldSize(2)).expect("begun");
    let aborter = forming.aborter();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| forming.wait(LONG).map(drop));
        aborter.abort("the generation is over");
        aborter.abort("a second reason");
        let reason = "the generation is over".to_owned();
        assert_eq!(waiting.join().expect("no panic"), Err(NcclError::Aborted { reason }));
    });
    assert_eq!(aborter.wait(LONG), Ok(()), "the library came back from it");
}

#[test]
fn a_communicator_of_one_rank_works_and_ends() {
    let library = library();
    let id = library.unique_id().expect("an id");
    let alone = join(&library, &id, 0, 1);
    assert_eq!(alone.check(), Ok(()));
    assert!(works(alone));
    let id = library.unique_id().expect("an id");
    assert_eq!(join(&library, &id, 0, 1).abort(LONG), Ok(()));
}
