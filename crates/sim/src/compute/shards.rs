//! A state of which each rank holds some shards: how a rank comes by them, its part of an update, and what all of it comes to.
//!
//! What is done to the memory is the engine's own code, what travels is said by [`Holders`]; what comes when is the agenda's.

use super::Compute;
use super::doing::{Doing, StateFrom};
use super::holding::{Gathering, Shards, Sharing};
use super::tools::Tools;
use super::words::{Ask, News, Work};
use crate::sabotage::Sabotage;
use dtrain_collective::{Arena, Narrow, Op, Take};
use dtrain_engine::{Lies, Piece, ReducedSum, Section, Sharded, State, UpdateShare, needed, word_cuts};
use dtrain_protocol::{Digest, Failure, Loaded, StepRecord, Task};
use dtrain_types::{Holders, Holding, NodeId, Rank, Step, Trailer};

impl Compute {
    /// What it holds, where ranks hold shards.
    #[must_use]
    pub fn shards(&self) -> Option<&Shards> {
        self.shards.as_ref()
    }

    fn holders(&self) -> Option<Holders> {
        let nodes = self.plane.as_ref()?.members.participants.iter().map(|participant| participant.node);
        Some(Holders::new(&nodes.collect::<Vec<NodeId>>(), self.shards.as_ref()?.redundancy))
    }

    /// Says what each rank needs of a sum, and what it has of the parameters after an update, where ranks hold shards.
    pub(super) fn narrow(&mut self, tools: &Tools<'_>) {
        let Some(holders) = self.holders() else { return };
        let Some(plane) = &mut self.plane else { return };
        let (gradient, of) = (tools.engine.gradient_len(), plane.members.participants.len());
        let parameters = tools.engine.state_shape().parameters;
        let one = |index: usize| {
            let rank = Rank(index as u32);
            let (holding, share) = (holders.holding(rank), UpdateShare { index, of });
            let summed = match self.sabotage {
                Some(Sabotage::OwnedAlone) => &Holding::of([holders.owned(rank)]),
                _ => &holding,
            };
            [needed(summed, share, parameters, gradient), holding.elements(parameters)]
        };
        plane.machine.narrow(Narrow::new((0..of).map(one)));
    }

    /// Holds its part of a state that was read or begun.
    pub(super) fn begin_shards(&mut self, tools: &mut Tools<'_>, state: State) {
        let (Some(holders), Some(plane)) = (self.holders(), &self.plane) else { return };
        let rank = plane.rank;
        let Some(shards) = &mut self.shards else { return };
        let rule = tools.engine.update_rule();
        let mut moments = Sharded::default().prepare(&rule, &holders.holding(rank));
        for section in [Section::First, Section::Second] {
            for run in holders.holding(rank).elements(state.section(section).len()) {
                moments.part_mut(section, run.clone()).copy_from_slice(&state.section(section)[run]);
            }
        }
        shards.sharded.adopt(&rule, moments);
        self.state = Some(without_moments(state));
        self.told_shards(tools, StateFrom::Checkpoint);
    }

    /// Gives this rank what it is to hold, from those who hold it.
    pub(super) fn share_out(&mut self, tools: &mut Tools<'_>, held: &[Holding], step: Step) {
        let (Some(holders), Some(plane)) = (self.holders(), &self.plane) else { return };
        let (generation, rank) = (plane.generation, plane.rank);
        if !self.catch_up(tools, step) {
            let text = format!("the sum of step {step} was not kept");
            return tools.tell(News::Failed(generation, Failure::Setup(text)));
        }
        let Some(mut pieces) = Piece::all(tools.engine.state_shape(), held, &holders, Section::is_of_moments)
        else {
            let text = format!("the ranks that are there do not hold the state of step {step}");
            return tools.tell(News::Failed(generation, Failure::Setup(text)));
        };
        let Some(shards) = &self.shards else { return };
        let moments = shards.sharded.prepare(&tools.engine.update_rule(), &holders.holding(rank));
        let state = self.state.clone().unwrap_or_else(|| tools.engine.blank());
        if self.sabotage == Some(Sabotage::KeptParameters) {
            let news = |rank: &Rank| held[rank.index()].is_none();
            for piece in pieces.iter_mut().filter(|piece| piece.section == Section::Parameters) {
                piece.targets.retain(news);
            }
            pieces.retain(|piece| !piece.targets.is_empty());
        }
        self.doing = Doing::Share(Box::new(Sharing { pieces, at: 0, step, state, moments }));
        self.work(tools, Work::Window);
    }

