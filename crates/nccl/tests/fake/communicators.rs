//! Communicators made from others, and the ways in which they end.

use crate::conformance::{membership, on_threads, steps};
use crate::plain::{reference, reference_trailer};
use crate::support::{LONG, backend, communicators, join, library};
use dtrain_collective::{Geometry, Mode};
use dtrain_nccl::{Communicator, Forming, NcclError, ParentState};
use dtrain_types::{Rank, WorldSize, cut_evenly};
use std::time::Duration;

const COUNTS: [u32; 2] = [8, 5];
const LEN: usize = 1_003;

/// Steps over a communicator, however it came about; tells whether their bits are right.
fn works(communicator: Communicator) -> bool {
    let (rank, world) = (communicator.rank(), communicator.world());
    let ranges = cut_evenly(COUNTS[0], world as u32);
    let geometry = Geometry::plan(LEN, &ranges, &COUNTS, Mode::Exact);
    let member = membership(1, rank, &ranges);
    let mut backend = backend(communicator, member, &COUNTS, geometry, Mode::Exact);
    let got = steps(&mut backend, ranges[rank], &COUNTS, Mode::Exact);
    let parts = backend.dissolve(LONG).expect("nothing is under way");
    parts.communicator.expect("it did not fail").finalize(LONG).expect("all ranks end it");
    got == COUNTS.map(|count| (reference(LEN, count), reference_trailer(count)))
}

#[test]
fn a_split_puts_the_ranks_of_one_color_together_by_key() {
    on_threads(communicators(5), |rank, parent| {
        let color = [Some(0), Some(1), None, Some(1), Some(0)][rank];
        let child = parent.split(color, 9 - rank as u16, LONG).expect("all ranks split");
        assert_eq!(child.is_none(), color.is_none(), "old rank {rank}");
        if let Some(child) = child {
            assert_eq!((child.rank(), child.world()), ([1, 1, 9, 0, 0][rank], 2), "old rank {rank}");
            assert!(works(child));
        }
        // The parent is as good as before, for a second family too.
        let all = parent.split(Some(3), rank as u16, LONG).expect("all ranks split");
        assert!(works(all.expect("everybody has a color")));
        assert!(works(parent));
    });
}

#[test]
fn a_communicator_shrinks_without_ranks_that_are_gone() {
    for state in [ParentState::Quiet, ParentState::Failed] {
        let mut parents = communicators(4);
        drop(parents.remove(1));
        let places = on_threads(parents, |_, parent| {
            let old = parent.rank();
            let child = parent.shrink(&[Rank(1)], state, LONG).expect("the others are there");
            let place = (old, child.rank(), child.world());
            assert!(works(child));
            place
        });
        assert_eq!(places, [(0, 0, 3), (2, 1, 3), (3, 2, 3)]);
    }
}

#[test]
fn a_revoked_communicator_has_stopped_and_can_still_shrink() {
    let mut parents = communicators(3);
    drop(parents.pop());
    on_threads(parents, |_, parent| {
        let revoked = parent.revoke(LONG).expect("a revocation asks nobody");
        let child = revoked.shrink(&[Rank(2)], LONG).expect("the others are there");
        assert!(works(child));
    });
}

#[test]
fn a_communicator_grows_by_ranks_that_were_told_an_id() {
    let library = library();
    let mut parents = communicators(2);
    let coordinator = parents.remove(0);
    let id = coordinator.growth_id().expect("an id");
    let world = WorldSize(4);
    std::thread::scope(|scope| {
        let (library, id) = (&library, &id);
        for rank in [2, 3] {
            scope.spawn(move || {
                let forming = Forming::begin_in_grown(library, id, Rank(rank), world).expect("begun");
                assert!(works(forming.wait(LONG).expect("all come")));
            });
        }
        let other = parents.remove(0);
        scope.spawn(move || assert!(works(other.grow(world, None, LONG).expect("all come"))));
        let grown = coordinator.grow(world, Some(id), LONG).expect("all come");
        assert_eq!((grown.rank(), grown.world()), (0, 4));
        assert!(works(grown));
    });
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
    let alone = two.remove(0).shrink(&[Rank(1)], ParentState::Quiet, within).map(drop);
    assert!(alone.is_err(), "a rank cannot leave itself out");
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
