//! An update of which a replica makes the part that it holds.
//!
//! 1. It *measures* the reduced gradient: the norm of all of it, and a copy of the part that it holds.
//! 2. When all replicas have measured, it makes its part of the update, from its own copy: the gradient's memory is free.
//! 3. When it has the others' parameters, the update is *committed*.
//!
//! A replica that is told to stop before 2 can make the update later, when it hears that another one made it: it kept what it needs. This
//! file does not know who the others are.

use crate::error::EngineError;
use crate::flat::Flat;
use crate::groups::Runs;
use crate::host_device::HostDevice;
use crate::layout::Section;
use crate::optimizer::{Buffers, Factors};
use crate::passes::{self, Divisor, Reduced, Seen, Settled};
use crate::sharding::Moments;
use crate::shared_update::UpdateRule;
use crate::state::State;
use crate::update_facts::UpdateFacts;
use crate::update_info::UpdateInfo;
use dtrain_types::{Holding, Step};
use std::ops::Range;

/// What a replica holds, and the update that it makes of it: all of [`Sharding`](crate::Sharding), for whoever keeps the state itself. The moments
/// of that state, if it has any, are nobody's.
#[derive(Debug, Default)]
pub struct Sharded {
    moments: Moments,
    /// Of each run that is held: the groups of its parameters, counted from its start.
    runs: Vec<Runs>,
    /// The gradient of what is held, then the sums of the statistics.
    sum: Flat,
    making: Option<Making>,
}

/// An update as far as it is made.
#[derive(Clone, Copy, Debug)]
struct Making {
    step: Step,
    divisor: Divisor,
    samples: u64,
    seen: Seen,
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
        self.moments = moments;
        self.making = None;
    }

    /// [`Sharding::measure`](crate::Sharding::measure).
    pub fn measure<D: HostDevice>(
        &mut self,
        rule: &UpdateRule<'_, D>,
        state: &State,
        (step, gradient): (Step, &[f32]),
        (weight, samples): (f64, u64),
    ) {
        let divisor = Divisor { weight, scale: rule.facts.loss_scale(state.section(Section::Stats)) };
        let reduced = Reduced::<D> { gradient, samples, divisor };
        let seen = passes::look(rule.device, rule.facts, &reduced);
        let (grads, sums) = reduced.parts(rule.facts);
        let held = self.moments.held();
        for (run, start) in held.runs.iter().zip(&held.starts) {
            rule.device.copy(&grads[run.clone()], &mut self.sum[*start..*start + run.len()]);
        }
        rule.device.copy(sums, &mut self.sum[held.len()..]);
        self.making = Some(Making { step, divisor, samples, seen, settled: None, made: false });
    }

    /// [`Sharding::measured`](crate::Sharding::measured).
    #[must_use]
    pub fn measured(&self) -> Option<Step> {
        self.making.filter(|making| !making.made).map(|making| making.step)
    }

    /// [`Sharding::settle`](crate::Sharding::settle).
    pub fn settle<D: HostDevice>(&mut self, rule: &UpdateRule<'_, D>) -> Result<UpdateInfo, EngineError> {
        let making = self.making.as_mut().expect(MEASURED);
        let settled = match making.settled {
            Some(settled) => settled,
            None => passes::settle(rule.facts, rule.optimizer, making.step, making.divisor, making.seen)?,
        };
        making.settled = Some(settled);
        Ok(settled.info)
    }

    /// [`Sharding::update_held`](crate::Sharding::update_held).
    pub fn update<D: HostDevice>(&mut self, rule: &UpdateRule<'_, D>, state: &mut State) {
        let Self { moments, runs, sum, making } = self;
        let making = making.as_mut().expect(MEASURED);
        assert!(!making.made, "an update is made once");
        let settled = making.settled.expect("an update is settled before it is made");
        let (held, len) = (moments.held().clone(), moments.held().len());
        let [parameters, stats, _, _, average] = state.sections_mut();
        let [first, second] = moments.sections_mut();
        for ((run, start), runs) in held.runs.iter().zip(&held.starts).zip(runs.iter()) {
            let Some(scale) = settled.scale else { break };
            let at = *start..*start + run.len();
            let there =
                |section: &[f32], at: &Range<usize>| if section.is_empty() { 0..0 } else { at.clone() };
            let buffers = Buffers::<D> {
                parameters: &mut parameters[run.clone()],
                first: {
                    let at = there(first, &at);
                    &mut first[at]
                },
                second: {
                    let at = there(second, &at);
                    &mut second[at]
                },
                average: {
                    let run = there(average, run);
                    &mut average[run]
                },
            };
            let factors = Factors::known(scale);
            rule.optimizer.apply(rule.device, making.step, factors, runs, &sum[at], buffers);
        }
        let facts = UpdateFacts { parameters: len, ..*rule.facts };
        let reduced = Reduced::<D> { gradient: sum, samples: making.samples, divisor: making.divisor };
        reduced.blend(rule.device, &facts, &settled, stats);
        making.made = true;
        state.applied = making.step;
    }

    /// [`Sharding::commit`](crate::Sharding::commit).
    pub fn commit<D: HostDevice>(&self, rule: &UpdateRule<'_, D>, state: &mut State, step: Step) {
        assert_eq!(state.applied, step, "an update is made before it is committed");
        let skipped = self.making.and_then(|making| making.settled).is_some_and(|it| it.scale.is_none());
        let Some(share) = rule.optimizer.averages(step).filter(|_| !skipped) else { return };
        let [parameters, .., average] = state.sections_mut();
        let mut next = 0;
        // What lies between the runs: of those the average was made with them.
        let end = parameters.len()..parameters.len();
        for run in self.moments.held().runs.iter().chain(std::iter::once(&end)) {
            let between = next..run.start;
            rule.device.blend(share, 1.0, &parameters[between.clone()], &mut average[between]);
            next = run.end;
        }
    }
}

/// Why there is an update in hand.
const MEASURED: &str = "an update is measured before anything else is asked of it";
