//! The memory of a state that replicas share: what lies where in it, and how one replica reaches it.
//!
//! The parameters, the moments and the moving average lie there once, the running statistics, which are short, twice. Behind them come the journals
//! of the replicas. Words tell what is in these areas. This file knows the places; when they are written is `shared_update.rs`.

use crate::device::NORM_BLOCK;
use crate::flat::Flat;
use crate::layout::Section;
use crate::state::{State, StateShape};
use dtrain_types::{SharedFloats, SharedShape, SharedState, Step};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// The areas of what a block consists of are the first; those of the statistics are the next two, then come the journals.
pub(crate) const STATS: usize = PARTS;
pub(crate) const JOURNALS: usize = STATS + 2;
/// What a block consists of: parameters, first and second moments, moving average.
pub const PARTS: usize = 4;

/// The words: how many updates are decided, times two, plus 1 if the state is closed; counted from 1, 0 is none.
pub(crate) const DECIDED: usize = 0;
/// How many shares the last one has, with its number, and what is known of it beside its gradient.
pub(crate) const WORLD: usize = 1;
pub(crate) const WEIGHT: usize = 2;
pub(crate) const SAMPLES: usize = 3;
/// Whether the sums of the statistics were finite when they were looked at: 1 if so.
pub(crate) const STATS_FINITE: usize = 4;
/// Of each share: how many of its blocks are done, and one more when all of it is; and which one lies in its journal, counted from 1.
/// Both with the update's number. Behind them, after those of all ranks, come the squares of each block of the norm.
const SHARES: usize = 16;
/// From the words of one share to those of the next: no two cores write the same line, nor the one that comes with it.
const STRIDE: usize = 16;

/// Elements of a block that is written at once. All it is made of fits the first-level cache, also where what was taken from
/// several areas shares its places there.
const BLOCK: usize = 256;

/// How much memory replicas of this shape need to share a state, on a host with so many ranks.
#[must_use]
pub fn shared_shape(state: StateShape, ranks: usize) -> SharedShape {
    shared_shape_in_blocks(state, ranks, BLOCK)
}

/// The same with blocks of so many elements: of a few, where a tiny model is to have many blocks. The bits do not depend on it.
#[must_use]
pub fn shared_shape_in_blocks(state: StateShape, ranks: usize, block: usize) -> SharedShape {
    let [parameters, stats, first, second, average] = state.lengths();
    let floats = [parameters, first, second, average, stats, stats, ranks * PARTS * block];
    SharedShape { floats, words: word_of(ranks) + parameters.div_ceil(NORM_BLOCK) }
}

/// The word of a share that tells how much of it is done; the next one is about its journal.
pub(crate) fn word_of(share: usize) -> usize {
    SHARES + STRIDE * share
}

/// The word of a share that tells which of its blocks lies in its journal.
#[must_use]
pub fn journal_word(share: usize) -> usize {
    word_of(share) + 1
}

/// The area of the statistics after so many updates.
#[must_use]
pub fn stats_area(applied: Step) -> usize {
    STATS + view_of(applied)
}

fn view_of(applied: Step) -> usize {
    (applied.0 % 2) as usize
}

/// The sizes that follow from how much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Elements of each part of a state, those of the parameters first; 0 where the optimizer keeps none.
    pub parts: [usize; PARTS],
    /// Elements of a block.
    pub block: usize,
    /// The first of the words of the norm's blocks.
    pub squares: usize,
}

impl Sizes {
    pub fn of(shape: &SharedShape) -> Self {
        let [parameters, first, second, average, _, _, journals] = shape.floats;
        let squares = shape.words - parameters.div_ceil(NORM_BLOCK);
        let ranks = (squares - SHARES) / STRIDE;
        let parts = [parameters, first, second, average];
        Self { parts, block: journals / (PARTS * ranks), squares }
    }

    /// The journal of a share.
    pub fn journal(&self, share: usize) -> Range<usize> {
        share * PARTS * self.block..(share + 1) * PARTS * self.block
    }
}

/// The shared memory as one rank reaches it. All ranks keep a rule: no two write the same part at a time, and nobody reads what is
/// being written.
pub trait SharedAreas {
    /// How much there is.
    fn shape(&self) -> SharedShape;

    /// The words.
    fn words(&self) -> &[AtomicU64];

    /// One area, to read.
    fn read(&self, area: usize) -> &[f32];

    /// A part of one area, to write.
    fn write(&mut self, area: usize, part: Range<usize>) -> &mut [f32];

    /// Parts of what a block consists of, and a part of the journals, to write; and the words.
    fn parts(&mut self, own: [Range<usize>; PARTS], journal: Range<usize>) -> SharedParts<'_>;

    /// All of one area, to read, and all of another, to write.
    fn read_write(&mut self, from: usize, to: usize) -> (&[f32], &mut [f32]);
}

/// What one rank updates.
#[derive(Debug)]
pub struct SharedParts<'a> {
    /// The words.
    pub words: &'a [AtomicU64],
    /// Parts of what a block consists of.
    pub own: [&'a mut [f32]; PARTS],
    /// A part of the journals.
    pub journal: &'a mut [f32],
}

/// Memory that this process shares with others, and the state in it as a replica reads it.
#[derive(Debug)]
pub(crate) struct Mapped {
    memory: Box<dyn SharedState>,
    areas: [Box<dyn SharedFloats>; JOURNALS + 1],
    /// The state after an even and an odd number of updates: two views that differ in their statistics.
    views: [State; 2],
}

impl Mapped {
    /// *Panics* if the memory has another shape than `state`.
    pub fn new(memory: Box<dyn SharedState>, state: &State) -> Self {
        let lengths = Section::ALL.map(|section| state.section(section).len());
        let [parameters, first, second, average, even, odd, _] = memory.shape().floats;
        assert!(
            [parameters, even, first, second, average] == lengths && even == odd,
            "memory for another model"
        );
        let view = |n| State::of([0, STATS + n, 1, 2, 3].map(|area| Flat::shared(memory.floats(area))));
        let areas = std::array::from_fn(|area| memory.floats(area));
        Self { views: [view(0), view(1)], areas, memory }
    }

    /// The state after so many updates, if that is what lies there.
    pub fn view(&self, applied: Step) -> &State {
        &self.views[view_of(applied)]
    }

    /// Notes that the state after so many updates lies there.
    pub fn turn(&mut self, applied: Step) {
        self.views[view_of(applied)].applied = applied;
    }
}

impl SharedAreas for Mapped {
    fn shape(&self) -> SharedShape {
        self.memory.shape()
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    fn read(&self, area: usize) -> &[f32] {
        self.areas[area].read()
    }

    fn write(&mut self, area: usize, part: Range<usize>) -> &mut [f32] {
        self.areas[area].part(part)
    }

    fn parts(&mut self, own: [Range<usize>; PARTS], journal: Range<usize>) -> SharedParts<'_> {
        let Self { memory, areas: [parts @ .., _, _, journals], .. } = self;
        let mut own = own.into_iter();
        let own = parts.each_mut().map(|area| area.part(own.next().expect("as many")));
        SharedParts { words: memory.words(), own, journal: journals.part(journal) }
    }

    fn read_write(&mut self, from: usize, to: usize) -> (&[f32], &mut [f32]) {
        let [from, to] = self.areas.get_disjoint_mut([from, to]).expect("two areas");
        let all = 0..to.len();
        (from.read(), to.part(all))
    }
}
