//! The state of a replica where all replicas of a host have it in common, and each updates its share, in place.
//!
//! Parameters and moments are there once; of the running statistics, which are short, there are two places, of which an update reads
//! one and writes the other. Each replica measures its share of the reduced gradient, and all of them know from that what the update
//! comes to; then it may begin.
//! From then on it is *decided*: it is done to its end, whoever is lost. Each share goes block by block. What a block comes to is
//! written into a journal first, which stays in the cache; then a word says so, the block is overwritten, and another word says
//! that. So whoever comes later knows of each block whether it is old, new, or torn, and has the new values of one that is torn.
//!
//! Those who leave a generation *close* the state, after which no update can begin, and all of them find the same number of
//! updates decided. The first rank of the next generation completes what was left and opens it again.
//!
//! It does not know how replicas meet, nor what a block is updated by.

use crate::device::NORM_BLOCK;
use crate::error::EngineError;
use crate::flat::Flat;
use crate::layout::Section;
use crate::passes::Seen;
use crate::replica::UpdateInfo;
use crate::state::{State, StateShape};
use dtrain_types::{SharedFloats, SharedShape, SharedState, Step};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Which share of a gradient and of its update a replica does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its place among the replicas.
    pub index: usize,
    /// How many they are.
    pub of: usize,
}

/// Elements of a block that is written at once. All it is made of fits the first-level cache, also where what was taken from
/// several areas shares its places there.
const BLOCK: usize = 256;

impl Share {
    /// Its part of so many elements: even but for a block of the norm. All shares make the whole, and none overlap.
    #[must_use]
    pub fn part(&self, len: usize) -> Range<usize> {
        let blocks = len.div_ceil(NORM_BLOCK);
        let cut = |index: usize| (blocks * index / self.of * NORM_BLOCK).min(len);
        cut(self.index)..cut(self.index + 1)
    }
}

/// A replica whose state is, or will be, in memory that it has in common with others.
pub trait Sharing {
    /// Lays out the state that it has for all others. One of them does so, while none goes on with another one.
    fn publish(&mut self);

    /// Has the state of so many updates from now on, and tells whether it is there. What it had of its own is given up.
    fn adopt(&mut self, applied: Step) -> bool;

    /// Looks at its share of the gradient of update number `step`, and changes nothing of the state.
    ///
    /// *Panics* as `Replica::update`.
    fn measure(&mut self, step: Step, gradient: &[f32], weight: f64, samples: u64, share: Share);

    /// Says what the update comes to that was measured, and changes nothing. Every replica must have measured its share; then all say
    /// the same, whenever they are asked until the next update is measured.
    ///
    /// *Errors*: as `Replica::update`.
    fn settle(&mut self) -> Result<UpdateInfo, EngineError>;

    /// Does its share of the update that was settled, with the same gradient, and tells whether it did: not if the state was closed
    /// before any share of it began. Every replica must have measured its share.
    ///
    /// *Order*: the bits are those of one replica that does all of it.
    fn update_share(&mut self, gradient: &[f32]) -> bool;

    /// Turns to the state after this update. *Panics* if it is not the next one. Every replica must have done its share.
    fn commit(&mut self, step: Step);

    /// Sees to it that no update begins any more. `Replica::applied` then tells how many are decided.
    fn close(&mut self);

    /// Does what was left of the last update that was decided, whose gradient this is, and opens the state again. One replica does
    /// so, while no other one reads or writes it.
    ///
    /// *Errors*: as `Replica::update`; what was decided has none.
    fn complete(&mut self, gradient: &[f32]) -> Result<(), EngineError>;
}

/// How much memory replicas of this shape need for a state in common, on a host with so many ranks.
#[must_use]
pub fn shared_shape(state: StateShape, ranks: usize) -> SharedShape {
    let [parameters, stats, first, second] = state.lengths();
    let floats = [parameters, first, second, stats, stats, ranks * 3 * BLOCK];
    SharedShape { floats, words: SHARES + STRIDE * ranks + parameters.div_ceil(NORM_BLOCK) }
}

