//! An update of which a replica makes the part that it holds.
//!
//! 1. It *measures* the reduced gradient: the squares of its share of the norm's blocks. The sum stays where it is, or comes to be the replica's.
//! 2. It hears what the others have seen in their shares, so that all know what the update comes to.
//! 3. When all replicas have heard that, it makes its part of the update: from then on the gradient's memory is free.
//! 4. When it has the others' parameters, the update is *committed*.
//!
//! A replica that is told to stop before 3 can make the update later, when it hears that another one made it: it keeps what it needs of the sum. This
//! file does not know who the others are.

use crate::device::NORM_BLOCK;
use crate::error::EngineError;
use crate::flat::{Flat, FloatsOnLoan};
use crate::groups::Runs;
use crate::held_update::{HeldUpdate, PartsLie};
use crate::host_device::HostDevice;
use crate::layout::Section;
use crate::optimizer::{Buffers, Keeps};
use crate::passes::Divisor;
use crate::sharding::{Held, HeldState, Lies, ReducedSum};
use crate::shared_update::UpdateRule;
use crate::sharing::{UpdateShare, WORDS};
use crate::state::State;
use crate::update_info::UpdateInfo;
use dtrain_types::{Holding, ShardLevel, Step, word_of_floats, word_to_floats};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a replica holds, and the update that it makes of it: all of [`Sharding`](crate::Sharding), for whoever keeps the state itself. The moments
/// of that state, if it has any, are nobody's.
#[derive(Debug, Default)]
pub struct Sharded {
    state: HeldState,
    /// Of each run that is held: the groups of its parameters, counted from its start.
    runs: Vec<Runs>,
    /// What is kept of the sum of the gradients, if that is not where it was measured: of what is held at least, and of the statistics.
    sum: Flat,
    /// Which elements are there of the sum, wherever it lies.
    kept: Held,
    /// Whether the sum in hand is where it was measured, and not here.
    is_home: bool,
    /// Of each block of the norm the bits of an f64: its squares, where they are known.
    squares: Vec<AtomicU64>,
    making: Option<HeldUpdate>,
}

impl Sharded {
    /// What it holds.
    #[must_use]
    pub fn state(&self) -> &HeldState {
        &self.state
    }

    /// [`Sharding::lend`](crate::Sharding::lend).
    pub fn lend(&mut self, section: Section, elements: &Range<usize>) -> Option<FloatsOnLoan> {
        self.state.lend(section, elements)
    }

    /// [`Sharding::prepare`](crate::Sharding::prepare).
    #[must_use]
    pub fn prepare<D: HostDevice>(&self, rule: &UpdateRule<'_, D>, holding: &Holding) -> HeldState {
        // Whoever holds moments by this alone may make updates by a rule that keeps all.
        let there = match rule.optimizer.keeps {
            Keeps::Shards(level) => rule.optimizer.sections_at(level),
            Keeps::All => rule.optimizer.sections_at(ShardLevel::Optimizer),
        };
        let mut prepared = HeldState::zeros(holding, rule.facts.parameters, there);
        prepared.take_from(&self.state);
        prepared
    }

    /// [`Sharding::adopt`](crate::Sharding::adopt).
    pub fn adopt<D: HostDevice>(&mut self, rule: &UpdateRule<'_, D>, held: HeldState) {
        self.runs = held.held().runs.iter().map(|run| rule.runs.within(run)).collect();
        (self.sum, self.kept, self.is_home) = Default::default();
        let blocks = rule.facts.parameters.div_ceil(NORM_BLOCK);
        self.squares.resize_with(blocks, AtomicU64::default);
        self.state = held;
        self.making = None;
    }

    /// [`Sharding::measure`](crate::Sharding::measure).
    pub fn measure<D: HostDevice>(
        &mut self,
        rule: &UpdateRule<'_, D>,
        state: &State,
        (step, share): (Step, UpdateShare),
        sum: ReducedSum<'_>,
    ) {
        let ReducedSum { lies, weight, samples } = sum;
        let divisor = Divisor { weight, scale: rule.facts.loss_scale(state.section(Section::Stats)) };
        let part = share.part(rule.facts.parameters, NORM_BLOCK);
        let squares = &self.squares[part.start / NORM_BLOCK..part.end.div_ceil(NORM_BLOCK)];
        self.is_home = false;
        let home = match lies {
            Lies::Home(gradient) => {
                (self.sum, self.kept) = (Flat::default(), Held::default().and(0..gradient.len()));
                self.is_home = true;
                Some(gradient)
            }
            Lies::Folded { kept, sum } => {
                (self.sum, self.kept) = (sum, kept);
                None
            }
            Lies::Kept | Lies::FoldedThere { .. } => {
                panic!("a replica in the host's memory keeps no gradients elsewhere")
            }
        };
        let sum = home.unwrap_or(&self.sum);
        rule.device.squares(&sum[self.kept.place(&part)], divisor.mean(), squares);
        let sums = &sum[self.kept.place(&rule.facts.sums())];
        self.making = Some(HeldUpdate::of(rule.device, (step, share), (samples, divisor), sums));
        if share.of == 1 {
            self.heard();
        }
    }

