//! The update of a state that replicas share, as one of them makes it, and as whoever comes later completes it.
//!
//! Each replica *measures* its share of the reduced gradient; what all have measured *settles* what the update comes to. Whoever goes
//! on first *decides* the update by one word. From then on it is done to its end, whoever is lost. Each share goes block by block: what
//! a block comes to is written into a journal, which stays in the cache; a word says so; the block is overwritten; another word says
//! that. So whoever comes later knows of each block whether it is old, new or torn, and finds the new values of a torn one.
//!
//! Those who leave a generation *close* the state: after that nothing can be decided in it, and all find the same number of updates
//! decided. The first rank of the next generation *completes* what was left and opens the state again.
//!
//! Pure: it works on memory that it is lent ([`SharedAreas`]), mapped or simulated, and does not know how replicas meet.

use crate::device::{Device, NORM_BLOCK};
use crate::error::EngineError;
use crate::groups::Runs;
use crate::host_device::HostDevice;
use crate::layout::Section;
use crate::optimizer::Optimizer;
use crate::passes::{self, Divisor, Reduced, Seen, Settled};
use crate::shared_memory::{
    DECIDED, PARTS, SAMPLES, STATS_FINITE, SharedAreas, SharedParts, Sizes, WEIGHT, WORLD, journal_word,
    stats_area, word_of,
};
use crate::sharing::UpdateShare;
use crate::state::State;
use crate::update_facts::UpdateFacts;
use crate::update_info::UpdateInfo;
use dtrain_types::Step;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bits of a word that count.
const COUNT: u32 = 24;

/// By what rule an update is made: the same on every replica.
pub struct UpdateRule<'a, D: Device> {
    pub(crate) device: &'a D,
    pub(crate) facts: &'a UpdateFacts,
    pub(crate) optimizer: &'a Optimizer,
    pub(crate) runs: &'a Runs,
}

/// A reduced gradient, and what it sums up.
#[derive(Clone, Copy, Debug)]
pub struct Sum<'a> {
    /// Of the parameters, then the sums of the statistics.
    pub gradient: &'a [f32],
    /// The reduced normaliser.
    pub weight: f64,
    /// Rows of the whole step.
    pub samples: u64,
}

/// An update of all replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Update {
    step: Step,
    world: usize,
    weight: f64,
    samples: u64,
}

/// An update as far as one replica is with it.
#[derive(Debug)]
struct Making {
    update: Update,
    share: UpdateShare,
    divisor: Divisor,
    settled: Option<Settled>,
}

/// One replica's part in a shared state: which update it has adopted, and which one it makes.
#[derive(Debug)]
pub struct Sharer {
    sizes: Sizes,
    /// The update whose state it reads; none while it has a state of its own.
    applied: Option<Step>,
    making: Option<Making>,
    /// How many writes it still makes; see [`Sharer::stop_after`].
    writes: u64,
}

impl Sharer {
    /// A replica that has a state of its own and shares none yet.
    #[must_use]
    pub fn new(areas: &impl SharedAreas) -> Self {
        Self { sizes: Sizes::of(&areas.shape()), applied: None, making: None, writes: u64::MAX }
    }

    /// Stops in the middle of an update, after so many writes more, as a process does that is killed there: for simulations.
    /// It is good for nothing afterwards.
    pub fn stop_after(&mut self, writes: u64) {
        self.writes = writes;
    }

    /// The updates of the state that it reads, if it has adopted one.
    #[must_use]
    pub fn applied(&self) -> Option<Step> {
        self.applied
    }

    /// Gives up what was adopted.
    pub fn forget(&mut self) {
        self.applied = None;
    }