    /// Makes the update that was measured and left, if the state to go on with has it; tells whether it could.
    fn catch_up(&mut self, tools: &mut Tools<'_>, step: Step) -> bool {
        let (Some(state), Some(shards)) = (&mut self.state, &mut self.shards) else { return true };
        if state.applied >= step || shards.holding().is_none() {
            return true;
        }
        if self.sabotage == Some(Sabotage::LeftBehind) {
            state.applied = step;
        } else {
            if shards.sharded.measured() != Some(step) {
                return false;
            }
            let rule = tools.engine.update_rule();
            shards.sharded.settle(&rule).expect("it is finite");
            shards.sharded.update(&rule, state);
        }
        let generation = self.plane.as_ref().expect("it is built").generation;
        tools.tell(News::CaughtUp(generation, step));
        true
    }

    /// Begins the next piece, or has all of them.
    pub(super) fn begin_piece(&mut self, tools: &mut Tools<'_>) {
        let (Doing::Share(sharing), Some(plane)) = (&self.doing, &mut self.plane) else { return };
        let Some(Piece { section, elements, source, targets }) = sharing.pieces.get(sharing.at) else {
            return self.shared_out(tools);
        };
        if *source == plane.rank {
            let from = match section {
                Section::First | Section::Second => {
                    sharing.moments_of(&self.shards).part(*section, elements.clone())
                }
                _ => &sharing.state.section(*section)[elements.clone()],
            };
            Self::arena(plane, tools).lease(0)[..elements.len()].copy_from_slice(from);
        }
        plane.sequence += 1;
        plane.gathering = false;
        let (sources, targets, len) = ([*source], targets.clone(), elements.len());
        self.start(tools, &Op::Copy { sources: &sources, targets: &targets, len });
    }

    /// A piece is there.
    pub(super) fn end_piece(&mut self, tools: &mut Tools<'_>) {
        let (Doing::Share(sharing), Some(plane)) = (&mut self.doing, &mut self.plane) else { return };
        let Piece { section, elements, targets, .. } = &sharing.pieces[sharing.at];
        if targets.contains(&plane.rank) {
            let slot = &Self::arena(plane, tools).lease(0)[..elements.len()];
            match section {
                Section::First | Section::Second => {
                    sharing.moments.part_mut(*section, elements.clone()).copy_from_slice(slot);
                }
                _ => sharing.state.section_mut(*section)[elements.clone()].copy_from_slice(slot),
            }
        }
        sharing.at += 1;
        self.work(tools, Work::Window);
    }

    fn shared_out(&mut self, tools: &mut Tools<'_>) {
        let Doing::Share(sharing) = std::mem::replace(&mut self.doing, Doing::Rest) else { return };
        let Sharing { mut state, moments, step, .. } = *sharing;
        state.applied = step;
        let Some(shards) = &mut self.shards else { return };
        shards.sharded.adopt(&tools.engine.update_rule(), moments);
        self.state = Some(state);
        self.told_shards(tools, StateFrom::Peer);
    }

    fn told_shards(&mut self, tools: &mut Tools<'_>, from: StateFrom) {
        let copied = from == StateFrom::Peer;
        let (Some(state), Some(shards), Some(plane)) = (&self.state, &self.shards, &self.plane) else {
            return;
        };
        let (generation, step, holding) = (plane.generation, state.applied, shards.holding().clone());
        let state_digest = Digest(state.common_digest());
        tools.asks.push(Ask::Swapped { generation, step, state_digest, copied });
        self.tell_held(tools);
        tools.tell(News::Loaded(Loaded { generation, applied: step, holding, state_digest }));
    }

