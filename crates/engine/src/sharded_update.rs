//! An update of which a replica makes the part that it holds.
//!
//! 1. It *measures* the reduced gradient: the squares of its share of the norm's blocks, and a copy of the part that it holds.
//! 2. It hears what the others have seen in their shares, so that all know what the update comes to.
//! 3. When all replicas have heard that, it makes its part of the update, from its own copy: the gradient's memory is free.
//! 4. When it has the others' parameters, the update is *committed*.
//!
//! A replica that is told to stop before 3 can make the update later, when it hears that another one made it: it kept what it needs. This
//! file does not know who the others are.

use crate::device::{Device, NORM_BLOCK};
use crate::error::EngineError;
use crate::flat::Flat;
use crate::groups::Runs;
use crate::host_device::HostDevice;
use crate::layout::Section;
use crate::optimizer::{Buffers, Factors, Optimizer};
use crate::passes::{self, Divisor, Reduced, Seen, Settled};
use crate::sharding::{Held, Moments, WORDS};
use crate::shared_update::UpdateRule;
use crate::sharing::UpdateShare;
use crate::state::State;
use crate::update_facts::UpdateFacts;
use crate::update_info::UpdateInfo;
use dtrain_types::{Holding, Step};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a replica holds, and the update that it makes of it: all of [`Sharding`](crate::Sharding), for whoever keeps the state itself. The moments
/// of that state, if it has any, are nobody's.
#[derive(Debug, Default)]
pub struct Sharded {
    moments: Moments,
    /// Of each run that is held: the groups of its parameters, counted from its start.
    runs: Vec<Runs>,
    /// The gradient of what is held, then the sums of the statistics.
    sum: Flat,
    /// Of each block of the norm the bits of an f64: its squares, where they are known.
    squares: Vec<AtomicU64>,
    making: Option<Making>,
}

/// An update as far as it is made.
#[derive(Clone, Copy, Debug)]
struct Making {
    step: Step,
    divisor: Divisor,
    samples: u64,
    share: UpdateShare,
    stats_finite: bool,
    /// All squares are known.
    heard: bool,
    settled: Option<Settled>,
    made: bool,
}

impl Sharded {
    /// The moments that it holds.
    #[must_use]
    pub fn moments(&self) -> &Moments {
        &self.moments
    }

    /// [`Sharding::prepare`](crate::Sharding::prepare).
    #[must_use]
    pub fn prepare<D: HostDevice>(&self, rule: &UpdateRule<'_, D>, holding: &Holding) -> Moments {
        let moments = rule.optimizer.rule.moments();
        let mut prepared = Moments::zeros(holding, rule.facts.parameters, [moments > 0, moments > 1]);
        prepared.take_from(&self.moments);
        prepared
    }

    /// [`Sharding::adopt`](crate::Sharding::adopt).
    pub fn adopt<D: HostDevice>(&mut self, rule: &UpdateRule<'_, D>, moments: Moments) {
        self.runs = moments.held().runs.iter().map(|run| rule.runs.within(run)).collect();
        self.sum = Flat::zeros(moments.held().len() + rule.facts.stats);
        let blocks = rule.facts.parameters.div_ceil(NORM_BLOCK);
        self.squares.resize_with(blocks, AtomicU64::default);
        self.moments = moments;
        self.making = None;
    }

    /// [`Sharding::measure`](crate::Sharding::measure).
    pub fn measure<D: HostDevice>(
        &mut self,
        rule: &UpdateRule<'_, D>,
        state: &State,
        (step, gradient): (Step, &[f32]),
        (weight, samples, share): (f64, u64, UpdateShare),
    ) {
        let divisor = Divisor { weight, scale: rule.facts.loss_scale(state.section(Section::Stats)) };
        let reduced = Reduced::<D> { gradient, samples, divisor };
        let (grads, sums) = reduced.parts(rule.facts);
        let part = share.part(grads.len(), NORM_BLOCK);
        let blocks = part.start / NORM_BLOCK..part.end.div_ceil(NORM_BLOCK);
        rule.device.squares(&grads[part], divisor.mean(), &self.squares[blocks]);
        let stats_finite = sums.is_empty() || rule.device.all_finite(sums);
        let held = self.moments.held();
        for (run, start) in held.runs.iter().zip(&held.starts) {
            rule.device.copy(&grads[run.clone()], &mut self.sum[*start..*start + run.len()]);
        }
        rule.device.copy(sums, &mut self.sum[held.len()..]);
        let (heard, settled, made) = (share.of == 1, None, false);
        self.making = Some(Making { step, divisor, samples, share, stats_finite, heard, settled, made });
    }

    /// [`Sharding::tell`](crate::Sharding::tell).
    pub fn tell(&self, words: &mut [f32]) {
        let UpdateShare { index, of } = self.making.expect(MEASURED).share;
        let own = self.squares.len() * index / of..self.squares.len() * (index + 1) / of;
        assert_eq!(words.len(), WORDS * own.len(), "words for another share");
        for (words, square) in words.chunks_exact_mut(WORDS).zip(&self.squares[own]) {
            let bits = square.load(Ordering::Relaxed);
            words.copy_from_slice(&[f32::from_bits(bits as u32), f32::from_bits((bits >> 32) as u32)]);
        }
    }

