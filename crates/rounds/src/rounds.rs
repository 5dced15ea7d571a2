//! A step in rounds, in which nobody has all of a gradient, nor of the parameters if each has but its shards of them: in each round every rank computes one
//! micro-batch, and what it lacks and what it has for others travel window by window while it does.
//!
//! All ranks go through the same windows in the same order; one that has no micro-batch takes part for what it holds. This file does not
//! know what is computed, nor what comes of the sum.

use crate::brought_parameters::{BroughtParameters, ParameterStock};
use crate::carries::{AtOnce, Carriage, Carries, Parcel, ParcelKind};
use crate::error::RoundsError;
use crate::exchange::Exchange;
use crate::folding::Folding;
use crate::memory::{Memory, Site};
use crate::owned::Owned;
use crate::trailers::in_tree_order;
use crate::window_parameters::ParameterWindows;
use crate::window_sums::{Round, RoundsPlan, WindowSums};
use crate::windowed_gradient::{GradientStock, Then, WindowedGradient};
use dtrain_collective::{CollectiveError, DeviceSlot, Op, Take};
use dtrain_engine::device::LossSums;
use dtrain_engine::{
    BatchFigures, BatchView, BringsParameters, Call, EngineError, EvaluationCounts, Gradient, Held,
    Itinerary, MicroBatchGroup, Replica, Section,
};
use dtrain_types::{MicroBatch, Step, Trailer, Wire, word_of_floats, word_to_floats};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Floats that carry a trailer.
const TRAILER: usize = 2 * Trailer::WORDS;

/// The rounds of a generation. See the file's comment.
#[derive(Clone, Debug)]
pub struct Rounds {
    rank: usize,
    world: usize,
    itinerary: Itinerary,
    sums: Arc<WindowSums>,
    gradients: GradientStock,
    parameters: Arc<ParameterWindows>,
    brought: ParameterStock,
    is_there: bool,
    /// Unless a carrier has it.
    carriage: Option<Carriage>,
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
    /// The rounds of a generation, whose windows lie in the memory of the host.
    #[must_use]
    pub fn new(plan: &RoundsPlan<'_>) -> Self {
        Self::at(&mut Site::Home, plan).expect("the host has memory, or ends the process")
    }

    /// The same, whose windows lie in the memory of the device that has this slot. *Errors*: it has no room. *Panics* if sums are to be rounded.
    pub fn there(plan: &RoundsPlan<'_>, slot: &mut dyn DeviceSlot) -> Result<Self, CollectiveError> {
        assert_eq!(plan.wire, Wire::F32, "a device rounds no sums");
        Self::at(&mut Site::There(slot), plan)
    }

    fn at(site: &mut Site<'_>, plan: &RoundsPlan<'_>) -> Result<Self, CollectiveError> {
        let (rank, world) = plan.rank;
        let owned = Owned::of(plan.holders, rank, plan.cuts);
        let parameters = Arc::new(ParameterWindows::new(plan.windows, &owned, plan.slot));
        let sums = Arc::new(WindowSums::new(plan));
        let at_once = (plan.micro_batches, world as u32);
        let folding = Folding::at(site, sums.kept().elements(), at_once, plan.wire)?;
        let carriage = Carriage::new(Arc::clone(&parameters), Arc::clone(&sums), folding, world);
        Ok(Self {
            rank: rank.index(),
            world,
            itinerary: plan.windows.itinerary().clone(),
            brought: ParameterStock::at(site, &parameters, plan.level)?,
            gradients: GradientStock::at(site, plan.windows)?,
            is_there: matches!(site, Site::There(_)),
            carriage: Some(carriage),
            sums,
            parameters,
            starts: Vec::with_capacity(world + 1),
        })
    }

