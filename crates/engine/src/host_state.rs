//! The state of a replica in the host's memory, its own or shared with others, and the updates that are made to it.
//!
//! It has the rule of the updates and the device that makes them. It does not know how a gradient comes about.

use crate::error::EngineError;
use crate::flat::{Flat, FloatsOnLoan};
use crate::groups::Runs;
use crate::host_device::HostDevice;
use crate::layout::{Layout, Section};
use crate::loss_scale::LossScale;
use crate::muon_update::{MuonStep, MuonUpdate};
use crate::newton_schulz::Orthogonaliser;
use crate::optimizer::{Keeps, Optimizer, Rule};
use crate::passes::{self, Divisor, Reduced};
use crate::sharded_update::Sharded;
use crate::sharding::{HeldState, Lies, ReducedSum, Sharding, Words};
use crate::shared_memory::Mapped;
use crate::shared_update::{Sharer, Sum, UpdateRule};
use crate::sharing::{Sharing, UpdateShare};
use crate::state::{State, StateShape};
use crate::update_facts::UpdateFacts;
use crate::update_info::UpdateInfo;
use crate::whole_update::WholeUpdate;
use dtrain_types::{Holding, Seed, SharedState, Step, Wire};
use std::ops::Range;

/// A state in the host's memory, and how it is updated. See the file's comment.
pub struct HostState<D: HostDevice> {
    device: D,
    optimizer: Optimizer,
    facts: UpdateFacts,
    runs: Runs,
    /// How Muon updates it, if it does.
    muon: Option<HostMuon>,
    /// Its own; of nothing while it reads one that it shares with others.
    own: State,
    shared: Option<Shared>,
    /// What it holds, where it holds no whole state.
    sharded: Option<Sharded>,
    /// What the parameters begin with, where nobody is to have all of them, and nobody has asked for them.
    first: Option<FirstParameters>,
}

/// What parameters begin with.
struct FirstParameters {
    layout: Layout,
    seed: Seed,
}

/// Memory of a state that replicas share, and this one's part in it.
struct Shared {
    memory: Mapped,
    sharer: Sharer,
}

impl Shared {
    /// The state that is read, if one was adopted.
    fn state(&self) -> Option<&State> {
        self.sharer.applied().map(|applied| self.memory.view(applied))
    }

    /// Has the state of the update that was adopted in view.
    fn turn(&mut self) {
        if let Some(applied) = self.sharer.applied() {
            self.memory.turn(applied);
        }
    }
}

/// Updates by Muon, and the memory for them: a step allocates nothing.
#[derive(Debug)]
struct HostMuon {
    update: MuonUpdate,
    room: [Flat; Orthogonaliser::PARTS],
}

impl HostMuon {
    fn new(update: MuonUpdate) -> Self {
        // Activations lie as f32 there.
        Self { room: update.memory().lengths(|len| len).map(Flat::zeros), update }
    }

    fn make<D: HostDevice>(&mut self, device: &D, number: u64, whole: WholeUpdate<'_>) {
        let WholeUpdate { lr, scale, gradient, parameters, kept, .. } = whole;
        let mut room = self.room.each_mut().map(|part| &mut part[..]);
        self.update.make(device, MuonStep { number, lr, scale, gradient, parameters, kept }, &mut room);
    }
}

impl<D: HostDevice> HostState<D> {
    /// A state of zeros for these tensors, to which [`Optimizer::complete`] has added what is kept.
    ///
    /// *Errors*: options of the optimizer that make no sense. *Panics* if it keeps shards, and updates are made as a whole.
    pub fn zeros(
        device: D,
        optimizer: Optimizer,
        layout: &Layout,
        facts: UpdateFacts,
    ) -> Result<Self, EngineError> {
        optimizer.check()?;
        let in_shards = matches!(optimizer.keeps, Keeps::Shards(_));
        assert!(!in_shards || optimizer.rule.in_shares(), "{WHOLE}");
        let muon = match optimizer.rule {
            Rule::Muon(muon) => Some(HostMuon::new(MuonUpdate::new(muon, &optimizer, layout)?)),
            _ => None,
        };
        Ok(Self {
            own: State::zeros(optimizer.first_state(layout)),
            runs: optimizer.runs(layout),
            device,
            optimizer,
            facts,
            muon,
            shared: None,
            sharded: in_shards.then(Sharded::default),
            first: None,
        })
    }

