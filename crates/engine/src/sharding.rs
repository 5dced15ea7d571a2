//! The seam for replicas that keep the moments of some shards alone: each updates what it holds, and has the parameters of the rest from others.
//!
//! Statistics are whole on every replica; so are parameters and moving average, unless nobody is to have all of them. What counts of them, as of
//! the moments, is the part that a replica *holds*: it alone is brought up to date by [`Sharding::update_held`], all else is copied from whoever
//! holds it, or comes while a pass needs it (`gathering.rs`). This file does not know who holds what, nor how it travels; what an update does is
//! `sharded_update.rs`.

use crate::device::NORM_BLOCK;
use crate::error::EngineError;
use crate::flat::{Flat, FloatsOnLoan};
use crate::layout::{Layout, Section};
use crate::sharing::{UpdateShare, WORDS};
use crate::state::{State, StateShape};
use crate::update_info::UpdateInfo;
use dtrain_types::{DeviceMemory, Holders, Holding, Rank, Seed, Step, Transfer, joined, shard_elements};
use std::ops::Range;

/// Elements of a section that travel from one replica to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which section.
    pub section: Section,
    /// Its elements.
    pub elements: Range<usize>,
    /// Who gives them.
    pub source: Rank,
    /// Who needs them; not empty.
    pub targets: Vec<Rank>,
}

impl Piece {
    /// All that travels so that replicas of a state of this shape, which hold these shards, hold what they are to hold, in the order in which it
    /// does; none where nobody has one of the shards ([`Holders::transfers`]). Of a section that is held nobody has more than its shards.
    ///
    /// *Order*: a pure function of its arguments.
    #[must_use]
    pub fn all(
        state: StateShape,
        held: &[Holding],
        holders: &Holders,
        is_held: impl Fn(Section) -> bool,
    ) -> Option<Vec<Self>> {
        let transfers = holders.transfers(held)?;
        let lengths = state.lengths();
        let with = |none: bool| (0..).map(Rank).zip(held).filter(move |(_, it)| it.is_none() == none);
        // Statistics are on every replica that holds anything.
        let mut pieces = vec![Self {
            section: Section::Stats,
            elements: 0..lengths[Section::Stats as usize],
            source: with(false).next()?.0,
            targets: with(true).map(|(rank, _)| rank).collect(),
        }];
        for Transfer { shards, source, parameters, moments } in transfers {
            let piece = |section: Section| {
                let targets = if is_held(section) { &moments } else { &parameters };
                let elements = shard_elements(&shards, lengths[section as usize]);
                Self { section, elements, source, targets: targets.clone() }
            };
            let sections = [Section::Parameters, Section::Average, Section::First, Section::Second];
            pieces.extend(sections.map(piece));
        }
        pieces.retain(|piece| !piece.elements.is_empty() && !piece.targets.is_empty());
        Some(pieces)
    }
}

/// Where the words begin of what each of so many replicas sees of a gradient of so many parameters, and where those of the last one end.
///
/// *Order*: a pure function of its arguments.
#[must_use]
pub fn word_cuts(parameters: usize, replicas: usize) -> Vec<usize> {
    let of = |index| UpdateShare { index, of: replicas }.part(parameters, NORM_BLOCK);
    [0].into_iter().chain((0..replicas).map(|index| WORDS * of(index).end.div_ceil(NORM_BLOCK))).collect()
}

/// The elements of a reduced gradient that a replica needs which holds these shards and looks at this share of it: those, and the sums of
/// the statistics; in runs that rise.
///
/// *Order*: a pure function of its arguments.
#[must_use]
pub fn needed(
    holding: &Holding,
    share: UpdateShare,
    parameters: usize,
    gradient: usize,
) -> Vec<Range<usize>> {
    let beside = [share.part(parameters, NORM_BLOCK), parameters..gradient];
    joined(holding.elements(parameters).into_iter().chain(beside))
}

/// A reduced gradient.
#[derive(Debug)]
pub struct ReducedSum<'a> {
    /// Where it lies.
    pub lies: Lies<'a>,
    /// Its normaliser.
    pub weight: f64,
    /// Rows of the whole step.
    pub samples: u64,
}

