//! What a pass asks for and gives away while it computes, judged by the order in which that happens.

use crate::carries::{Carries, Parcel, ParcelKind};
use crate::error::RoundsError;
use crate::memory::Memory;
use crate::rounds::Rounds;
use crate::window_sums::{Round, RoundsPlan};
use crate::windowed_gradient::Then;
use dtrain_collective::CollectiveError;
use dtrain_engine::{
    BringsParameters, Call, Flat, Gradient, Itinerary, Layout, Section, StageSlice, Windows,
};
use dtrain_types::{Holders, NodeId, Rank, ShardLevel, Wire};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Parameters of a stage: it makes a window of its own.
const STAGE: usize = 5_000;
const STAGES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The parameters of this stage were asked for.
    Asked(usize),
    /// The pass has computed its so-manieth stage, forward and backward.
    Computed(usize),
    /// The gradient of this stage was given away.
    Gave(usize),
}

use Event::{Asked, Computed, Gave};

type Story = Arc<Mutex<Vec<Event>>>;

/// Writes down what it is told, and carries nothing.
#[derive(Default)]
struct Recorder {
    story: Story,
    brought: VecDeque<Parcel>,
    exchanged: VecDeque<Parcel>,
}

/// Windows lie from the end.
fn stage_of(window: usize) -> usize {
    STAGES - 1 - window
}

impl Carries for Recorder {
    fn bring(&mut self, parcel: Parcel) {
        self.story.lock().unwrap().push(Asked(stage_of(parcel.window)));
        self.brought.push_back(parcel);
    }

    fn brought(&mut self) -> Parcel {
        self.brought.pop_front().expect("it was asked for")
    }

    fn exchange(&mut self, parcel: Parcel, _round: Round) {
        self.story.lock().unwrap().push(Gave(stage_of(parcel.window)));
        self.exchanged.push_back(parcel);
    }

    fn exchanged(&mut self) -> Parcel {
        self.exchanged.pop_front().expect("it was given")
    }
}

fn stage(number: usize) -> Range<usize> {
    number * STAGE..(number + 1) * STAGE
}

/// The parameters that the first of two ranks has of its own.
fn own(elements: Range<usize>, to: &mut [f32]) {
    elements.zip(to).for_each(|(element, to)| *to = element as f32);
}

/// The first of two ranks.
fn rounds() -> Rounds {
    let slice = |number| StageSlice { name: String::new(), kind: "", parameters: stage(number), stats: 0..0 };
    let (stages, parameters) = ((0..STAGES).map(slice).collect(), STAGES * STAGE);
    let layout = Layout { stages, parameters, ..Layout::default() };
    let backward = (0..STAGES).rev().flat_map(|at| [Call::Reads(stage(at)), Call::Settles(stage(at).start)]);
    let itinerary = Itinerary { forward: (0..STAGES).map(stage).collect(), backward: backward.collect() };
    let windows = Windows::of(&layout, &[], itinerary);
    let holders = Holders::new(&[NodeId(0), NodeId(1)], 1);
    Rounds::new(&RoundsPlan {
        holders: &holders,
        cuts: &holders.cuts(parameters),
        rank: (Rank(0), 2),
        windows: &windows,
        lengths: (parameters, parameters),
        slot: 2 * STAGE,
        micro_batches: 2,
        wire: Wire::F32,
        level: ShardLevel::Parameters,
    })
}

/// A training pass over the stages up to this one, or over all of them and back again.
fn train(rounds: &mut Rounds, recorder: &mut Recorder, only_to: Option<usize>) {
    let story = Arc::clone(&recorder.story);
    let mut out = rounds.outing(recorder);
    let then = Then::Exchanged(Round { number: 0, micro_batches: 2 });
    let (_, mut brought, mut gradient) = out.training_pass(then);
    let mut number = 0;
    let mut compute = |at: usize| {
        assert_eq!(brought.bring(Section::Parameters, stage(at), &mut own).len(), STAGE);
        story.lock().unwrap().push(Computed(number));
        number += 1;
    };
    (0..only_to.unwrap_or(STAGES)).for_each(&mut compute);
    for at in (0..if only_to.is_some() { 0 } else { STAGES }).rev() {
        compute(at);
        gradient.part(stage(at)).fill(1.0);
        gradient.settle(stage(at).start);
    }
}