    /// The shape of a state of these tensors.
    #[must_use]
    pub fn shape(optimizer: &Optimizer, layout: &Layout) -> StateShape {
        optimizer.state(layout)
    }

    /// Elements of the memory that updates of these tensors work in.
    #[must_use]
    pub fn scratch(optimizer: &Optimizer, layout: &Layout) -> usize {
        match optimizer.rule {
            Rule::Muon(_) => MuonUpdate::memory_of(layout).lengths(|len| len).into_iter().sum(),
            _ => 0,
        }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The state that the replica works with: the shared one, once it was adopted.
    #[must_use]
    pub fn state(&self) -> &State {
        self.shared.as_ref().and_then(Shared::state).unwrap_or(&self.own)
    }

    /// Gives it the first values of these tensors, which [`Optimizer::complete`] has completed. Of parameters of which it is to have but its shards, they
    /// are made when it is told which: until then they take no memory.
    pub fn begin(&mut self, layout: &Layout, seed: Seed) {
        if self.optimizer.held_sections()[Section::Parameters as usize] {
            [Section::Parameters, Section::Average].into_iter().for_each(|section| self.own.empty(section));
            self.first = Some(FirstParameters { layout: layout.clone(), seed });
        }
        layout.initialise(seed, &mut self.own);
    }

    /// The state that the replica works with, with all that it has of its own.
    pub fn bring(&mut self) -> &State {
        self.make_first();
        self.state()
    }

    /// Makes all first parameters: somebody wants them whole.
    fn make_first(&mut self) {
        if let Some(FirstParameters { layout, seed }) = self.first.take() {
            self.own = State::zeros(self.optimizer.first_state(&layout));
            layout.initialise(seed, &mut self.own);
        }
    }

    /// Its own state, to give it first values. *Panics* if it reads a shared one.
    pub fn own_mut(&mut self) -> &mut State {
        self.make_first();
        assert!(!self.reads_shared(), "what others read is not for anybody to change");
        &mut self.own
    }

    /// What its updates do.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.optimizer.rule
    }