    /// Says what it holds, for the checkers.
    fn tell_held(&self, tools: &mut Tools<'_>) {
        let (Some(state), Some(shards), Some(plane)) = (&self.state, &self.shards, &self.plane) else {
            return;
        };
        let moments = shards.sharded.state();
        let mut held = Vec::new();
        for section in Section::ALL {
            let len = state.section(section).len();
            let runs = if section == Section::Stats {
                std::iter::once(0..len).collect()
            } else {
                shards.holding().elements(len)
            };
            held.extend(runs.into_iter().map(|run| match section {
                Section::First | Section::Second => (section, run.start, moments.part(section, run).to_vec()),
                _ => (section, run.start, state.section(section)[run].to_vec()),
            }));
        }
        let (generation, step, holding) = (plane.generation, state.applied, shards.holding().clone());
        tools.asks.push(Ask::Held { generation, step, holding, held });
    }

    /// Keeps what it needs of the sum.
    pub(super) fn measure_shards(&mut self, tools: &mut Tools<'_>, step: Step) {
        let record = self.record(tools, step);
        let (Some(plane), Some(state)) = (&mut self.plane, &self.state) else { return };
        let sum = Self::arena(plane, tools).lease(0).to_vec();
        let Some(shards) = &mut self.shards else { return };
        let Trailer { weight, samples, .. } = record.trailer;
        let reduced = ReducedSum { lies: Lies::Home(&sum), weight, samples };
        let share = UpdateShare { index: plane.rank.index(), of: plane.members.participants.len() };
        shards.sharded.measure(&tools.engine.update_rule(), state, (step, share), reduced);
        self.computed.as_mut().expect("a step is in hand").sum = sum;
        self.agenda.handle_measured(record);
    }

    /// Tells the others what it measured, and hears what they did.
    pub(super) fn agree(&mut self, tools: &mut Tools<'_>) {
        let (Some(plane), Some(state), Some(shards)) = (&mut self.plane, &self.state, &self.shards) else {
            return;
        };
        let cuts = word_cuts(state.section(Section::Parameters).len(), plane.members.participants.len());
        let own = cuts[plane.rank.index()]..cuts[plane.rank.index() + 1];
        shards.sharded.tell(&mut Self::arena(plane, tools).lease(0)[own]);
        plane.sequence += 1;
        plane.gathering = false;
        self.doing = Doing::Agree;
        self.start(tools, &Op::AllGather { cuts: Some(&cuts), take: Take::All });
    }

    pub(super) fn agreed(&mut self, tools: &mut Tools<'_>) {
        let (Some(plane), Some(shards), Some(state)) = (&mut self.plane, &mut self.shards, &self.state)
        else {
            return;
        };
        let cuts = word_cuts(state.section(Section::Parameters).len(), plane.members.participants.len());
        shards.sharded.hear(&Self::arena(plane, tools).lease(0)[..cuts[cuts.len() - 1]]);
        self.doing = Doing::Rest;
    }

    /// Updates what it holds.
    pub(super) fn update_shards(&mut self, tools: &mut Tools<'_>) {
        let (Some(shards), Some(state)) = (&mut self.shards, &mut self.state) else { return };
        let rule = tools.engine.update_rule();
        shards.sharded.settle(&rule).expect("it is finite");
        shards.sharded.update(&rule, state);
        self.tell_held(tools);
    }

    /// Has a section from its owners, in slot 0.
    fn gather_section(&mut self, tools: &mut Tools<'_>, section: Section) {
        let (Some(holders), Some(state), Some(shards)) = (self.holders(), &self.state, &self.shards) else {
            return;
        };
        let Some(plane) = &mut self.plane else { return };
        let parameters = state.section(Section::Parameters).len();
        let cuts = holders.cuts(parameters);
        let own = cuts[plane.rank.index()]..cuts[plane.rank.index() + 1];
        // Of the parameters nobody is sent what it holds.
        let (take, lays) = match section {
            Section::Parameters => (Take::Rest, shards.holding().elements(parameters)),
            _ => (Take::All, std::iter::once(own).collect()),
        };
        for run in lays {
            let from = match section {
                Section::First | Section::Second => shards.sharded.state().part(section, run.clone()),
                _ => &state.section(section)[run.clone()],
            };
            Self::arena(plane, tools).lease(0)[run].copy_from_slice(from);
        }
        plane.sequence += 1;
        plane.gathering = false;
        self.start(tools, &Op::AllGather { cuts: Some(&cuts), take });
    }

