//! A step in rounds, in which nobody has all of a gradient, nor of the parameters if each has but its shards of them: in each round every rank computes one
//! micro-batch, and what it lacks and what it has for others travel window by window while it does.
//!
//! All ranks go through the same windows in the same order; one that has no micro-batch takes part for what it holds. This file does not
//! know what is computed, nor what comes of the sum.

use crate::error::RoundsError;
use crate::exchange::{Exchange, Wires};
use crate::owned::Owned;
use crate::trailers::in_tree_order;
use crate::window_parameters::{BroughtParameters, ParameterWindows};
use crate::window_sums::{Round, RoundsPlan, Then, WindowSums, WindowedGradient};
use dtrain_collective::{Op, Take};
use dtrain_engine::device::LossSums;
use dtrain_engine::{
    BatchFigures, BatchView, BringsParameters, Call, EngineError, EvaluationCounts, Flat, Gradient, Held,
    Itinerary, MicroBatchGroup, Replica, Section,
};
use dtrain_types::{MicroBatch, Step, Trailer, word_of_floats, word_to_floats};
use std::ops::Range;
use std::sync::Mutex;

/// Floats that carry a trailer.
const TRAILER: usize = 2 * Trailer::WORDS;

/// The rounds of a generation. See the file's comment.
#[derive(Clone, Debug)]
pub struct Rounds {
    rank: usize,
    world: usize,
    itinerary: Itinerary,
    sums: WindowSums,
    parameters: ParameterWindows,
    /// Where what ranks tell one another begins in a slot, and where the last one's ends.
    starts: Vec<usize>,
}

/// A micro-batch, and its samples.
#[derive(Clone, Copy)]
pub struct Computed<'a> {
    /// Which, and how its gradient is rounded.
    pub group: &'a MicroBatchGroup,
    /// Its samples.
    pub batch: &'a BatchView<'a>,
}

impl Rounds {
    /// The rounds of a generation.
    #[must_use]
    pub fn new(plan: &RoundsPlan<'_>) -> Self {
        let (rank, world) = plan.rank;
        let owned = Owned::of(plan.holders, rank, plan.cuts);
        Self {
            rank: rank.index(),
            world,
            itinerary: plan.windows.itinerary().clone(),
            sums: WindowSums::new(plan),
            parameters: ParameterWindows::new(plan.windows, &owned, plan.slot),
            starts: Vec::with_capacity(world + 1),
        }
    }

    /// How many a step of so many micro-batches has.
    #[must_use]
    pub fn count(&self, micro_batches: u32) -> u32 {
        micro_batches.div_ceil(self.world as u32)
    }

    /// The micro-batch of this rank in a round, if the step has so many.
    #[must_use]
    pub fn micro_batch(&self, round: u32) -> u32 {
        round * self.world as u32 + self.rank as u32
    }

    /// What this rank keeps of a sum.
    #[must_use]
    pub fn kept(&self) -> &Held {
        self.sums.kept()
    }

    /// Begins a step, in memory for what is kept of the sum.
    pub fn begin(&mut self, memory: Flat) {
        self.sums.begin(memory);
    }

    /// The sum of the step.
    pub fn take(&mut self) -> Flat {
        self.sums.take()
    }

    /// Computes a micro-batch in its round.
    ///
    /// *Blocks* for all ranks. *Errors*: the collectives broke off; as [`Replica::compute`].
    pub fn compute(
        &mut self,
        replica: &mut dyn Replica,
        computed: Computed<'_>,
        round: Round,
        by: &mut dyn Exchange,
    ) -> Result<BatchFigures, RoundsError> {
        let on = Mutex::new(Wires::new(by));
        let mut gradient = WindowedGradient::new(&mut self.sums, Then::Exchanged(round, &on));
        let mut brought = BroughtParameters::new(&mut self.parameters, &on);
        let figures = pass(replica, computed, &mut brought, &mut gradient);
        brought.finish()?;
        gradient.finish()?;
        Ok(figures?)
    }