    /// The rule that its updates follow, for replicas that share a state.
    #[must_use]
    pub fn update_rule(&self) -> UpdateRule<'_, D> {
        let Self { device, facts, optimizer, runs, .. } = self;
        UpdateRule { device, facts, optimizer, runs }
    }

    /// What the loss is scaled by, if it is.
    #[must_use]
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.facts.loss_scale(self.state().section(Section::Stats))
    }

    /// Is given memory in which it can share its state with other replicas of this host. It goes on with the state that it
    /// has until it is told otherwise ([`Sharing`]). *Panics* if the memory has another shape, or updates are made as a whole.
    pub fn share(&mut self, memory: Box<dyn SharedState>) {
        assert!(self.sharded.is_none() && self.optimizer.rule.in_shares(), "{WHOLE}");
        let memory = Mapped::new(memory, &self.own);
        self.shared = Some(Shared { sharer: Sharer::new(&memory), memory });
    }

    /// [`Replica::sharding`](crate::Replica::sharding).
    pub fn sharding(&mut self) -> Option<&mut dyn Sharding> {
        self.sharded.is_some().then_some(self as &mut dyn Sharding)
    }

    /// What it holds, with the rule and the rest of the state.
    fn sharding_parts(&mut self) -> (&mut Sharded, UpdateRule<'_, D>, &mut State) {
        let Self { device, facts, optimizer, runs, own, sharded, .. } = self;
        (sharded.as_mut().expect(SHARDED), UpdateRule { device, facts, optimizer, runs }, own)
    }

    /// What it holds. *Panics* if it holds a whole state.
    #[must_use]
    pub fn held(&self) -> &HeldState {
        self.sharded().state()
    }

    fn sharded(&self) -> &Sharded {
        self.sharded.as_ref().expect(SHARDED)
    }

    /// [`Replica::add`](crate::Replica::add).
    pub fn add(&self, wire: Wire, from: &[f32], into: &mut [f32]) {
        self.device.add_to(from, into);
        if wire != Wire::F32 {
            self.device.round(wire, into);
        }
    }

    /// [`Replica::update`](crate::Replica::update).
    ///
    /// *Errors* and *panics*: as there.
    pub fn update(
        &mut self,
        step: Step,
        gradient: &[f32],
        weight: f64,
        samples: u64,
    ) -> Result<UpdateInfo, EngineError> {
        self.assert_next(step, gradient);
        assert!(!self.reads_shared(), "it has a share of it alone");
        let divisor = Divisor { weight, scale: self.loss_scale() };
        let reduced = Reduced::<D> { gradient, samples, divisor };
        let Self { device, optimizer, facts, runs, muon, own, .. } = self;
        let info = match muon {
            Some(muon) => {
                let number = optimizer.updates_before + step.0;
                let mut make = |update: WholeUpdate<'_>| {
                    muon.make(device, number, update);
                    Ok(())
                };
                make_whole(&*device, (facts, optimizer), step, &reduced, own, &mut make)?
            }
            None => passes::update(device, facts, (optimizer, runs), step, &reduced, own.sections_mut())?,
        };
        own.applied = step;
        Ok(info)
    }

    /// The same where another program makes the updates: `make` changes parameters and what it keeps. A step that is skipped is not its.
    ///
    /// *Errors*: as [`HostState::update`], before anything is changed; those of `make`, after which the state holds anything.
    pub fn update_by(
        &mut self,
        step: Step,
        gradient: &[f32],
        weight: f64,
        samples: u64,
        make: &mut MakeWhole<'_>,
    ) -> Result<UpdateInfo, EngineError> {
        self.assert_next(step, gradient);
        assert!(!self.reads_shared(), "what another program changes is its own");
        let divisor = Divisor { weight, scale: self.loss_scale() };
        let reduced = Reduced::<D> { gradient, samples, divisor };
        let Self { device, optimizer, facts, own, .. } = self;
        let info = make_whole(&*device, (facts, optimizer), step, &reduced, own, make)?;
        own.applied = step;
        Ok(info)
    }

    /// [`Replica::swap_state`](crate::Replica::swap_state).
    ///
    /// *Panics*: as there.
    pub fn swap(&mut self, other: &mut State) {
        self.make_first();
        self.state().assert_alike(other);
        if self.reads_shared() {
            // What others read is not for anybody to change.
            self.own = self.state().clone();
        }
        self.shared.iter_mut().for_each(|shared| shared.sharer.forget());
        std::mem::swap(&mut self.own, other);
    }

    /// [`Replica::sharing`](crate::Replica::sharing).
    pub fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        self.shared.is_some().then_some(self as &mut dyn Sharing)
    }

    fn reads_shared(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.state().is_some())
    }

    /// What it shares a state with: the rule, the memory and its part.
    fn sharing_parts(&mut self) -> (UpdateRule<'_, D>, &mut Mapped, &mut Sharer) {
        let Self { device, facts, optimizer, runs, shared, .. } = self;
        let Shared { memory, sharer } = shared.as_mut().expect(GIVEN);
        (UpdateRule { device, facts, optimizer, runs }, memory, sharer)
    }

    /// *Panics* unless this is the next update, with a gradient of this model.
    fn assert_next(&self, step: Step, gradient: &[f32]) {
        assert_eq!(step, self.state().applied.next(), "updates come in order, each once");
        self.assert_whole(gradient);
    }

    fn assert_whole(&self, gradient: &[f32]) {
        assert_eq!(gradient.len(), self.facts.gradient_len(), "a reduced gradient has the layout's length");
    }
}