    /// Has the parameters from their owners.
    pub(super) fn gather(&mut self, tools: &mut Tools<'_>) {
        if self.holders().is_some_and(|holders| holders.hold_all()) {
            return;
        }
        self.doing = Doing::Gather;
        self.gather_section(tools, Section::Parameters);
    }

    pub(super) fn gathered(&mut self, tools: &mut Tools<'_>) {
        let (Some(plane), Some(state), Some(shards)) = (&mut self.plane, &mut self.state, &self.shards)
        else {
            return;
        };
        let slot = Self::arena(plane, tools).lease(0);
        let parameters = state.section_mut(Section::Parameters);
        let own: Vec<f32> = parameters.to_vec();
        parameters.copy_from_slice(&slot[..own.len()]);
        // What it holds is its own, although it is the same.
        for run in shards.holding().elements(own.len()) {
            parameters[run.clone()].copy_from_slice(&own[run]);
        }
        self.doing = Doing::Rest;
    }

    /// All have all parameters.
    pub(super) fn commit_shards(&mut self, tools: &mut Tools<'_>, step: Step) {
        let record = self.record(tools, step);
        let (Some(plane), Some(state), Some(shards)) = (&self.plane, &mut self.state, &mut self.shards)
        else {
            return;
        };
        let rule = tools.engine.update_rule();
        shards.sharded.commit(&rule, state, step);
        let info = shards.sharded.settle(&rule).expect("it is finite");
        let gradient = std::mem::take(&mut self.computed.as_mut().expect("a step is in hand").sum);
        let (generation, state_digest) = (plane.generation, Digest(state.common_digest()));
        let parameters = state.section(Section::Parameters).len();
        let share = UpdateShare { index: plane.rank.index(), of: plane.members.participants.len() };
        let needed = Some(needed(shards.holding(), share, parameters, gradient.len()));
        tools.asks.push(Ask::Updated { generation, step, gradient, needed, state_digest });
        let (lr, gradient_norm) = (info.lr, info.gradient_norm);
        self.committed(tools, StepRecord { lr, gradient_norm, ..record });
    }

    /// Tells of a step that it made, and left before all had it.
    pub(super) fn tell_made(&mut self, tools: &mut Tools<'_>, record: StepRecord) {
        let Some(shards) = &mut self.shards else { return };
        let info = shards.sharded.settle(&tools.engine.update_rule()).expect("it is finite");
        let (lr, gradient_norm) = (info.lr, info.gradient_norm);
        tools.tell(News::Step(StepRecord { lr, gradient_norm, ..record }));
    }

    /// Has all of the state, for a task that looks at it.
    pub(super) fn gather_for(&mut self, tools: &mut Tools<'_>, then: Task) {
        let whole = self.state.clone().expect("a rank that runs has a state");
        self.doing = Doing::GatherAll(Box::new(Gathering {
            then,
            left: vec![Section::Second, Section::First],
            whole,
        }));
        self.gather_section(tools, Section::First);
    }

    pub(super) fn gathered_for(&mut self, tools: &mut Tools<'_>) {
        let Doing::GatherAll(mut gathering) = std::mem::replace(&mut self.doing, Doing::Rest) else { return };
        let Some(plane) = &mut self.plane else { return };
        let generation = plane.generation;
        let section = gathering.left.pop().expect("one was gathered");
        let to = gathering.whole.section_mut(section);
        to.copy_from_slice(&Self::arena(plane, tools).lease(0)[..to.len()]);
        let Some(shards) = &self.shards else { return };
        for run in shards.holding().elements(to.len()) {
            if shards.sharded.state().part(section, run.clone()) != &to[run] {
                let text =
                    format!("what this rank holds of {} differs from what its owner has", section.name());
                return tools.tell(News::Failed(generation, Failure::Engine(text)));
            }
        }
        match gathering.left.last() {
            Some(next) => {
                let next = *next;
                self.doing = Doing::GatherAll(gathering);
                self.gather_section(tools, next);
            }
            None => self.look_at(tools, gathering.then, &gathering.whole),
        }
    }
}

/// A state in whose moments nobody may look: they are no numbers.
fn without_moments(mut state: State) -> State {
    for section in [Section::First, Section::Second] {
        state.section_mut(section).fill(f32::NAN);
    }
    state
}