/// The areas of parameters and moments; those of the statistics are the next two, then come the journals.
const STATS: usize = 3;
const JOURNALS: usize = 5;

/// The words: how many updates are decided, times two, plus 1 if the state is closed; counted from 1, 0 is none.
const DECIDED: usize = 0;
/// How many shares the last one has, with its number, and what is known of it beside its gradient.
const WORLD: usize = 1;
const WEIGHT: usize = 2;
const SAMPLES: usize = 3;
/// Whether the sums of the statistics were finite when they were looked at: 1 if so.
const STATS_FINITE: usize = 4;
/// Of each share: how many of its blocks are done, and one more when all of it is; and which one lies in its journal, counted from 1.
/// Both with the update's number. Behind them, after those of all ranks, come the squares of each block of the norm.
const SHARES: usize = 16;
/// From the words of one share to those of the next: no two cores write the same line, nor the one that comes with it.
const STRIDE: usize = 16;
/// Bits that count.
const COUNT: u32 = 24;

/// The word of a share that tells how much of it is done; the next one is about its journal.
fn word_of(index: usize) -> usize {
    SHARES + STRIDE * index
}

/// Both of them.
fn words_of(memory: &dyn SharedState, index: usize) -> [&AtomicU64; 2] {
    [0, 1].map(|n| &memory.words()[word_of(index) + n])
}

/// A count in an update.
fn stamp(step: Step, count: usize) -> u64 {
    assert!(count < 1 << COUNT && step.0 < 1 << (64 - COUNT), "{count} in update {step}");
    step.0 << COUNT | count as u64
}

/// The count in a word, if it is of this update.
fn counted(word: u64, step: Step) -> Option<usize> {
    (word >> COUNT == step.0).then_some((word & ((1 << COUNT) - 1)) as usize)
}

/// An update of all replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Update {
    pub step: Step,
    pub world: usize,
    pub weight: f64,
    pub samples: u64,
}

/// The memory as one replica sees it.
#[derive(Debug)]
pub(crate) struct Common {
    memory: Box<dyn SharedState>,
    /// The state after an even and an odd number of updates: two views that differ in their statistics.
    views: [State; 2],
    journals: Box<dyn SharedFloats>,
    /// The first of the words of the norm's blocks.
    squares: usize,
    /// Which one is read; none while the replica has a state of its own.
    at: Option<usize>,
}

/// The view of the state after so many updates.
fn view_of(applied: Step) -> usize {
    (applied.0 % 2) as usize
}

impl Common {
    /// *Panics* if the memory has another shape than `state`.
    pub fn new(memory: Box<dyn SharedState>, state: &State) -> Self {
        let lengths = Section::ALL.map(|section| state.section(section).len());
        let [parameters, first, second, even, odd, _] = memory.shape().floats;
        assert!([parameters, even, first, second] == lengths && even == odd, "memory for another model");
        let view = |n| State::of([0, STATS + n, 1, 2].map(|area| Flat::shared(memory.floats(area))));
        let journals = memory.floats(JOURNALS);
        let squares = word_of(journals.len() / (3 * BLOCK));
        Self { views: [view(0), view(1)], journals, squares, memory, at: None }
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        &self.memory.words()[word]
    }

    /// The state that is read, if one was adopted.
    pub fn state(&self) -> Option<&State> {
        self.at.map(|at| &self.views[at])
    }

    /// Gives up what was adopted.
    pub fn forget(&mut self) {
        self.at = None;
    }

    /// Writes a state that is this replica's own.
    pub fn publish(&mut self, state: &State) {
        assert!(self.at.is_none(), "whoever publishes a state has one of its own");
        // Nothing that is told of another state may be taken for one of this.
        self.memory.words().iter().for_each(|word| word.store(0, Ordering::SeqCst));
        for section in Section::ALL {
            let view = &mut self.views[view_of(state.applied)];
            view.section_mut(section).copy_from_slice(state.section(section));
        }
        self.word(DECIDED).store(open(state.applied), Ordering::SeqCst);
    }