impl<D: HostDevice> Sharing for HostState<D> {
    fn publish(&mut self) {
        let Self { shared, own, .. } = self;
        let Shared { memory, sharer } = shared.as_mut().expect(GIVEN);
        sharer.publish(memory, own);
    }

    fn adopt(&mut self, applied: Step) -> bool {
        let shared = self.shared.as_mut().expect(GIVEN);
        let there = shared.sharer.adopt(&shared.memory, applied);
        if there {
            shared.turn();
            self.own = State::zeros(StateShape::default());
        }
        there
    }

    fn measure(&mut self, step: Step, gradient: &[f32], weight: f64, samples: u64, share: UpdateShare) {
        self.assert_next(step, gradient);
        let (rule, memory, sharer) = self.sharing_parts();
        sharer.measure(&rule, memory, step, Sum { gradient, weight, samples }, share);
    }

    fn settle(&mut self) -> Result<UpdateInfo, EngineError> {
        let (rule, memory, sharer) = self.sharing_parts();
        sharer.settle(&rule, memory)
    }

    fn update_share(&mut self, gradient: &[f32]) -> bool {
        let (rule, memory, sharer) = self.sharing_parts();
        sharer.update_share(&rule, memory, gradient)
    }

    fn commit(&mut self, step: Step) {
        let shared = self.shared.as_mut().expect(GIVEN);
        shared.sharer.commit(step);
        shared.turn();
    }

    fn close(&mut self) {
        let shared = self.shared.as_mut().expect(GIVEN);
        shared.sharer.close(&shared.memory);
        shared.turn();
    }

    fn complete(&mut self, gradient: &[f32]) -> Result<(), EngineError> {
        self.assert_whole(gradient);
        let (rule, memory, sharer) = self.sharing_parts();
        sharer.complete(&rule, memory, gradient)
    }
}

impl<D: HostDevice> Sharding for HostState<D> {
    fn holds(&self, section: Section) -> bool {
        self.optimizer.held_sections()[section as usize]
    }

    fn holding(&self) -> &Holding {
        self.sharded().state().holding()
    }

    fn measure(&mut self, step: Step, sum: ReducedSum<'_>, share: UpdateShare) -> Result<(), EngineError> {
        assert_eq!(step, self.state().applied.next(), "updates come in order, each once");
        if let Lies::Home(gradient) = sum.lies {
            self.assert_whole(gradient);
        }
        let (sharded, rule, own) = self.sharding_parts();
        sharded.measure(&rule, own, (step, share), sum);
        Ok(())
    }

    fn lend_sum(&mut self, elements: usize) -> Flat {
        self.sharding_parts().0.lend_sum(elements)
    }

    fn tell(&mut self, words: Words<'_>) -> Result<(), EngineError> {
        let Words::Home(words) = words else { panic!("{KEEPS_NONE}") };
        self.sharded().tell(words);
        Ok(())
    }

    fn hear(&mut self, words: Words<'_>) -> Result<(), EngineError> {
        let Words::Home(words) = words else { panic!("{KEEPS_NONE}") };
        self.sharding_parts().0.hear(words);
        Ok(())
    }

    fn measured(&self) -> Option<Step> {
        self.sharded().measured()
    }

    fn settle(&mut self) -> Result<UpdateInfo, EngineError> {
        let (sharded, rule, _) = self.sharding_parts();
        sharded.settle(&rule)
    }

    fn sum_is_home(&self) -> bool {
        self.sharded().sum_is_home()
    }

