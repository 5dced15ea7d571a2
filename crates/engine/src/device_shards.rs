//! The shards that a replica holds in the memory of a device: their moments, what it keeps of a sum, and its part of an update.
//!
//! As `sharded_update.rs` does it in the host's memory, with the same bits. This file does not know who holds what, nor where the rest of the state
//! lies.

use crate::OwnMemory;
use crate::device::NORM_BLOCK;
use crate::error::EngineError;
use crate::groups::Runs;
use crate::held_update::{HeldUpdate, PartsLie};
use crate::layout::Section;
use crate::optimizer::{Buffers, Optimizer};
use crate::passes::{Divisor, Reduced};
use crate::sharding::{Held, HeldState};
use crate::sharing::{UpdateShare, WORDS};
use crate::update_facts::UpdateFacts;
use crate::update_info::UpdateInfo;
use dtrain_types::{Holding, Step, word_of_floats};
use std::ops::Range;

/// What a replica holds on its device.
pub(crate) struct DeviceShards<D: OwnMemory> {
    holding: Holding,
    held: Held,
    /// Of each run that is held: the groups of its parameters, counted from its start.
    runs: Vec<Runs>,
    /// Of what is held, the runs one behind the other: of the sections of which there is no more.
    pub sections: [D::Floats; Section::COUNT],
    lies: PartsLie,
    /// The gradient of what is held, then the sums of the statistics.
    sum: D::Floats,
    kept: Held,
    /// Of each block of this replica's share of a gradient the bits of an f64, its squares; room for all of them.
    squares: D::Floats,
    /// Floats of it that say what it saw last.
    told: usize,
    /// Of each block of a gradient, as all replicas told.
    heard: Vec<f32>,
    making: Option<HeldUpdate>,
}

impl<D: OwnMemory> DeviceShards<D> {
    /// Nothing. *Errors*: of the device.
    pub fn none(device: &D) -> Result<Self, EngineError> {
        Ok(Self {
            holding: Holding::default(),
            held: Held::default(),
            runs: Vec::new(),
            sections: nothing(device)?,
            lies: PartsLie::InWhole,
            sum: device.floats(0)?,
            kept: Held::default(),
            squares: device.floats(0)?,
            told: 0,
            heard: Vec::new(),
            making: None,
        })
    }

    /// What these moments are of, whose groups are cut so: takes memory for it. Nothing else is held meanwhile.
    ///
    /// *Errors*: of the device, or it has no room; it then holds nothing.
    pub fn hold(
        &mut self,
        device: &D,
        moments: &HeldState,
        all: &Runs,
        facts: &UpdateFacts,
    ) -> Result<(), EngineError> {
        *self = Self::none(device)?;
        let held = moments.held().clone();
        for (section, place) in Section::ALL.into_iter().zip(&mut self.sections) {
            let values = moments.section(section);
            if !values.is_empty() {
                *place = device.floats(values.len())?;
                device.send(values, place)?;
            }
        }
        if moments.has(Section::Parameters) {
            self.lies = PartsLie::AsHeld;
        }
        let words = WORDS * facts.parameters.div_ceil(NORM_BLOCK);
        self.squares = device.floats(words)?;
        self.heard = vec![0.0; words];
        self.runs = held.runs.iter().map(|run| all.within(run)).collect();
        (self.held, self.holding) = (held, moments.holding().clone());
        Ok(())
    }

    /// Reads elements of a section of which it has but what it holds. *Errors*: of the device. *Panics* if it does not hold them.
    pub fn read(&self, device: &D, section: Section, from: usize, to: &mut [f32]) -> Result<(), EngineError> {
        let at = self.held.place(&(from..from + to.len())).start;
        device.fetch_from(&self.sections[section as usize], at, to)
    }

    /// Elements of a section of which it has but what it holds. *Panics* if it does not hold them.
    pub fn part(&self, section: Section, elements: &Range<usize>) -> D::Ref<'_> {
        D::part(D::look(&self.sections[section as usize]), self.held.place(elements))
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
    pub fn measure(
        &mut self,
        device: &D,
        facts: &UpdateFacts,
        (step, share): (Step, UpdateShare),
        reduced: &Reduced<'_, D>,
    ) -> Result<(), EngineError> {
        self.make_room(device, self.held.and(facts.sums()))?;
        HeldUpdate::copy(device, reduced.gradient, &self.kept, D::take(&mut self.sum));
        let (grads, sums) = reduced.parts(facts);
        let part = D::part(grads, share.part(facts.parameters, NORM_BLOCK));
        device.squares(part, reduced.divisor.mean(), &mut self.squares);
        let of = (reduced.samples, reduced.divisor);
        self.take_up(device, facts, HeldUpdate::of(device, (step, share), of, sums))
    }

    /// Keeps a sum that lies in the host's memory, of which these elements are there. *Errors*: of the device.
    pub fn keep(&mut self, device: &D, kept: Held, sum: &[f32]) -> Result<(), EngineError> {
        self.make_room(device, kept)?;
        device.send(sum, &mut self.sum)
    }