    fn look(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::SeqCst)
    }

    /// How many updates are decided, if there is a state.
    fn decided(&self) -> Option<Step> {
        (self.look(DECIDED) >> 1).checked_sub(1).map(Step)
    }

    /// The last update that was decided, if it is not known to be done to its end.
    pub fn left(&self) -> Option<Update> {
        let step = self.decided()?;
        // Else it was begun by nobody, or by all and the next one is being settled.
        let world = counted(self.look(WORLD), step)?;
        let (weight, samples) = (f64::from_bits(self.look(WEIGHT)), self.look(SAMPLES));
        let done = |index| {
            let all = self.blocks(Share { index, of: world }) + 1;
            counted(self.look(word_of(index)), step) == Some(all)
        };
        (!(0..world).all(done)).then_some(Update { step, world, weight, samples })
    }

    /// Turns to the state after so many updates, if that is what was decided.
    pub fn adopt(&mut self, applied: Step) -> bool {
        let there = self.decided() == Some(applied);
        if there {
            self.turn(applied);
        }
        there
    }

    fn turn(&mut self, applied: Step) {
        let at = view_of(applied);
        self.views[at].applied = applied;
        self.at = Some(at);
    }

    /// Turns to the state after this update.
    pub fn commit(&mut self, step: Step) {
        let applied = self.state().expect("a state is adopted before it is updated").applied;
        assert_eq!(step, applied.next(), "updates come in order, each once");
        self.turn(step);
    }

    /// Lets no update begin any more, and turns to what was decided.
    pub fn close(&mut self) {
        self.word(DECIDED).fetch_or(1, Ordering::SeqCst);
        if let (Some(decided), Some(_)) = (self.decided(), self.at) {
            self.turn(decided);
        }
    }

    /// Lets the next update begin.
    pub fn open(&self) {
        self.word(DECIDED).fetch_and(!1, Ordering::SeqCst);
    }

    /// Decides an update, or finds it decided, and tells whether it is: not if the state was closed before.
    pub fn decide(&self, update: Update) -> bool {
        let Update { step, world, weight, samples } = update;
        // Whoever comes this far has seen the update before done to its end: nobody asks for what is known of that any more. Of this
        // one all tell the same.
        self.word(WEIGHT).store(weight.to_bits(), Ordering::SeqCst);
        self.word(SAMPLES).store(samples, Ordering::SeqCst);
        self.word(WORLD).store(stamp(step, world), Ordering::SeqCst);
        let (before, after) = (open(Step(step.0 - 1)), open(step));
        match self.word(DECIDED).compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(word) => word & !1 == after,
        }
    }

    /// The words for the squares of a share's blocks.
    pub fn squares(&self, share: Share) -> &[AtomicU64] {
        let part = share.part(self.parameters());
        let blocks = part.start / NORM_BLOCK..part.end.div_ceil(NORM_BLOCK);
        &self.memory.words()[self.squares + blocks.start..self.squares + blocks.end]
    }

    /// Notes whether the sums of the statistics are finite.
    pub fn note_stats(&self, finite: bool) {
        self.word(STATS_FINITE).store(u64::from(finite), Ordering::Relaxed);
    }

    /// What all replicas have seen of a gradient.
    pub fn seen(&self) -> Seen {
        let blocks = self.squares(Share { index: 0, of: 1 });
        let squares = blocks.iter().map(|block| f64::from_bits(block.load(Ordering::Relaxed)));
        // In order, as one replica adds up what it has seen alone.
        let squares = squares.fold(0.0, |sum, block| sum + block);
        Seen { squares, stats_finite: self.word(STATS_FINITE).load(Ordering::Relaxed) == 1 }
    }

    fn parameters(&self) -> usize {
        self.views[0].section(Section::Parameters).len()
    }

    /// The statistics before an update, to read, and after it, to write.
    pub fn stats(&mut self, step: Step) -> (&[f32], &mut [f32]) {
        let [even, odd] = &mut self.views;
        let (old, new) = if view_of(step) == 0 { (odd, even) } else { (even, odd) };
        (old.section(Section::Stats), new.section_mut(Section::Stats))
    }

    fn blocks(&self, share: Share) -> usize {
        share.part(self.parameters()).len().div_ceil(BLOCK)
    }

    /// Does what is not done of a share of an update that was decided: `update` is given the elements of a block, its parameters and
    /// moments as they are before the update, and where it writes what they are after it.
    pub fn write(
        &mut self,
        step: Step,
        share: Share,
        update: impl Fn(Range<usize>, [&[f32]; 3], [&mut [f32]; 3]),
    ) {
        let (part, blocks) = (share.part(self.parameters()), self.blocks(share));
        let Self { memory, views, journals, .. } = self;
        let mut own = elements(&mut views[0], &part);
        let journal = journals.part(share.index * 3 * BLOCK..(share.index + 1) * 3 * BLOCK);
        let [word, kept] = words_of(memory.as_ref(), share.index);
        for block in counted(word.load(Ordering::Acquire), step).unwrap_or(0)..blocks {
            let at = block * BLOCK..part.len().min((block + 1) * BLOCK);
            let own =
                own.each_mut().map(|own| if own.is_empty() { &mut own[..] } else { &mut own[at.clone()] });
            let mut new = cut(journal, own.each_ref().map(|own| own.len()));
            let stamped = stamp(step, block + 1);
            // Else somebody got as far as this, and the block itself may be torn.
            if kept.load(Ordering::Acquire) != stamped {
                let range = part.start + at.start..part.start + at.end;
                update(range, own.each_ref().map(|own| &**own), new.each_mut().map(|new| &mut **new));
                note(kept, stamped);
            }
            // The first change of the block comes after the word.
            fence(Ordering::AcqRel);
            own.into_iter().zip(new).for_each(|(own, new)| own.copy_from_slice(new));
            note(word, stamped);
        }
    }

    /// Notes that all of a share is done.
    pub fn finish(&self, step: Step, share: Share) {
        let [word, _] = words_of(self.memory.as_ref(), share.index);
        note(word, stamp(step, self.blocks(share) + 1));
    }
}

