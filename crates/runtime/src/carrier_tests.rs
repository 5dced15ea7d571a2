//! A carrier on its way, over backends that end a collective when they are told to.

use super::*;
use dtrain_collective::{Abort, Aborter, Arena, CollectiveError, Geometry, HostArena, Op};
use dtrain_engine::{Flat, Itinerary, Layout, StageSlice, Windows};
use dtrain_rounds::{Memory, RoundsPlan};
use dtrain_types::{Holders, NodeId, Rank, ShardLevel, Trailer, Wire};
use std::sync::{Condvar, Mutex};

/// Parameters of a stage: it makes a window of its own.
const STAGE: usize = 5_000;

/// What happened, in its order.
#[derive(Default)]
struct Story {
    events: Mutex<Vec<Event>>,
    told: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The collective of this number began.
    Began(u64),
    /// Whoever gave orders went on.
    WentOn,
}

impl Story {
    fn tell(&self, event: Event) {
        self.events.lock().expect("no holder panics").push(event);
        self.told.notify_all();
    }

    /// Waits for an event. *Panics* if it does not come.
    fn wait_for(&self, event: Event) {
        let events = self.events.lock().expect("no holder panics");
        let missing = |events: &mut Vec<Event>| !events.contains(&event);
        let waited = self.told.wait_timeout_while(events, Duration::from_secs(60), missing);
        let (events, waited) = waited.expect("no holder panics");
        assert!(!waited.timed_out(), "{event:?} does not come: {events:?}");
    }
}

/// Moves nothing: a collective ends when what it waits for has happened, and one of them breaks off.
struct Slow {
    story: Arc<Story>,
    arena: HostArena,
    /// Those whose end waits until somebody went on.
    waits: bool,
    breaks: Option<u64>,
}

struct Never;

impl Abort for Never {
    fn abort(&self, _reason: &str) {}
}

impl Backend for Slow {
    fn prepare(&mut self, _counts: &[u32]) {}

    fn arena(&mut self) -> &mut dyn Arena {
        &mut self.arena
    }

    fn start(&mut self, seq: Sequence, _op: &Op<'_>) -> Result<(), CollectiveError> {
        self.story.tell(Event::Began(seq.0));
        Ok(())
    }

    fn finish(&mut self, seq: Sequence) -> Result<Trailer, CollectiveError> {
        if self.waits {
            self.story.wait_for(Event::WentOn);
        }
        match self.breaks == Some(seq.0) {
            true => Err(CollectiveError::Dead),
            false => Ok(Trailer::EMPTY),
        }
    }

    fn aborter(&self) -> Aborter {
        Aborter::new(Arc::new(Never))
    }

    fn describe(&self) -> String {
        "slow".into()
    }
}

/// The first of two ranks, of three stages.
fn rounds() -> Rounds {
    let stage = |at: usize| at * STAGE..(at + 1) * STAGE;
    let slice = |at| StageSlice { name: String::new(), kind: "", parameters: stage(at), stats: 0..0 };
    let (stages, parameters) = ((0..3).map(slice).collect(), 3 * STAGE);
    let windows = Windows::of(&Layout { stages, parameters, ..Layout::default() }, &[], Itinerary::default());
    let holders = Holders::new(&[NodeId(0), NodeId(1)], 1);
    let mut rounds = Rounds::new(&RoundsPlan {
        holders: &holders,
        cuts: &holders.cuts(parameters),
        rank: (Rank(0), 2),
        windows: &windows,
        lengths: (parameters, parameters),
        slot: 2 * STAGE,
        micro_batches: 2,
        wire: Wire::F32,
        level: ShardLevel::Parameters,
    });
    rounds.begin(Memory::Home(Flat::zeros(rounds.kept().elements())));
    rounds
}

fn slow(story: &Arc<Story>, waits: bool, breaks: Option<u64>) -> Lendable {
    let arena = HostArena::new(Geometry { len: 2 * STAGE, root_slots: 1, scratch_slots: 0 });
    Lendable::new(Box::new(Slow { story: Arc::clone(story), arena, waits, breaks }))
}

fn parcel(window: usize) -> Parcel {
    Parcel { window, memory: Memory::Home(Flat::zeros(STAGE)) }
}

const ROUND: Round = Round { number: 0, micro_batches: 2 };

#[test]
fn windows_travel_while_whoever_gave_them_goes_on_and_come_back_in_their_order() {
    let story = Arc::new(Story::default());
    let (mut backend, mut sequence) = (slow(&story, true, None), Sequence(7));
    let mut rounds = CarriedRounds::new(rounds());
    let out = rounds.set_out(&mut backend, &mut sequence);
    out.carrier.bring(parcel(0));
    out.carrier.exchange(parcel(1), ROUND);
    out.carrier.bring(parcel(2));
    story.wait_for(Event::Began(8));
    assert!(!story.events.lock().unwrap().contains(&Event::Began(9)), "one after the other");
    story.tell(Event::WentOn);
    let brought = [out.carrier.brought(), out.carrier.brought()].map(|parcel| parcel.window);
    assert_eq!((brought, out.carrier.exchanged().window), ([0, 2], 1));
    assert!(out.finish().is_ok());
    let events = story.events.lock().unwrap();
    assert_eq!(events[..], [Event::Began(8), Event::WentOn, Event::Began(9), Event::Began(10)]);
    assert_eq!(sequence, Sequence(10), "others count on from here");
}

#[test]
fn a_collective_that_breaks_off_is_told_when_all_is_home_again_and_what_comes_behind_it_is_not_begun() {
    for breaks in 1..=4 {
        let story = Arc::new(Story::default());
        let (mut backend, mut sequence) = (slow(&story, false, Some(breaks)), Sequence(0));
        let mut rounds = CarriedRounds::new(rounds());
        let out = rounds.set_out(&mut backend, &mut sequence);
        for window in [0, 1] {
            out.carrier.bring(parcel(window));
            out.carrier.exchange(parcel(window), ROUND);
        }
        // They come back all the same, or with the carrier.
        out.carrier.brought();
        let before = out.rounds.at_once();
        let broke_off = matches!(out.finish(), Err(Broke::Off(_)));
        assert!(broke_off, "{breaks}");
        // One of the parameters and two of a gradient nobody had taken.
        assert_eq!(rounds.rounds.at_once(), before + 2);
        assert_eq!(sequence, Sequence(breaks), "nothing is carried behind it");
        assert!(rounds.carrier.broke_off.load(Ordering::Relaxed));
        // Whoever sets out again is not told of it.
        let mut other = slow(&story, false, None);
        assert!(rounds.set_out(&mut other, &mut sequence).finish().is_ok());
    }
}

#[test]
fn a_carrier_comes_home_also_when_whoever_sent_it_gives_up() {
    let story = Arc::new(Story::default());
    let (mut backend, mut sequence) = (slow(&story, false, None), Sequence(0));
    let mut rounds = CarriedRounds::new(rounds());
    let out = rounds.set_out(&mut backend, &mut sequence);
    out.carrier.bring(parcel(0));
    drop(out);
    assert_eq!(sequence, Sequence(1));
    assert_eq!(backend.describe(), "slow", "the backend is back");
    assert!(rounds.set_out(&mut backend, &mut sequence).finish().is_ok());
}