    fn keep_sum(&mut self, home: &[f32]) {
        let (sharded, rule, _) = self.sharding_parts();
        sharded.keep_sum(&rule, home);
    }

    fn update_held(&mut self, home: Option<&[f32]>) -> Result<(), EngineError> {
        let (sharded, rule, own) = self.sharding_parts();
        sharded.update(&rule, own, home);
        Ok(())
    }

    fn commit(&mut self, step: Step) {
        let (sharded, rule, own) = self.sharding_parts();
        sharded.commit(&rule, own, step);
    }

    fn read(&mut self, section: Section, from: usize, to: &mut [f32]) -> Result<(), EngineError> {
        let elements = from..from + to.len();
        let part = match self.holds(section) {
            true => self.sharded().state().part(section, elements),
            false => &self.own.section(section)[elements],
        };
        to.copy_from_slice(part);
        Ok(())
    }

    fn lend(&mut self, section: Section, elements: Range<usize>) -> Option<FloatsOnLoan> {
        match self.holds(section) {
            true => self.sharding_parts().0.lend(section, &elements),
            false => self.own.lend(section, elements),
        }
    }

    fn write(&mut self, section: Section, to: usize, values: &[f32]) -> Result<(), EngineError> {
        assert!(!self.holds(section), "what is held is prepared, and then adopted");
        self.own.section_mut(section)[to..to + values.len()].copy_from_slice(values);
        Ok(())
    }

    fn prepare(&mut self, holding: &Holding) -> Result<HeldState, EngineError> {
        let mut prepared = self.sharded().prepare(&self.update_rule(), holding);
        prepared.take_first(&self.own);
        if let Some(FirstParameters { layout, seed }) = &self.first {
            prepared.draw_first(layout, *seed);
        }
        Ok(prepared)
    }

    fn adopt(&mut self, moments: HeldState, applied: Step) -> Result<(), EngineError> {
        self.first = None;
        let (sharded, rule, own) = self.sharding_parts();
        sharded.adopt(&rule, moments);
        sharded.state().sections_there().for_each(|section| own.empty(section));
        own.applied = applied;
        Ok(())
    }
}

/// What changes parameters, and what it keeps of them.
type MakeWhole<'a> = dyn FnMut(WholeUpdate<'_>) -> Result<(), EngineError> + 'a;

/// Makes an update as a whole, or skips it where the gradient of a scaled loss is not finite.
///
/// *Errors*: as [`passes::settle`], before anything is changed; those of `make`.
fn make_whole<D: HostDevice>(
    device: &D,
    (facts, optimizer): (&UpdateFacts, &Optimizer),
    step: Step,
    reduced: &Reduced<'_, D>,
    own: &mut State,
    make: &mut MakeWhole<'_>,
) -> Result<UpdateInfo, EngineError> {
    let seen = passes::look(device, facts, reduced);
    let settled = passes::settle(facts, optimizer, step, reduced.divisor, seen)?;
    let [parameters, stats, kept, _, average] = own.sections_mut();
    if let Some(scale) = settled.scale {
        let (gradient, _) = reduced.parts(facts);
        let lr = settled.info.lr;
        make(WholeUpdate { step, lr, scale, gradient, parameters: &mut *parameters, kept })?;
        if let Some(share) = optimizer.averages(step) {
            device.blend(share, 1.0, parameters, average);
        }
    }
    reduced.blend(device, facts, &settled, stats);
    Ok(settled.info)
}

/// Why an update cannot be cut.
const WHOLE: &str =
    "nobody can make a part of an update that is made as a whole, nor of a state that is elsewhere";

/// Why nothing lies in a gradient that is kept.
const KEEPS_NONE: &str = "a replica in the host's memory keeps no gradients";

/// Why a state is asked for its part: nobody asks otherwise.
const SHARDED: &str = "it keeps the moments of some shards";

/// Why there is memory for a shared state: nobody is asked about it otherwise.
const GIVEN: &str = "it was given memory";