/// Writes a word behind all that was written before. Nobody reads it while its writer lives: the order of writes is enough, and nobody
/// need wait until they are seen.
fn note(word: &AtomicU64, value: u64) {
    // A fence is for what is no atomic.
    fence(Ordering::AcqRel);
    word.store(value, Ordering::Release);
}

/// These elements of the parameters, and of the moments that there are.
fn elements<'a>(view: &'a mut State, range: &Range<usize>) -> [&'a mut [f32]; 3] {
    let kept = |section| if view.section(section).is_empty() { 0..0 } else { range.clone() };
    let (first, second) = (kept(Section::First), kept(Section::Second));
    let [p, _, m, v] = view.parts_mut([range.clone(), 0..0, first, second]);
    [p, m, v]
}

/// Three parts of a journal, one behind the other.
fn cut(journal: &mut [f32], [p, m, v]: [usize; 3]) -> [&mut [f32]; 3] {
    let (first, rest) = journal.split_at_mut(p);
    let (second, rest) = rest.split_at_mut(m);
    [first, second, &mut rest[..v]]
}

/// The word of so many decided updates, while the next one may begin.
fn open(applied: Step) -> u64 {
    (applied.0 + 1) << 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_make_the_whole_whatever_their_number() {
        for of in [1, 2, 3, 5, 8, 100] {
            for len in [0, 1, 4_095, 4_096, 4_097, 10_000, 1_000_003] {
                let mut next = 0;
                for index in 0..of {
                    let part = Share { index, of }.part(len);
                    assert!(part.start == next && part.end >= part.start, "{part:?} of {len}");
                    assert!(part.len() <= len.div_ceil(of) + 2 * NORM_BLOCK);
                    next = part.end;
                }
                assert_eq!(next, len, "{of} shares");
            }
        }
    }
}