    /// Takes part in a round in which this rank has no micro-batch.
    ///
    /// *Blocks* for all ranks. *Errors*: the collectives broke off; of the device.
    pub fn take_part(
        &mut self,
        replica: &mut dyn Replica,
        round: Round,
        by: &mut dyn Exchange,
    ) -> Result<(), RoundsError> {
        let on = Mutex::new(Wires::new(by));
        let mut gradient = WindowedGradient::new(&mut self.sums, Then::Exchanged(round, &on));
        let mut brought = BroughtParameters::new(&mut self.parameters, &on);
        visit(&self.itinerary, replica, &mut brought, Some(&mut gradient));
        brought.finish()?;
        gradient.finish()?;
        Ok(())
    }

    /// Computes a micro-batch again, or takes part in that, and tells whether its loss or gradient is not finite. Where each has but its shards of the
    /// parameters all ranks call it alike.
    ///
    /// *Errors*: as [`Rounds::compute`].
    pub fn is_at_fault(
        &mut self,
        replica: &mut dyn Replica,
        step: Step,
        at: Option<(MicroBatch, &BatchView<'_>)>,
        by: &mut dyn Exchange,
    ) -> Result<bool, RoundsError> {
        let on = Mutex::new(Wires::new(by));
        let mut brought = BroughtParameters::new(&mut self.parameters, &on);
        let Some((at, batch)) = at else {
            visit(&self.itinerary, replica, &mut brought, None);
            brought.finish()?;
            return Ok(false);
        };
        let group = &MicroBatchGroup::of_one(step, at);
        let mut gradient = WindowedGradient::new(&mut self.sums, Then::LookedAt);
        let figures = pass(replica, Computed { group, batch }, &mut brought, &mut gradient);
        brought.finish()?;
        let figures = figures?;
        Ok(!(gradient.finish()? && figures.sums.loss.is_finite()))
    }

    /// Evaluates a batch, or takes part in that, where each rank has but its shards of the parameters: all ranks call it alike.
    ///
    /// *Blocks* for all ranks. *Errors*: the collectives broke off; as [`Replica::evaluate`].
    pub fn evaluate(
        &mut self,
        replica: &mut dyn Replica,
        batch: Option<&BatchView<'_>>,
        counts: &mut EvaluationCounts,
        by: &mut dyn Exchange,
    ) -> Result<LossSums, RoundsError> {
        let on = Mutex::new(Wires::new(by));
        let mut brought = BroughtParameters::new(&mut self.parameters, &on);
        let averages = replica.about().state.averages;
        let loss = match (batch, replica.gathering()) {
            (Some(batch), Some(gathering)) => gathering.evaluate_with(batch, &mut brought, counts)?,
            (Some(batch), None) => replica.evaluate(batch, counts)?,
            (None, _) => {
                let section = if averages { Section::Average } else { Section::Parameters };
                read(&self.itinerary, section, replica, &mut brought);
                LossSums::default()
            }
        };
        brought.finish()?;
        Ok(loss)
    }

    /// The trailer of a step of so many micro-batches, of which this rank has these; the same on all.
    ///
    /// *Blocks* for all ranks. *Errors*: the collectives broke off.
    pub fn sum_trailers(
        &mut self,
        own: &[Trailer],
        micro_batches: u32,
        by: &mut dyn Exchange,
    ) -> Result<Trailer, RoundsError> {
        let (world, starts) = (self.world, &mut self.starts);
        let of = |rank: usize| (micro_batches as usize).saturating_sub(rank).div_ceil(world);
        starts.clear();
        starts.push(0);
        (0..world).for_each(|rank| starts.push(starts[rank] + TRAILER * of(rank)));
        let slot = &mut by.slot()[starts[self.rank]..starts[self.rank + 1]];
        for (words, trailer) in slot.chunks_exact_mut(TRAILER).zip(own) {
            words.copy_from_slice(&to_floats(trailer));
        }
        by.gather(&Op::AllGather { cuts: Some(starts), take: Take::All })?;
        let slot = by.slot();
        let of = |m: usize| starts[m % world] + TRAILER * (m / world);
        let all = (0..micro_batches as usize).map(|m| of_floats(&slot[of(m)..of(m) + TRAILER]));
        Ok(in_tree_order(all))
    }
}

/// A pass over a micro-batch, whose result counts for nothing where an exchange broke off; by parameters that are brought where each rank has but its shards of them.
fn pass(
    replica: &mut dyn Replica,
    Computed { group, batch }: Computed<'_>,
    brought: &mut BroughtParameters<'_, '_>,
    gradient: &mut dyn Gradient,
) -> Result<BatchFigures, EngineError> {
    let mut figures = [BatchFigures::default()];
    match replica.gathering() {
        Some(gathering) => gathering.compute_with(group, batch, brought, gradient, &mut figures),
        None => replica.compute(group, batch, gradient, &mut figures),
    }?;
    Ok(figures[0])
}

/// Takes part in what a forward pass by a section asks for.
fn read(
    itinerary: &Itinerary,
    section: Section,
    replica: &mut dyn Replica,
    brought: &mut BroughtParameters<'_, '_>,
) {
    for elements in &itinerary.forward {
        bring(section, elements, replica, brought);
    }
}

/// Takes part in what a training pass asks for, with a gradient or without one.
fn visit(
    itinerary: &Itinerary,
    replica: &mut dyn Replica,
    brought: &mut BroughtParameters<'_, '_>,
    mut gradient: Option<&mut dyn Gradient>,
) {
    let gathers = replica.gathering().is_some();
    if gathers {
        read(itinerary, Section::Parameters, replica, brought);
    }
    let parameters = replica.about().layout.parameters;
    gradient.iter_mut().for_each(|gradient| gradient.settle(parameters));
    for call in &itinerary.backward {
        match call {
            Call::Reads(elements) if gathers => bring(Section::Parameters, elements, replica, brought),
            Call::Reads(_) => {}
            Call::Settles(from) => gradient.iter_mut().for_each(|gradient| gradient.settle(*from)),
        }
    }
}

fn bring(
    section: Section,
    elements: &Range<usize>,
    replica: &mut dyn Replica,
    brought: &mut BroughtParameters<'_, '_>,
) {
    brought.bring(section, elements.clone(), &mut |run, to| {
        let sharding = replica.sharding().expect("whoever takes part holds shards");
        sharding.read(section, run.start, to).expect("what a host holds can be read");
    });
}

fn to_floats(trailer: &Trailer) -> [f32; TRAILER] {
    let mut floats = [0.0; TRAILER];
    for (pair, word) in floats.chunks_exact_mut(2).zip(trailer.words()) {
        pair.copy_from_slice(&word_to_floats(word));
    }
    floats
}

fn of_floats(floats: &[f32]) -> Trailer {
    Trailer::of_words(std::array::from_fn(|at| word_of_floats(&floats[2 * at..2 * at + 2])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailer_comes_out_of_its_floats_as_it_went_in() {
        let trailer = Trailer {
            loss: -0.0,
            weight: f64::NAN,
            samples: u64::MAX,
            predictions: 1 << 40 | 3,
            correct: 0,
            check: 0x7FA0_0001_FFFF_FFFF,
            stop: 2,
            non_finite: Trailer::ALL_FINITE,
        };
        let back = of_floats(&to_floats(&trailer));
        assert_eq!(
            (back.loss.to_bits(), back.weight.to_bits()),
            (trailer.loss.to_bits(), trailer.weight.to_bits())
        );
        let same = Trailer { loss: 0.0, weight: 0.0, ..back };
        assert_eq!(same, Trailer { loss: 0.0, weight: 0.0, ..trailer });
    }
}