    /// Writes a state that is this replica's own.
    pub fn publish(&self, areas: &mut impl SharedAreas, state: &State) {
        assert!(self.applied.is_none(), "whoever publishes a state has one of its own");
        // Nothing that is told of another state may be taken for one of this.
        areas.words().iter().for_each(|word| word.store(0, Ordering::SeqCst));
        let places = [0, stats_area(state.applied), 1, 2, 3];
        for (section, area) in Section::ALL.into_iter().zip(places) {
            let own = state.section(section);
            areas.write(area, 0..own.len()).copy_from_slice(own);
        }
        areas.words()[DECIDED].store(open(state.applied), Ordering::SeqCst);
    }

    /// Reads the state of so many updates from now on, if that is what was decided.
    pub fn adopt(&mut self, areas: &impl SharedAreas, applied: Step) -> bool {
        let there = decided(areas) == Some(applied);
        if there {
            self.applied = Some(applied);
        }
        there
    }

    /// Turns to the state after this update. *Panics* if it is not the next one.
    pub fn commit(&mut self, step: Step) {
        let applied = self.applied.expect("a state is adopted before it is updated");
        assert_eq!(step, applied.next(), "updates come in order, each once");
        self.applied = Some(step);
    }

    /// Lets no update begin any more, and turns to what was decided.
    pub fn close(&mut self, areas: &impl SharedAreas) {
        areas.words()[DECIDED].fetch_or(1, Ordering::SeqCst);
        if let (Some(decided), Some(_)) = (decided(areas), self.applied) {
            self.applied = Some(decided);
        }
    }

    /// Looks at this replica's share of a sum, for all to know; of the statistics, which are short, with the first.
    pub fn measure<D: HostDevice>(
        &mut self,
        rule: &UpdateRule<'_, D>,
        areas: &impl SharedAreas,
        step: Step,
        sum: Sum<'_>,
        share: UpdateShare,
    ) {
        let applied = self.applied.expect("a state is adopted before it is updated");
        assert_eq!(step, applied.next(), "updates come in order, each once");
        let scale = rule.facts.loss_scale(areas.read(stats_area(applied)));
        let divisor = Divisor { weight: sum.weight, scale };
        let reduced = Reduced::<D> { gradient: sum.gradient, samples: sum.samples, divisor };
        let (grads, sums) = reduced.parts(rule.facts);
        let part = share.part(grads.len(), NORM_BLOCK);
        let blocks = part.start / NORM_BLOCK..part.end.div_ceil(NORM_BLOCK);
        rule.device.squares(&grads[part], divisor.mean(), &self.squares(areas)[blocks]);
        if share.index == 0 {
            let finite = rule.device.all_finite(sums);
            areas.words()[STATS_FINITE].store(u64::from(finite), Ordering::Relaxed);
        }
        let update = Update { step, world: share.of, weight: sum.weight, samples: sum.samples };
        self.making = Some(Making { update, share, divisor, settled: None });
    }

    /// Says what the update comes to that all have measured.
    ///
    /// *Errors*: as `Replica::update`. *Panics* if this replica measured none.
    pub fn settle<D: HostDevice>(
        &mut self,
        rule: &UpdateRule<'_, D>,
        areas: &impl SharedAreas,
    ) -> Result<UpdateInfo, EngineError> {
        let seen = self.seen(areas);
        let Making { update, divisor, settled, .. } = self.making.as_mut().expect(MEASURED);
        let known = passes::settle(rule.facts, rule.optimizer, update.step, *divisor, seen)?;
        *settled = Some(known);
        Ok(known.info)
    }

    /// Decides the update that was settled, or finds it decided, and does this replica's share of it; tells whether it did: not if the
    /// state was closed before.
    pub fn update_share<D: HostDevice>(
        &mut self,
        rule: &UpdateRule<'_, D>,
        areas: &mut impl SharedAreas,
        gradient: &[f32],
    ) -> bool {
        let Making { update, share, divisor, settled } = self.making.as_ref().expect(MEASURED);
        let (update, share) = (*update, *share);
        let settled = settled.expect("an update is settled before it is made");
        let decided = decide(areas, update);
        if decided {
            let reduced = Reduced::<D> { gradient, samples: update.samples, divisor: *divisor };
            self.write_share(rule, areas, (update.step, share), (&reduced, &settled));
        }
        decided
    }