    /// Whether windows lie in the memory of a device.
    #[must_use]
    pub fn are_there(&self) -> bool {
        self.is_there
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

    /// How many windows may be on their way at once, parameters and gradients.
    #[must_use]
    pub fn at_once(&self) -> usize {
        ParameterStock::WINDOWS + self.gradients.windows()
    }

    /// Begins a step, in memory for what is kept of the sum. *Panics* if windows lie elsewhere.
    pub fn begin(&mut self, memory: Memory) {
        self.brought.forget();
        self.at_home().folding.give(memory);
    }

    /// The sum of the step.
    pub fn take(&mut self) -> Memory {
        self.at_home().folding.take()
    }

    fn at_home(&mut self) -> &mut Carriage {
        self.carriage.as_mut().expect(HOME)
    }

    /// What a carrier takes along, until it [comes home](Rounds::come_home). *Panics* if one is out.
    pub fn set_out(&mut self) -> Carriage {
        self.carriage.take().expect(HOME)
    }

    /// A carrier brings it back, with the parcels that nobody has taken. *Errors*: an exchange broke off since it set out: nothing of what was computed
    /// meanwhile counts.
    pub fn come_home(
        &mut self,
        mut carriage: Carriage,
        unclaimed: impl Iterator<Item = (ParcelKind, Parcel)>,
    ) -> Result<(), CollectiveError> {
        for (kind, parcel) in unclaimed {
            match kind {
                ParcelKind::Parameters => self.brought.give_up(parcel),
                ParcelKind::Gradient => self.gradients.take_back(parcel),
            }
        }
        let went = carriage.take_result();
        self.carriage = Some(carriage);
        went
    }

    /// Passes one after the other while this carrier is out.
    pub fn outing<'a>(&'a mut self, carrier: &'a mut dyn Carries) -> Outing<'a> {
        Outing { rounds: self, carrier: Mutex::new(carrier) }
    }

    /// Goes out for one thing, with windows that are carried at once.
    fn out<T>(
        &mut self,
        by: &mut dyn Exchange,
        then: impl FnOnce(&mut Outing<'_>) -> Result<T, EngineError>,
    ) -> Result<T, RoundsError> {
        let carriage = self.set_out();
        let mut carrier = AtOnce { carriage, by, brought: VecDeque::new(), exchanged: VecDeque::new() };
        let done = then(&mut self.outing(&mut carrier));
        let AtOnce { carriage, brought, exchanged, .. } = carrier;
        let brought = brought.into_iter().map(|parcel| (ParcelKind::Parameters, parcel));
        let exchanged = exchanged.into_iter().map(|parcel| (ParcelKind::Gradient, parcel));
        self.come_home(carriage, brought.chain(exchanged))?;
        Ok(done?)
    }

    /// [`Outing::compute`], with windows that are carried at once.
    ///
    /// *Blocks* for all ranks. *Errors*: the collectives broke off; as [`Replica::compute`].
    pub fn compute(
        &mut self,
        replica: &mut dyn Replica,
        computed: Computed<'_>,
        round: Round,
        by: &mut dyn Exchange,
    ) -> Result<BatchFigures, RoundsError> {
        self.out(by, |out| out.compute(replica, computed, round))
    }

    /// [`Outing::take_part`], with windows that are carried at once.
    ///
    /// *Blocks* for all ranks. *Errors*: the collectives broke off.
    pub fn take_part(
        &mut self,
        replica: &mut dyn Replica,
        round: Round,
        by: &mut dyn Exchange,
    ) -> Result<(), RoundsError> {
        self.out(by, |out| {
            out.take_part(replica, round);
            Ok(())
        })
    }

    /// [`Outing::evaluate`], with windows that are carried at once.
    ///
    /// *Blocks* for all ranks. *Errors*: the collectives broke off; as [`Replica::evaluate`].
    pub fn evaluate(
        &mut self,
        replica: &mut dyn Replica,
        batch: Option<&BatchView<'_>>,
        counts: &mut EvaluationCounts,
        by: &mut dyn Exchange,
    ) -> Result<LossSums, RoundsError> {
        self.out(by, |out| out.evaluate(replica, batch, counts))
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
        let slot = by.part(starts[self.rank]..starts[self.rank + 1]);
        for (words, trailer) in slot.chunks_exact_mut(TRAILER).zip(own) {
            words.copy_from_slice(&to_floats(trailer));
        }
        by.gather(&Op::AllGather { cuts: Some(starts), take: Take::All })?;
        let slot = by.part(0..starts[world]);
        let of = |m: usize| starts[m % world] + TRAILER * (m / world);
        let all = (0..micro_batches as usize).map(|m| of_floats(&slot[of(m)..of(m) + TRAILER]));
        Ok(in_tree_order(all))
    }
}

/// Why it is there: nobody uses it while a carrier is out with it.
const HOME: &str = "one carrier is out at a time";

/// Passes one after the other by the same parameters, while a carrier is out: what it was told to carry is there when it has come home, and only then it
/// is known whether it came to its end. A pass cannot be told of a break, and goes on to its own.
pub struct Outing<'a> {
    rounds: &'a mut Rounds,
    carrier: Mutex<&'a mut dyn Carries>,
}

impl<'a> Outing<'a> {
    /// Computes a micro-batch in its round. Windows of its gradient may be on their way behind it.
    ///
    /// *Blocks* for all ranks. *Errors*: as [`Replica::compute`].
    pub fn compute(
        &mut self,
        replica: &mut dyn Replica,
        computed: Computed<'_>,
        round: Round,
    ) -> Result<BatchFigures, EngineError> {
        let (_, mut brought, mut gradient) = self.training_pass(Then::Exchanged(round));
        pass(replica, computed, &mut brought, &mut gradient)
    }