    /// [`Sharding::lend_sum`](crate::Sharding::lend_sum).
    pub fn lend_sum(&mut self, elements: usize) -> Flat {
        self.making = None;
        let sum = std::mem::take(&mut self.sum);
        if sum.len() == elements { sum } else { Flat::zeros(elements) }
    }

    /// [`Sharding::tell`](crate::Sharding::tell).
    pub fn tell(&self, words: &mut [f32]) {
        let UpdateShare { index, of } = self.making.expect(MEASURED).share();
        let own = self.squares.len() * index / of..self.squares.len() * (index + 1) / of;
        assert_eq!(words.len(), WORDS * own.len(), "words for another share");
        for (words, square) in words.chunks_exact_mut(WORDS).zip(&self.squares[own]) {
            words.copy_from_slice(&word_to_floats(square.load(Ordering::Relaxed)));
        }
    }

    /// [`Sharding::hear`](crate::Sharding::hear).
    pub fn hear(&mut self, words: &[f32]) {
        for (square, words) in self.squares.iter_mut().zip(words.chunks_exact(WORDS)) {
            *square.get_mut() = word_of_floats(words);
        }
        self.heard();
    }

    fn heard(&mut self) {
        let squares = self.squares.iter().map(|square| f64::from_bits(square.load(Ordering::Relaxed)));
        self.making.as_mut().expect(MEASURED).hear(squares);
    }

    /// [`Sharding::measured`](crate::Sharding::measured).
    #[must_use]
    pub fn measured(&self) -> Option<Step> {
        self.making.and_then(|making| making.measured())
    }

    /// [`Sharding::settle`](crate::Sharding::settle).
    pub fn settle<D: HostDevice>(&mut self, rule: &UpdateRule<'_, D>) -> Result<UpdateInfo, EngineError> {
        self.making.as_mut().expect(MEASURED).settle(rule.facts, rule.optimizer)
    }

    /// [`Sharding::sum_is_home`](crate::Sharding::sum_is_home).
    #[must_use]
    pub fn sum_is_home(&self) -> bool {
        self.is_home
    }

    /// [`Sharding::keep_sum`](crate::Sharding::keep_sum).
    pub fn keep_sum<D: HostDevice>(&mut self, rule: &UpdateRule<'_, D>, home: &[f32]) {
        if self.measured().is_none() || !std::mem::take(&mut self.is_home) {
            return;
        }
        self.kept = self.state.held().and(rule.facts.sums());
        self.sum = Flat::zeros(self.kept.elements());
        HeldUpdate::copy(rule.device, home, &self.kept, &mut *self.sum);
    }

    /// [`Sharding::update_held`](crate::Sharding::update_held).
    pub fn update<D: HostDevice>(
        &mut self,
        rule: &UpdateRule<'_, D>,
        state: &mut State,
        home: Option<&[f32]>,
    ) {
        let Self { state: own, runs, sum, kept, making, is_home, .. } = self;
        let sum = match is_home {
            true => home.expect("a sum that was not kept is where it was"),
            false => sum,
        };
        let (held, lies) = (own.held().clone(), Self::lies(own));
        let [parameters, stats, _, _, average] = state.sections_mut();
        let [held_parameters, _, first, second, held_average] = own.sections_mut();
        let (parameters, average) = match lies {
            PartsLie::InWhole => (parameters, average),
            PartsLie::AsHeld => (held_parameters, held_average),
        };
        let to = Buffers::<D> { parameters, first, second, average };
        let making = making.as_mut().expect(MEASURED);
        let rules = (rule.facts, rule.optimizer);
        let (step, _) = making.make(rule.device, rules, (&held, runs), (kept, sum), (to, lies), stats);
        state.applied = step;
    }

    /// Where the parameters lie of what is held, and their moving average.
    fn lies(held: &HeldState) -> PartsLie {
        if held.has(Section::Parameters) { PartsLie::AsHeld } else { PartsLie::InWhole }
    }

    /// [`Sharding::commit`](crate::Sharding::commit).
    pub fn commit<D: HostDevice>(&self, rule: &UpdateRule<'_, D>, state: &mut State, step: Step) {
        assert_eq!(state.applied, step, "an update is made before it is committed");
        let Some(making) = self.making.as_ref().filter(|_| Self::lies(&self.state) == PartsLie::InWhole)
        else {
            return;
        };
        let [parameters, .., average] = state.sections_mut();
        making.commit(rule.device, rule.optimizer, self.state.held(), parameters, average);
    }
}

/// Why there is an update in hand.
const MEASURED: &str = "an update is measured before anything else is asked of it";