    /// The same of one that lies in this memory of the device.
    pub fn keep_there(&mut self, kept: Held, sum: D::Floats) {
        (self.kept, self.sum) = (kept, sum);
    }

    /// [`Sharding::measure`](crate::Sharding::measure), of the sum that it has kept.
    pub fn measure_kept(
        &mut self,
        device: &D,
        facts: &UpdateFacts,
        (step, share): (Step, UpdateShare),
        of: (u64, Divisor),
    ) -> Result<(), EngineError> {
        let sum = D::look(&self.sum);
        let part = D::part(sum, self.kept.place(&share.part(facts.parameters, NORM_BLOCK)));
        device.squares(part, of.1.mean(), &mut self.squares);
        let sums = D::part(sum, self.kept.place(&facts.sums()));
        self.take_up(device, facts, HeldUpdate::of(device, (step, share), of, sums))
    }

    /// Has this update in hand, of whose share of a gradient it has the squares. *Errors*: of the device.
    fn take_up(&mut self, device: &D, facts: &UpdateFacts, making: HeldUpdate) -> Result<(), EngineError> {
        let share = making.share();
        self.told = WORDS * share.part(facts.parameters, NORM_BLOCK).len().div_ceil(NORM_BLOCK);
        self.making = Some(making);
        if share.of == 1 {
            device.fetch(&self.squares, &mut self.heard)?;
            self.add_up();
        }
        Ok(())
    }

    /// Has memory for what is kept of a sum. *Errors*: of the device.
    fn make_room(&mut self, device: &D, kept: Held) -> Result<(), EngineError> {
        if self.kept != kept {
            // What is there goes first.
            self.sum = device.floats(0)?;
            self.sum = device.floats(kept.elements())?;
            self.kept = kept;
        }
        Ok(())
    }

    /// Forgets what was measured.
    pub fn forget(&mut self) {
        self.making = None;
    }

    /// What it saw in its share, as words.
    pub fn told(&self) -> D::Ref<'_> {
        D::part(D::look(&self.squares), 0..self.told)
    }

    /// [`Sharding::tell`](crate::Sharding::tell), to the host.
    pub fn tell(&self, device: &D, words: &mut [f32]) -> Result<(), EngineError> {
        assert_eq!(words.len(), self.told, "words for another share");
        device.fetch(&self.squares, words)
    }

    /// [`Sharding::hear`](crate::Sharding::hear), of the words that `bring` writes.
    pub fn hear(
        &mut self,
        bring: impl FnOnce(&mut [f32]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        bring(&mut self.heard)?;
        self.add_up();
        Ok(())
    }

    fn add_up(&mut self) {
        let squares = self.heard.chunks_exact(WORDS).map(|words| f64::from_bits(word_of_floats(words)));
        self.making.as_mut().expect(MEASURED).hear(squares);
    }

    /// [`Sharding::measured`](crate::Sharding::measured).
    pub fn measured(&self) -> Option<Step> {
        self.making.and_then(|making| making.measured())
    }

    /// [`Sharding::settle`](crate::Sharding::settle).
    pub fn settle(&mut self, facts: &UpdateFacts, optimizer: &Optimizer) -> Result<UpdateInfo, EngineError> {
        self.making.as_mut().expect(MEASURED).settle(facts, optimizer)
    }

    /// [`Sharding::update_held`](crate::Sharding::update_held), of these parameters, statistics and moving average; tells which update it was.
    pub fn update<'a>(
        &'a mut self,
        device: &D,
        rule: (&UpdateFacts, &Optimizer),
        [parameters, stats, average]: [D::Mut<'a>; 3],
    ) -> (Step, UpdateInfo) {
        let Self { held, runs, sections, lies, sum, kept, making, .. } = self;
        let [held_parameters, _, first, second, held_average] =
            sections.each_mut().map(|section| D::take(section));
        let (parameters, average) = match lies {
            PartsLie::InWhole => (parameters, average),
            PartsLie::AsHeld => (held_parameters, held_average),
        };
        let to = Buffers::<D> { parameters, first, second, average };
        let making = making.as_mut().expect(MEASURED);
        making.make(device, rule, (held, runs), (kept, D::look(sum)), (to, *lies), stats)
    }

    /// [`Sharding::commit`](crate::Sharding::commit), of these parameters and this moving average.
    pub fn commit(&self, device: &D, optimizer: &Optimizer, parameters: D::Ref<'_>, average: D::Mut<'_>) {
        if let Some(making) = self.making.as_ref().filter(|_| self.lies == PartsLie::InWhole) {
            making.commit(device, optimizer, &self.held, parameters, average);
        }
    }
}

/// Memory of no section. *Errors*: of the device.
fn nothing<D: OwnMemory>(device: &D) -> Result<[D::Floats; Section::COUNT], EngineError> {
    let none = || device.floats(0);
    Ok([none()?, none()?, none()?, none()?, none()?])
}

/// Why there is an update in hand.
const MEASURED: &str = "an update is measured before anything else is asked of it";