/// Where a reduced gradient lies.
#[derive(Debug)]
pub enum Lies<'a> {
    /// In the memory of the host, as long as a gradient. A replica whose state is there does not copy it: it is given it for the update
    /// ([`Sharding::update_held`]), or when this memory goes ([`Sharding::keep_sum`]).
    Home(&'a [f32]),
    /// It is gradient 0 of those that the replica keeps ([`Keeping`](crate::Keeping)).
    Kept,
    /// What this replica needs of it ([`needed`]) lies in memory that it lent ([`Sharding::lend_sum`]), and is given back.
    Folded {
        /// Which elements, as they lie there.
        kept: Held,
        /// Theirs.
        sum: Flat,
    },
    /// The same in memory of its device, which it keeps until it lends it ([`ShardingThere::lend_sum`]).
    FoldedThere {
        /// Which elements, as they lie there.
        kept: Held,
        /// Theirs.
        sum: DeviceMemory,
    },
}

/// Where words are that replicas tell one another.
#[derive(Debug)]
pub enum Words<'a> {
    /// In the memory of the host.
    Home(&'a mut [f32]),
    /// In gradient 0 of those that the replica keeps, in place of these elements.
    Kept(Range<usize>),
}

/// A replica that keeps the moments of some shards.
pub trait Sharding {
    /// Of which sections it has but what it holds.
    fn holds(&self, section: Section) -> bool;

    /// The shards that it holds, of the state of [`Replica::applied`](crate::Replica::applied); none before the first was adopted.
    fn holding(&self) -> &Holding;

    /// Lends memory of the host for a sum of so many elements: what was kept of the one before is forgotten.
    fn lend_sum(&mut self, elements: usize) -> Flat;

    /// What it does in memory of its device, if it has one whose memory others reach.
    fn there(&mut self) -> Option<&mut dyn ShardingThere> {
        None
    }