    /// Takes part in a round in which this rank has no micro-batch.
    ///
    /// *Blocks* for all ranks.
    pub fn take_part(&mut self, replica: &mut dyn Replica, round: Round) {
        let (itinerary, mut brought, mut gradient) = self.training_pass(Then::Exchanged(round));
        visit(itinerary, replica, &mut brought, Some(&mut gradient));
    }

    /// Computes a micro-batch again, or takes part in that, and tells whether its loss or gradient is not finite. Where each has but its shards of the
    /// parameters all ranks call it alike.
    ///
    /// *Errors*: as [`Outing::compute`].
    pub fn is_at_fault(
        &mut self,
        replica: &mut dyn Replica,
        step: Step,
        at: Option<(MicroBatch, &BatchView<'_>)>,
    ) -> Result<bool, EngineError> {
        let (itinerary, mut brought, mut gradient) = self.training_pass(Then::LookedAt);
        let Some((at, batch)) = at else {
            visit(itinerary, replica, &mut brought, None);
            return Ok(false);
        };
        let group = &MicroBatchGroup::of_one(step, at);
        let figures = pass(replica, Computed { group, batch }, &mut brought, &mut gradient)?;
        Ok(!(gradient.is_finite() && figures.sums.loss.is_finite()))
    }

    /// Evaluates a batch, or takes part in that, where each rank has but its shards of the parameters: all ranks call it alike.
    ///
    /// *Blocks* for all ranks. *Errors*: as [`Replica::evaluate`].
    pub fn evaluate(
        &mut self,
        replica: &mut dyn Replica,
        batch: Option<&BatchView<'_>>,
        counts: &mut EvaluationCounts,
    ) -> Result<LossSums, EngineError> {
        let Rounds { parameters, brought, itinerary, .. } = &mut *self.rounds;
        // They may have changed, or be averages now.
        brought.forget();
        let reads = (&**parameters, parameters.of_a_forward_pass());
        let mut brought = BroughtParameters::new(reads, brought, &self.carrier);
        let averages = replica.about().state.averages;
        match (batch, replica.gathering()) {
            (Some(batch), Some(gathering)) => gathering.evaluate_with(batch, &mut brought, counts),
            (Some(batch), None) => replica.evaluate(batch, counts),
            (None, _) => {
                let section = if averages { Section::Average } else { Section::Parameters };
                read(itinerary, section, replica, &mut brought);
                Ok(LossSums::default())
            }
        }
    }

    /// What a training pass asks for, what it is brought, and where its gradient goes.
    pub(crate) fn training_pass(
        &mut self,
        then: Then,
    ) -> (&Itinerary, BroughtParameters<'_, 'a>, WindowedGradient<'_, 'a>) {
        let Rounds { parameters, brought, gradients, itinerary, .. } = &mut *self.rounds;
        let reads = (&**parameters, parameters.of_a_training_pass());
        let brought = BroughtParameters::new(reads, brought, &self.carrier);
        (itinerary, brought, WindowedGradient::new(gradients, &self.carrier, then))
    }
}

/// A pass over a micro-batch, by parameters that are brought where each rank has but its shards of them.
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
    let sharding = replica.sharding().expect("whoever takes part holds shards");
    if let Some(there) = sharding.there() {
        let lay = &mut |run: Range<usize>, to: &_, at| there.lay(section, run, to, at);
        if brought.bring_there(section, elements.clone(), lay).is_some() {
            return;
        }
    }
    brought.bring(section, elements.clone(), &mut |run, to| {
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
