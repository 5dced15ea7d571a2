//! An update of what a replica holds, as far as it is made, wherever that lies.
//!
//! The state of the update and its order; the memory is the caller's: `sharded_update.rs` has it on the host, `device_shards.rs` on a device. This file
//! does not know who the others are.

use crate::device::Device;
use crate::error::EngineError;
use crate::groups::Runs;
use crate::optimizer::{Buffers, Factors, Optimizer};
use crate::passes::{self, Divisor, Reduced, Seen, Settled};
use crate::sharding::Held;
use crate::sharing::UpdateShare;
use crate::update_facts::UpdateFacts;
use crate::update_info::UpdateInfo;
use dtrain_types::Step;
use std::ops::Range;

/// An update of what is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldUpdate {
    step: Step,
    share: UpdateShare,
    divisor: Divisor,
    samples: u64,
    stats_finite: bool,
    /// Of all of the gradient, once they are known.
    squares: Option<f64>,
    settled: Option<Settled>,
    made: bool,
}

/// Where parameters and their moving average lie of what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartsLie {
    /// Among all others.
    InWhole,
    /// Alone, as moments do.
    AsHeld,
}

/// What is held of the parameters: runs, and of each the groups, counted from its start.
pub(crate) type HeldRuns<'a> = (&'a Held, &'a [Runs]);

impl HeldUpdate {
    /// Copies what an update needs of a reduced gradient: those elements, one run behind the other.
    pub fn copy<D: Device>(device: &D, gradient: D::Ref<'_>, kept: &Held, mut to: D::Mut<'_>) {
        for (run, start) in kept.runs.iter().zip(&kept.starts) {
            let to = D::part_mut(&mut to, *start..*start + run.len());
            device.copy(D::part(gradient, run.clone()), to);
        }
    }

    /// One of a sum that is kept, whose sums of the statistics these are.
    pub fn of<D: Device>(
        device: &D,
        (step, share): (Step, UpdateShare),
        (samples, divisor): (u64, Divisor),
        sums: D::Ref<'_>,
    ) -> Self {
        let stats_finite = D::len(sums) == 0 || device.all_finite(sums);
        let (squares, settled, made) = (None, None, false);
        Self { step, share, divisor, samples, stats_finite, squares, settled, made }
    }

    /// The share of the gradient that this replica looks at.
    pub fn share(&self) -> UpdateShare {
        self.share
    }

    /// Takes the squares of all blocks.
    ///
    /// *Order*: in theirs, as one replica adds up what it has seen alone.
    pub fn hear(&mut self, squares: impl Iterator<Item = f64>) {
        self.squares = Some(squares.fold(0.0, |sum, square| sum + square));
    }

    /// Which it is, if all of it is known and it is not made.
    pub fn measured(&self) -> Option<Step> {
        (self.squares.is_some() && !self.made).then_some(self.step)
    }

    /// Says what it comes to.
    ///
    /// *Errors*: as `Replica::update`. *Panics* unless all was heard.
    pub fn settle(&mut self, facts: &UpdateFacts, optimizer: &Optimizer) -> Result<UpdateInfo, EngineError> {
        let seen = Seen { squares: self.squares.expect("all was heard"), stats_finite: self.stats_finite };
        let settled = match self.settled {
            Some(settled) => settled,
            None => passes::settle(facts, optimizer, self.step, self.divisor, seen)?,
        };
        self.settled = Some(settled);
        Ok(settled.info)
    }

    /// Makes it from the sum that was kept, which lies as `kept` does, in moments that lie as `held` does, and brings the statistics up to
    /// date; tells which it was.
    ///
    /// *Order*: the bits are those of an update of all. *Panics* unless it is settled, or if it was made.
    pub fn make<D: Device>(
        &mut self,
        device: &D,
        (facts, optimizer): (&UpdateFacts, &Optimizer),
        (held, runs): HeldRuns<'_>,
        (kept, sum): (&Held, D::Ref<'_>),
        (mut to, lies): (Buffers<'_, D>, PartsLie),
        stats: D::Mut<'_>,
    ) -> (Step, UpdateInfo) {
        assert!(!self.made, "an update is made once");
        let settled = self.settled.expect("an update is settled before it is made");
        for ((run, start), runs) in held.runs.iter().zip(&held.starts).zip(runs) {
            let Some(scale) = settled.scale else { break };
            let at = *start..*start + run.len();
            let place = if lies == PartsLie::AsHeld { at.clone() } else { run.clone() };
            let buffers = Buffers::<D> {
                parameters: D::part_mut(&mut to.parameters, place.clone()),
                first: part_if_there::<D>(&mut to.first, &at),
                second: part_if_there::<D>(&mut to.second, &at),
                average: part_if_there::<D>(&mut to.average, &place),
            };
            let grads = D::part(sum, kept.place(run));
            optimizer.apply(device, self.step, Factors::known(scale), runs, grads, buffers);
        }
        let sums = D::part(sum, kept.place(&facts.sums()));
        let reduced = Reduced::<D> { gradient: sums, samples: self.samples, divisor: self.divisor };
        reduced.blend(device, &UpdateFacts { parameters: 0, ..*facts }, &settled, stats);
        self.made = true;
        (self.step, settled.info)
    }

    /// All parameters are those of this update: brings their moving average up to date, if there is one, of all that is not held. Of what is held it was
    /// made with the update.
    pub fn commit<D: Device>(
        &self,
        device: &D,
        optimizer: &Optimizer,
        held: &Held,
        parameters: D::Ref<'_>,
        mut average: D::Mut<'_>,
    ) {
        let is_skipped = self.settled.is_some_and(|settled| settled.scale.is_none());
        let Some(share) = optimizer.averages(self.step).filter(|_| !is_skipped) else { return };
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
}

fn part_if_there<'a, D: Device>(section: &'a mut D::Mut<'_>, at: &Range<usize>) -> D::Mut<'a> {
    let part = if D::len_mut(section) == 0 { 0..0 } else { at.clone() };
    D::part_mut(section, part)
}