    /// Keeps what update number `step` needs of a reduced gradient, and looks at its share of it. Nothing of the state is changed.
    ///
    /// *Errors*: of the device. *Panics* as `Replica::update`.
    fn measure(&mut self, step: Step, sum: ReducedSum<'_>, share: UpdateShare) -> Result<(), EngineError>;

    /// Writes what this replica saw in its share into its words.
    ///
    /// *Errors*: of the device. *Panics* if there is another number of them.
    fn tell(&mut self, words: Words<'_>) -> Result<(), EngineError>;

    /// Takes the words of all replicas. *Blocks* for the device. *Errors*: of the device.
    fn hear(&mut self, words: Words<'_>) -> Result<(), EngineError>;

    /// The update that was measured, of which all was heard, and that is not made.
    fn measured(&self) -> Option<Step>;

    /// Says what the update comes to that was measured last, whether or not it is made by now. All that was seen of it was heard.
    ///
    /// *Errors*: as `Replica::update`.
    fn settle(&mut self) -> Result<UpdateInfo, EngineError>;

    /// Whether the sum that was measured last is where it was, in the memory of the host, and not here.
    fn sum_is_home(&self) -> bool {
        false
    }

    /// Copies what the update needs that was measured and is not made: the memory goes in which the sum lies that is given.
    fn keep_sum(&mut self, _home: &[f32]) {}

    /// Makes the update that was measured, of what this replica holds: from the sum that is given, if that is [home](Sharding::sum_is_home).
    ///
    /// *Order*: the bits are those of one replica that does all of it. *Errors*: of the device. *Panics* unless it is settled, if it was made, or if
    /// nobody has the sum.
    fn update_held(&mut self, home: Option<&[f32]>) -> Result<(), EngineError>;

    /// All parameters of this update are here, those of others too: brings the rest up to date with them.
    fn commit(&mut self, step: Step);

    /// Reads elements of a section from its first one on, counted as those of the parameters. *Blocks* for the device. *Errors*: of the device.
    /// *Panics* if it does not have them.
    fn read(&mut self, section: Section, from: usize, to: &mut [f32]) -> Result<(), EngineError>;

    /// Lends elements of a section, counted as those of the parameters, to somebody who reads them as they are now while it goes on; none where they lie
    /// elsewhere than in the host's memory. An update meanwhile copies them. *Panics* if it does not have them.
    fn lend(&mut self, _section: Section, _elements: Range<usize>) -> Option<FloatsOnLoan> {
        None
    }

    /// Writes what others hold of parameters or moving average; or the statistics. *Errors*: of the device. *Panics* if it has but what it holds
    /// of the section.
    fn write(&mut self, section: Section, to: usize, values: &[f32]) -> Result<(), EngineError>;

    /// Memory of the host for the moments of these shards, in which those lie already that it holds now. It goes on with what it has.
    ///
    /// *Blocks* for the device. *Errors*: of the device.
    fn prepare(&mut self, holding: &Holding) -> Result<HeldState, EngineError>;

    /// Holds these shards from now on, in a state of so many updates. An update that was measured is forgotten.
    ///
    /// *Errors*: of the device, or it has no room; it then holds nothing.
    fn adopt(&mut self, moments: HeldState, applied: Step) -> Result<(), EngineError>;
}

/// What a replica with shards does in the memory of its device, to which others bring things: all of it is work that the device is given, and nobody waits
/// for it. *Panics* in all of it if memory is not of this device, or ends too early.
pub trait ShardingThere {
    /// Whether it can work in such memory.
    fn works_in(&self, memory: &DeviceMemory) -> bool;

    /// [`Sharding::lend_sum`], of the memory that it was left with the sum before, if that has so many elements.
    fn lend_sum(&mut self, elements: usize) -> Option<DeviceMemory>;

    /// Lays elements of a section, which it has, into memory, from element `at` on.
    fn lay(&mut self, section: Section, elements: Range<usize>, to: &DeviceMemory, at: usize);

    /// Takes parameters that others hold from memory, from element `at` on. *Panics* if it has but what it holds of them.
    fn pick(&mut self, parameters: Range<usize>, from: &DeviceMemory, at: usize);
}

/// What a replica has of some shards alone: the moments, and the parameters and their moving average where nobody has all of them.
#[derive(Clone, Debug, Default)]
pub struct HeldState {
    holding: Holding,
    held: Held,
    there: HeldSections,
    sections: [Flat; Section::COUNT],
}

/// Of which sections a replica has but what it holds, in the order of [`Section::ALL`].
pub(crate) type HeldSections = [bool; Section::COUNT];

impl HeldState {
    /// Zeros for these shards of so many parameters, in those sections that there are.
    pub(crate) fn zeros(holding: &Holding, parameters: usize, there: HeldSections) -> Self {
        let held = Held::of(holding.elements(parameters));
        let len = held.elements();
        let sections = there.map(|there| Flat::zeros(if there { len } else { 0 }));
        Self { holding: holding.clone(), held, there, sections }
    }

    /// The shards.
    #[must_use]
    pub fn holding(&self) -> &Holding {
        &self.holding
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// Whether a section is one of which it has a part.
    #[must_use]
    pub fn has(&self, section: Section) -> bool {
        self.there[section as usize]
    }

    /// The sections of which it has a part.
    pub(crate) fn sections_there(&self) -> impl Iterator<Item = Section> + use<> {
        let there = self.there;
        Section::ALL.into_iter().filter(move |section| there[*section as usize])
    }

    /// All that it has of a section, the runs that are held one behind the other.
    pub(crate) fn section(&self, section: Section) -> &[f32] {
        &self.sections[section as usize]
    }

    /// Elements of a section, counted as those of the parameters. *Panics* if they are not all among these.
    #[must_use]
    pub fn part(&self, section: Section, elements: Range<usize>) -> &[f32] {
        let at = self.held.place(&elements);
        &self.sections[section as usize][at]
    }

    /// Lends the same ([`Flat::lend`]).
    pub(crate) fn lend(&mut self, section: Section, elements: &Range<usize>) -> Option<FloatsOnLoan> {
        let part = self.held.place(elements);
        self.sections[section as usize].lend(part)
    }

    /// The same, to write.
    pub fn part_mut(&mut self, section: Section, elements: Range<usize>) -> &mut [f32] {
        let at = self.held.place(&elements);
        &mut self.sections[section as usize][at]
    }

    pub(crate) fn sections_mut(&mut self) -> [&mut [f32]; Section::COUNT] {
        self.sections.each_mut().map(|flat| &mut **flat)
    }

    /// Copies what a state has of them by itself: first values, or those of a file, before anything was held.
    pub(crate) fn take_first(&mut self, state: &State) {
        for section in self.sections_there() {
            let first = state.section(section);
            for run in self.holding.elements(first.len()) {
                self.part_mut(section, run.clone()).copy_from_slice(&first[run]);
            }
        }
    }

    /// Draws the first parameters of what it has of them, and has their moving average begin with them.
    pub(crate) fn draw_first(&mut self, layout: &Layout, seed: Seed) {
        let drawn = |section: &Section| matches!(section, Section::Parameters | Section::Average);
        for section in self.sections_there().filter(drawn) {
            for run in self.holding.elements(layout.parameters) {
                layout.first_parameters(seed, run.clone(), self.part_mut(section, run));
            }
        }
    }

    /// Copies what both have.
    pub(crate) fn take_from(&mut self, other: &Self) {
        for both in self.held.meets(&other.held) {
            for section in self.sections_there() {
                let from = other.part(section, both.clone());
                self.part_mut(section, both.clone()).copy_from_slice(from);
            }
        }
    }
}

/// Runs of elements that lie one behind the other in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// They rise; none is empty.
    pub(crate) runs: Vec<Range<usize>>,
    /// Where each begins.
    pub(crate) starts: Vec<usize>,
}

impl Held {
    /// Those of these elements. *Panics* if the runs do not rise, or one is empty.
    #[must_use]
    pub fn of(runs: Vec<Range<usize>>) -> Self {
        let rise = runs.windows(2).all(|pair| pair[0].end <= pair[1].start);
        assert!(rise && runs.iter().all(|run| !run.is_empty()), "runs that rise: {runs:?}");
        let starts = runs.iter().scan(0, |next, run| Some(std::mem::replace(next, *next + run.len())));
        Self { starts: starts.collect(), runs }
    }

    /// The same, and these elements behind them.
    pub(crate) fn and(&self, behind: Range<usize>) -> Self {
        let behind = std::iter::once(behind).filter(|run| !run.is_empty());
        Self::of(self.runs.iter().cloned().chain(behind).collect())
    }

    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[Range<usize>] {
        &self.runs
    }

    /// What both have, as runs that rise.
    #[must_use]
    pub fn meets(&self, other: &Self) -> Vec<Range<usize>> {
        let both = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start)..a.end.min(b.end);
        let with = |a| other.runs.iter().map(move |b| both(a, b));
        self.runs.iter().flat_map(with).filter(|run| !run.is_empty()).collect()
    }

    /// How many elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.runs.iter().map(Range::len).sum()
    }

    /// Where elements lie that are neighbours. *Panics* if they are not held.
    #[must_use]
    pub fn place(&self, elements: &Range<usize>) -> Range<usize> {
        if elements.is_empty() {
            return 0..0;
        }
        let run = self.runs.partition_point(|run| run.end <= elements.start);
        let found = self.runs.get(run).filter(|it| it.start <= elements.start && elements.end <= it.end);
        let found = found.unwrap_or_else(|| panic!("elements {elements:?} are not held: {:?}", self.runs));
        let at = self.starts[run] + elements.start - found.start;
        at..at + elements.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: HeldSections = [false, false, true, false, false];

    #[test]
    fn what_two_holdings_have_in_common_is_taken_over() {
        let parameters = 1024 * 256;
        let old = Holding::of([0..300, 700..1024]);
        let mut moments = HeldState::zeros(&old, parameters, MOMENT);
        for run in old.elements(parameters) {
            let values = moments.part_mut(Section::First, run.clone());
            values.iter_mut().zip(run).for_each(|(value, at)| *value = at as f32);
        }
        let new = Holding::of([200..500, 500..800]);
        let mut next = HeldState::zeros(&new, parameters, MOMENT);
        next.take_from(&moments);
        for (at, value) in (200 * 256..800 * 256).zip(next.part(Section::First, 200 * 256..800 * 256)) {
            let had = !(300 * 256..700 * 256).contains(&at);
            assert_eq!(*value, if had { at as f32 } else { 0.0 });
        }
        assert!(next.part(Section::First, 7..7).is_empty());
    }

    #[test]
    #[should_panic(expected = "are not held")]
    fn what_is_not_held_cannot_be_read() {
        let moments = HeldState::zeros(&Holding::of([0..10, 20..30]), 1024 * 256, MOMENT);
        let _ = moments.part(Section::First, 9 * 256..21 * 256);
    }
}