fn told(recorder: &Recorder) -> Vec<Event> {
    std::mem::take(&mut *recorder.story.lock().unwrap())
}

#[test]
fn the_next_window_is_asked_for_before_a_stage_is_computed_and_a_gradient_is_given_away_behind_it() {
    let (mut rounds, mut recorder) = (rounds(), Recorder::default());
    rounds.begin(Memory::Home(Flat::zeros(rounds.kept().elements())));
    train(&mut rounds, &mut recorder, None);
    // The last stage forward is the first one backward, whose window is still there.
    let forward = [Asked(0), Asked(1), Computed(0), Asked(2), Computed(1), Asked(1), Computed(2)];
    let backward = [Computed(3), Gave(2), Asked(0), Computed(4), Gave(1), Computed(5), Gave(0)];
    assert_eq!(told(&recorder), [forward, backward].concat());
    // The next micro-batch begins with what the last one ended with; the next step does not.
    train(&mut rounds, &mut recorder, None);
    assert_eq!(told(&recorder)[..2], [Asked(1), Computed(0)]);
    rounds.begin(Memory::Home(Flat::zeros(rounds.kept().elements())));
    train(&mut rounds, &mut recorder, None);
    assert_eq!(told(&recorder)[..3], [Asked(0), Asked(1), Computed(0)]);
}

#[test]
fn what_was_asked_for_and_is_not_used_comes_home_with_the_rest() {
    let (mut rounds, mut recorder) = (rounds(), Recorder::default());
    let carriage = rounds.set_out();
    // It ends behind the first stage, with the second one on its way.
    train(&mut rounds, &mut recorder, Some(1));
    assert_eq!(told(&recorder), [Asked(0), Asked(1), Computed(0)]);
    let unclaimed = recorder.brought.drain(..).map(|parcel| (ParcelKind::Parameters, parcel));
    assert_eq!(rounds.come_home(carriage, unclaimed), Ok(()));
    // There is memory for all that is carried, once more.
    rounds.begin(Memory::Home(Flat::zeros(rounds.kept().elements())));
    train(&mut rounds, &mut recorder, None);
    assert_eq!(recorder.exchanged.len() + rounds.at_once(), 4);
}

#[test]
fn what_a_rank_holds_of_a_window_is_what_it_reads_there() {
    let (mut rounds, mut recorder) = (rounds(), Recorder::default());
    let held = Holders::new(&[NodeId(0), NodeId(1)], 1).holding(Rank(0)).elements(STAGES * STAGE);
    let mut out = rounds.outing(&mut recorder);
    let (_, mut brought, _) = out.training_pass(Then::LookedAt);
    for at in 0..STAGES {
        let there = brought.bring(Section::Parameters, stage(at), &mut own);
        for (element, value) in stage(at).zip(there) {
            if held.iter().any(|run| run.contains(&element)) {
                assert_eq!(*value, element as f32);
            }
        }
    }
}

#[test]
fn a_break_is_told_once_all_is_home_and_is_no_break_of_the_next_outing() {
    let mut rounds = rounds();
    let mut broken = rounds.set_out();
    let mut parcel = Parcel { window: 0, memory: Memory::Home(Flat::zeros(STAGE)) };
    let mut exchange = Breaks { asked: 0 };
    broken.bring(&mut parcel, &mut exchange);
    broken.exchange(&parcel, Round { number: 0, micro_batches: 2 }, &mut exchange);
    assert!(broken.broke_off() && exchange.asked == 1, "nothing is carried behind a break");
    let went = rounds.come_home(broken, std::iter::empty());
    assert_eq!(went.map_err(RoundsError::from), Err(RoundsError::Exchange(CollectiveError::Dead)));
    let carriage = rounds.set_out();
    assert!(!carriage.broke_off());
    assert_eq!(rounds.come_home(carriage, std::iter::empty()), Ok(()));
}

/// Breaks off at once.
struct Breaks {
    asked: u32,
}

impl crate::Exchange for Breaks {
    fn slot(&mut self) -> &mut [f32] {
        Box::leak(Box::new([0.0; 2 * STAGE]))
    }

    fn narrow(&mut self, _narrow: &dtrain_collective::Narrow) {}

    fn gather(&mut self, _op: &dtrain_collective::Op<'_>) -> Result<(), CollectiveError> {
        self.asked += 1;
        Err(CollectiveError::Dead)
    }
}