    /// [`Sharding::hear`](crate::Sharding::hear).
    pub fn hear(&mut self, words: &[f32]) {
        for (square, words) in self.squares.iter_mut().zip(words.chunks_exact(WORDS)) {
            *square.get_mut() = u64::from(words[0].to_bits()) | u64::from(words[1].to_bits()) << 32;
        }
        self.making.as_mut().expect(MEASURED).heard = true;
    }

    /// [`Sharding::measured`](crate::Sharding::measured).
    #[must_use]
    pub fn measured(&self) -> Option<Step> {
        self.making.filter(|making| making.heard && !making.made).map(|making| making.step)
    }

    /// [`Sharding::settle`](crate::Sharding::settle).
    pub fn settle<D: HostDevice>(&mut self, rule: &UpdateRule<'_, D>) -> Result<UpdateInfo, EngineError> {
        // In order, as one replica adds up what it has seen alone.
        let squares = self.squares.iter().map(|square| f64::from_bits(square.load(Ordering::Relaxed)));
        let squares = squares.fold(0.0, |sum, square| sum + square);
        let making = self.making.as_mut().expect(MEASURED);
        let seen = Seen { squares, stats_finite: making.stats_finite };
        let settled = match making.settled {
            Some(settled) => settled,
            None => passes::settle(rule.facts, rule.optimizer, making.step, making.divisor, seen)?,
        };
        making.settled = Some(settled);
        Ok(settled.info)
    }

    /// [`Sharding::update_held`](crate::Sharding::update_held).
    pub fn update<D: HostDevice>(&mut self, rule: &UpdateRule<'_, D>, state: &mut State) {
        let Self { moments, runs, sum, making, .. } = self;
        let making = making.as_mut().expect(MEASURED);
        assert!(!making.made, "an update is made once");
        let settled = making.settled.expect("an update is settled before it is made");
        let held = moments.held().clone();
        let [parameters, stats, _, _, average] = state.sections_mut();
        let [first, second] = moments.sections_mut();
        let to = Buffers::<D> { parameters, first, second, average };
        update_runs(rule.device, rule.optimizer, making.step, &settled, (&held, runs), sum, to);
        let facts = UpdateFacts { parameters: held.len(), ..*rule.facts };
        let reduced = Reduced::<D> { gradient: sum, samples: making.samples, divisor: making.divisor };
        reduced.blend(rule.device, &facts, &settled, stats);
        making.made = true;
        state.applied = making.step;
    }

    /// [`Sharding::commit`](crate::Sharding::commit).
    pub fn commit<D: HostDevice>(&self, rule: &UpdateRule<'_, D>, state: &mut State, step: Step) {
        assert_eq!(state.applied, step, "an update is made before it is committed");
        let skipped = self.making.and_then(|making| making.settled).is_some_and(|it| it.scale.is_none());
        if skipped {
            return;
        }
        let [parameters, .., average] = state.sections_mut();
        average_between(rule.device, rule.optimizer, step, self.moments.held(), parameters, average);
    }
}

/// Makes an update, if it is not skipped, of those elements that are held: whose moments lie one behind the other, as their sums do.
///
/// *Order*: the bits are those of an update of all.
pub(crate) fn update_runs<D: Device>(
    device: &D,
    optimizer: &Optimizer,
    step: Step,
    settled: &Settled,
    (held, runs): (&Held, &[Runs]),
    sum: D::Ref<'_>,
    mut to: Buffers<'_, D>,
) {
    let Some(scale) = settled.scale else { return };
    for ((run, start), runs) in held.runs.iter().zip(&held.starts).zip(runs) {
        let at = *start..*start + run.len();
        let buffers = Buffers::<D> {
            parameters: D::part_mut(&mut to.parameters, run.clone()),
            first: part_if_there::<D>(&mut to.first, &at),
            second: part_if_there::<D>(&mut to.second, &at),
            average: part_if_there::<D>(&mut to.average, run),
        };
        optimizer.apply(device, step, Factors::known(scale), runs, D::part(sum, at), buffers);
    }
}

fn part_if_there<'a, D: Device>(section: &'a mut D::Mut<'_>, at: &Range<usize>) -> D::Mut<'a> {
    let part = if D::len_mut(section) == 0 { 0..0 } else { at.clone() };
    D::part_mut(section, part)
}

/// Brings the moving average up to date, if there is one, of all that is not held: of what is held it was made with the update.
pub(crate) fn average_between<D: Device>(
    device: &D,
    optimizer: &Optimizer,
    step: Step,
    held: &Held,
    parameters: D::Ref<'_>,
    mut average: D::Mut<'_>,
) {
    let Some(share) = optimizer.averages(step) else { return };
    let mut next = 0;
    let end = D::len(parameters)..D::len(parameters);
    for run in held.runs.iter().chain(std::iter::once(&end)) {
        let between = next..run.start;
        next = run.end;
        if !between.is_empty() {
            let to = D::part_mut(&mut average, between.clone());
            device.blend(share, 1.0.into(), D::part(parameters, between), to);
        }
    }
}

/// Why there is an update in hand.
const MEASURED: &str = "an update is measured before anything else is asked of it";
