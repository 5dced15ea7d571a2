//! The shards that a replica holds in the memory of a device: their moments, what it keeps of a sum, and its part of an update.
//!
//! As `sharded_update.rs` does it in the host's memory. But a device reads all of a gradient in less time than ranks tell one another what they have
//! seen of it, so each looks at all of it. This file does not know who holds what, nor where the rest of the state lies.

use crate::OwnMemory;
use crate::error::EngineError;
use crate::groups::Runs;
use crate::optimizer::{Buffers, Optimizer};
use crate::passes::{self, Divisor, Reduced, Seen, Settled};
use crate::sharded_update::{average_between, update_runs};
use crate::sharding::{HELD, Held, Moments};
use crate::update_facts::UpdateFacts;
use crate::update_info::UpdateInfo;
use dtrain_types::{Holding, Step};

/// What a replica holds on its device.
pub(crate) struct DeviceShards<D: OwnMemory> {
    holding: Holding,
    held: Held,
    /// Of each run that is held: the groups of its parameters, counted from its start.
    runs: Vec<Runs>,
    /// Of what is held, the runs one behind the other.
    pub moments: [D::Floats; HELD.len()],
    /// The gradient of what is held, then the sums of the statistics.
    sum: D::Floats,
    making: Option<Making>,
}

/// An update as far as it is made.
#[derive(Clone, Copy)]
struct Making {
    step: Step,
    divisor: Divisor,
    samples: u64,
    seen: Seen,
    settled: Option<Settled>,
    made: bool,
}

impl<D: OwnMemory> DeviceShards<D> {
    /// Nothing. *Errors*: of the device.
    pub fn none(device: &D) -> Result<Self, EngineError> {
        Ok(Self {
            holding: Holding::default(),
            held: Held::default(),
            runs: Vec::new(),
            moments: [device.floats(0)?, device.floats(0)?],
            sum: device.floats(0)?,
            making: None,
        })
    }

    /// What these moments are of, whose groups are cut so: takes memory for it, with room for this many sums of statistics. Nothing else is held
    /// meanwhile.
    ///
    /// *Errors*: of the device, or it has no room; it then holds nothing.
    pub fn hold(
        &mut self,
        device: &D,
        moments: &Moments,
        all: &Runs,
        stats: usize,
    ) -> Result<(), EngineError> {
        *self = Self::none(device)?;
        let held = moments.held().clone();
        for (values, place) in moments.sections().into_iter().zip(&mut self.moments) {
            *place = device.floats(values.len())?;
            device.send(values, place)?;
        }
        self.sum = device.floats(held.len() + stats)?;
        self.runs = held.runs.iter().map(|run| all.within(run)).collect();
        (self.held, self.holding) = (held, moments.holding().clone());
        Ok(())
    }

    /// The shards.
    pub fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Their elements, as they lie in the memory of a moment.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// [`Sharding::measure`](crate::Sharding::measure).
    pub fn measure(&mut self, device: &D, facts: &UpdateFacts, step: Step, reduced: &Reduced<'_, D>) {
        let seen = passes::look(device, facts, reduced);
        let (grads, sums) = reduced.parts(facts);
        let (mut kept, len) = (D::take(&mut self.sum), self.held.len());
        for (run, start) in self.held.runs.iter().zip(&self.held.starts) {
            let to = D::part_mut(&mut kept, *start..*start + run.len());
            device.copy(D::part(grads, run.clone()), to);
        }
        device.copy(sums, D::part_mut(&mut kept, len..len + facts.stats));
        let Reduced { samples, divisor, .. } = *reduced;
        self.making = Some(Making { step, divisor, samples, seen, settled: None, made: false });
    }

    /// [`Sharding::measured`](crate::Sharding::measured).
    pub fn measured(&self) -> Option<Step> {
        self.making.filter(|making| !making.made).map(|making| making.step)
    }

    /// [`Sharding::settle`](crate::Sharding::settle).
    pub fn settle(&mut self, facts: &UpdateFacts, optimizer: &Optimizer) -> Result<UpdateInfo, EngineError> {
        let making = self.making.as_mut().expect(MEASURED);
        let Making { step, divisor, seen, .. } = *making;
        let settled = match making.settled {
            Some(settled) => settled,
            None => passes::settle(facts, optimizer, step, divisor, seen)?,
        };
        making.settled = Some(settled);
        Ok(settled.info)
    }

    /// [`Sharding::update_held`](crate::Sharding::update_held), of these parameters, statistics and moving average; tells which update it was.
    pub fn update<'a>(
        &'a mut self,
        device: &D,
        (facts, optimizer): (&UpdateFacts, &Optimizer),
        [parameters, stats, average]: [D::Mut<'a>; 3],
    ) -> (Step, UpdateInfo) {
        let Self { held, runs, moments, sum, making, .. } = self;
        let making = making.as_mut().expect(MEASURED);
        assert!(!making.made, "an update is made once");
        let settled = making.settled.expect("an update is settled before it is made");
        let [first, second] = moments.each_mut().map(|section| D::take(section));
        let to = Buffers::<D> { parameters, first, second, average };
        update_runs(device, optimizer, making.step, &settled, (held, runs), D::look(sum), to);
        let facts = UpdateFacts { parameters: held.len(), ..*facts };
        let (samples, divisor) = (making.samples, making.divisor);
        Reduced::<D> { gradient: D::look(sum), samples, divisor }.blend(device, &facts, &settled, stats);
        making.made = true;
        (making.step, settled.info)
    }

    /// [`Sharding::commit`](crate::Sharding::commit), of these parameters and this moving average.
    pub fn commit(
        &self,
        device: &D,
        (optimizer, step): (&Optimizer, Step),
        parameters: D::Ref<'_>,
        average: D::Mut<'_>,
    ) {
        let skipped = self.making.and_then(|making| making.settled).is_some_and(|it| it.scale.is_none());
        if !skipped {
            average_between(device, optimizer, step, &self.held, parameters, average);
        }
    }
}

/// Why there is an update in hand.
const MEASURED: &str = "an update is measured before anything else is asked of it";