    /// Does what is left of the last update that was decided, with the sum that is still there, and opens the state again.
    ///
    /// *Errors*: as `Replica::update`; what was decided has none.
    pub fn complete<D: HostDevice>(
        &mut self,
        rule: &UpdateRule<'_, D>,
        areas: &mut impl SharedAreas,
        gradient: &[f32],
    ) -> Result<(), EngineError> {
        if let Some(Update { step, weight, samples, world }) = self.left(areas) {
            let before = areas.read(stats_area(Step(step.0 - 1)));
            let divisor = Divisor { weight, scale: rule.facts.loss_scale(before) };
            let reduced = Reduced::<D> { gradient, samples, divisor };
            let seen = passes::look(rule.device, rule.facts, &reduced);
            let settled = passes::settle(rule.facts, rule.optimizer, step, divisor, seen)?;
            for index in 0..world {
                let share = UpdateShare { index, of: world };
                self.write_share(rule, areas, (step, share), (&reduced, &settled));
            }
        }
        if self.spend() {
            areas.words()[DECIDED].fetch_and(!1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// The last update that was decided, if it is not known to be done to its end.
    fn left(&self, areas: &impl SharedAreas) -> Option<Update> {
        let step = decided(areas)?;
        let look = |word: usize| areas.words()[word].load(Ordering::SeqCst);
        // Else it was begun by nobody, or by all and the next one is being settled.
        let world = counted(look(WORLD), step)?;
        let (weight, samples) = (f64::from_bits(look(WEIGHT)), look(SAMPLES));
        let done = |index| {
            let all = self.blocks(UpdateShare { index, of: world }) + 1;
            counted(look(word_of(index)), step) == Some(all)
        };
        (!(0..world).all(done)).then_some(Update { step, world, weight, samples })
    }

    /// The words for the squares of the norm's blocks.
    fn squares<'a>(&self, areas: &'a impl SharedAreas) -> &'a [AtomicU64] {
        &areas.words()[self.sizes.squares..]
    }

    /// What all replicas have seen of a gradient.
    fn seen(&self, areas: &impl SharedAreas) -> Seen {
        let squares = self.squares(areas).iter().map(|block| f64::from_bits(block.load(Ordering::Relaxed)));
        // In order, as one replica adds up what it has seen alone.
        let squares = squares.fold(0.0, |sum, block| sum + block);
        Seen { squares, stats_finite: areas.words()[STATS_FINITE].load(Ordering::Relaxed) == 1 }
    }

    fn part(&self, share: UpdateShare) -> Range<usize> {
        share.part(self.sizes.parts[0], self.sizes.block)
    }

    fn blocks(&self, share: UpdateShare) -> usize {
        self.part(share).len().div_ceil(self.sizes.block)
    }

    /// Does what is not done of a share of an update that was decided.
    fn write_share<D: HostDevice>(
        &mut self,
        rule: &UpdateRule<'_, D>,
        areas: &mut impl SharedAreas,
        (step, share): (Step, UpdateShare),
        (reduced, settled): (&Reduced<'_, D>, &Settled),
    ) {
        if share.index == 0 {
            // They are written elsewhere than read: as often as one likes.
            let (old, new) = areas.read_write(stats_area(Step(step.0 - 1)), stats_area(step));
            rule.device.copy(old, new);
            reduced.blend(rule.device, rule.facts, settled, new);
        }
        if let Some(scale) = settled.scale {
            let (grads, _) = reduced.parts(rule.facts);
            let constants = rule.optimizer.constants(step, scale, rule.runs);
            self.write_blocks(areas, (step, share), |block, from, to| {
                constants.apply_part(rule.device, (rule.runs, block), grads, from, to);
            });
        }
        if self.spend() {
            note(&areas.words()[word_of(share.index)], stamp(step, self.blocks(share) + 1));
        }
    }

    /// The blocks of a share: `update` is given the elements of one, its parameters and moments as they are before the update, and
    /// where it writes what they are after it.
    fn write_blocks(
        &mut self,
        areas: &mut impl SharedAreas,
        (step, share): (Step, UpdateShare),
        update: impl Fn(Range<usize>, [&[f32]; PARTS], [&mut [f32]; PARTS]),
    ) {
        let (part, block, blocks) = (self.part(share), self.sizes.block, self.blocks(share));
        let parts = self.sizes.parts.map(|len| if len == 0 { 0..0 } else { part.clone() });
        let SharedParts { words, mut own, journal } = areas.parts(parts, self.sizes.journal(share.index));
        let [word, kept] = [word_of(share.index), journal_word(share.index)].map(|at| &words[at]);
        for number in counted(word.load(Ordering::Acquire), step).unwrap_or(0)..blocks {
            let at = number * block..part.len().min((number + 1) * block);
            let own =
                own.each_mut().map(|own| if own.is_empty() { &mut own[..] } else { &mut own[at.clone()] });
            let mut new = cut(journal, own.each_ref().map(|own| own.len()));
            let stamped = stamp(step, number + 1);
            // Else somebody got as far as this, and the block itself may be torn.
            if kept.load(Ordering::Acquire) != stamped {
                if !self.spend() {
                    return;
                }
                let range = part.start + at.start..part.start + at.end;
                update(range, own.each_ref().map(|own| &**own), new.each_mut().map(|new| &mut **new));
                note(kept, stamped);
            }
            // The first change of the block comes after the word.
            fence(Ordering::AcqRel);
            for (own, new) in own.into_iter().zip(new) {
                if !self.spend() {
                    return;
                }
                own.copy_from_slice(new);
            }
            if !self.spend() {
                return;
            }
            note(word, stamped);
        }
    }

    /// Whether it still makes a write.
    fn spend(&mut self) -> bool {
        let goes_on = self.writes > 0;
        self.writes -= u64::from(goes_on);
        goes_on
    }
}

/// How many updates are decided, if there is a state.
fn decided(areas: &impl SharedAreas) -> Option<Step> {
    (areas.words()[DECIDED].load(Ordering::SeqCst) >> 1).checked_sub(1).map(Step)
}

/// Decides an update, or finds it decided, and tells whether it is: not if the state was closed before.
fn decide(areas: &impl SharedAreas, update: Update) -> bool {
    let Update { step, world, weight, samples } = update;
    let words = areas.words();
    // Whoever comes this far has seen the update before done to its end: nobody asks for what is known of that any more. Of this
    // one all tell the same.
    words[WEIGHT].store(weight.to_bits(), Ordering::SeqCst);
    words[SAMPLES].store(samples, Ordering::SeqCst);
    words[WORLD].store(stamp(step, world), Ordering::SeqCst);
    let (before, after) = (open(Step(step.0 - 1)), open(step));
    match words[DECIDED].compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => true,
        Err(word) => word & !1 == after,
    }
}

/// The word of so many decided updates, while the next one may begin.
fn open(applied: Step) -> u64 {
    (applied.0 + 1) << 1
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

/// Writes a word behind all that was written before. Nobody reads it while its writer lives: the order of writes is enough, and nobody
/// need wait until they are seen.
fn note(word: &AtomicU64, value: u64) {
    // A fence is for what is no atomic.
    fence(Ordering::AcqRel);
    word.store(value, Ordering::Release);
}

/// Parts of a journal, one behind the other.
fn cut(mut journal: &mut [f32], lengths: [usize; PARTS]) -> [&mut [f32]; PARTS] {
    lengths.map(|len| journal.split_off_mut(..len).expect("a journal has room for a block"))
}

/// Why there is an update in hand.
const MEASURED: &str = "an update is measured before anything else is asked of it";
